"""Broken files: one line that names the place, or read as far as possible; the reader itself raises nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flide_agent.replay.reading import read
from flide_agent.replay.records import Problem, Run


def found(path: Path) -> tuple[list[Run], list[Problem]]:
    items = list(read(path))
    return [r for r in items if isinstance(r, Run)], [p for p in items if isinstance(p, Problem)]


READ = {
    "no-steps.traj": [0],
    "nan-cost.traj.json": [1],
    "lone-surrogate.traj.json": [1],
    "latin1-bytes.traj": [1],
    "bom-crlf-blanklines.jsonl": [1, 0],
    "bad-tool-arguments.jsonl": [1],
    "nul-and-ansi.traj.json": [1],
    "duplicate-keys.traj": [1],
}


@pytest.mark.parametrize("name", READ)
def test_made_broken_and_read(shared: Path, name: str) -> None:
    runs, problems = found(shared / "data/trajectories/made-broken" / name)
    assert not problems
    assert [len(r.steps) for r in runs] == READ[name]


def test_every_broken_file_is_covered(shared: Path) -> None:
    names = {p.name for p in (shared / "data/trajectories/made-broken").iterdir()}
    assert names == set(READ) | {"empty.traj", "truncated.traj", "last-line-cut.jsonl"}


def test_empty(shared: Path) -> None:
    runs, (problem,) = found(shared / "data/trajectories/made-broken/empty.traj")
    assert not runs
    assert str(problem).endswith("empty.traj: empty file, nothing in it")


def test_truncated(shared: Path) -> None:
    path = shared / "data/trajectories/made-broken/truncated.traj"
    runs, (problem,) = found(path)
    assert not runs
    with pytest.raises(json.JSONDecodeError) as error:
        json.loads(path.read_text(encoding="utf-8"))
    assert (problem.line, problem.column) == (error.value.lineno, error.value.colno)
    assert f"cut off inside the string that starts at character {error.value.pos}" in str(problem)
    assert "\n" not in str(problem)


def test_last_line_cut(shared: Path) -> None:
    runs, (problem,) = found(shared / "data/trajectories/made-broken/last-line-cut.jsonl")
    assert [len(r.steps) for r in runs] == [4]
    assert problem.line == 2


def test_lone_surrogates_are_replaced_and_said(shared: Path) -> None:
    (run,), _ = found(shared / "data/trajectories/made-broken/lone-surrogate.traj.json")
    assert run.steps[0].messages[1]["content"] == "bad \ufffd half \ufffd end"
    assert run.notes == ["lone surrogates replaced by U+FFFD: 2"]


def test_bytes_that_are_not_utf8_are_replaced_and_said(shared: Path) -> None:
    (run,), _ = found(shared / "data/trajectories/made-broken/latin1-bytes.traj")
    assert run.steps[0].messages[1]["content"] == "caf\ufffd"
    assert run.notes == ["bytes that are not UTF-8, replaced by U+FFFD: 1"]


def test_control_codes_stay_in_what_is_sent(shared: Path) -> None:
    (run,), _ = found(shared / "data/trajectories/made-broken/nul-and-ansi.traj.json")
    assert "\x1b[31m" in run.steps[0].messages[1]["content"]  # the agent saw them; only the terminal must not


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(data)
    return path


def test_broken_arguments_and_unknown_call_reach_the_next_step_as_they_are(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls'}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": "end"},
    ]
    (run,), _ = found(write(tmp_path, json.dumps({"messages": messages}).encode()))
    sent = run.steps[1].messages
    assert sent[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert sent[2] == {"role": "tool", "content": "x", "tool_call_id": "2"}


def test_numbers_that_json_does_not_have_are_null_in_arguments(tmp_path: Path) -> None:
    row = (
        b'{"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": NaN,'
    )
    row += b' "y": 1e999, "z": [-Infinity, 1.5]}}}]}, {"role": "assistant", "content": "b"}]}'
    (run,), _ = found(write(tmp_path, row))
    (call,) = run.steps[1].messages[0]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"x": None, "y": None, "z": [None, 1.5]}


def test_base64_payloads_and_images_are_left_out(tmp_path: Path) -> None:
    uri = "data:image/png;base64," + "iVBORw0KGgo" * 40
    parts = [{"type": "text", "text": f"![shot]({uri})"}, {"type": "image_url", "image_url": {"url": uri}}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "ok"}]
    (run,), _ = found(write(tmp_path, json.dumps({"messages": messages}).encode()))
    assert run.steps[0].messages[0]["content"] == "![shot](data:image/png;base64,[left out])\n[image]"
    assert run.notes == ["base64 payloads left out: 2"]


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"\n  \n", None, "empty file"),
        (b"PAR1\x15\x04\x15\x80", None, "parquet that cannot be read"),
        (b"\x1f\x8b\x08\x00", None, "its gzip packing is broken"),
        (gzip.compress(b'{"messages": [' * 99, mtime=0)[:-9], None, "its gzip packing is broken"),
        (b"PK\x03\x04 and no archive", None, "a broken zip archive"),
        (b"hello\nworld\n", 1, "not valid JSON at character 0"),
        (b'{"steps": [], "result": {}}', None, "no trajectory: an object with the keys steps, result"),
        (b'[{"id": 0, "result": "run"}]', None, "a list of 1 without a role each"),
        (b"17", None, "a single value"),
        (b'{"history": [', 1, "cut off at character 13"),
        (b"[" * 100_000, 1, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", 1, "not valid JSON"),
        (
            b'{"trajectory": [{"action": "ls", "response": "ls"}]}',
            None,
            "trajectory[0] has no query and the file has no history",
        ),
        (b'{"history": [{"role": "user", "content": 7}]}', None, "history[0].content is a number, not text"),
        (b'{"history": [{"role": "user", "content": [{"type": "x"}]}]}', None, "history[0].content[0] is a part of type 'x'"),
        (b'{"history": [{"role": "", "content": ""}]}', None, "history[0] has no role"),
        (b'{"history": [], "trajectory": [7]}', None, "trajectory[0] is not a step"),
        (
            b'{"messages": [{"role": "user", "content": "a", "tool_calls": "x"}]}',
            None,
            "messages[0].tool_calls is text, not a list",
        ),
    ],
)
def test_one_clear_line(tmp_path: Path, data: bytes, line: int | None, says: str) -> None:
    path = write(tmp_path, data)
    runs, (problem,) = found(path)
    assert not runs
    assert str(problem).startswith(str(path) + (f":{line}" if line else ": "))
    assert says in str(problem)
    assert "\n" not in str(problem)


def test_no_such_file_and_a_folder(tmp_path: Path) -> None:
    assert str(found(tmp_path / "none")[1][0]) == f"{tmp_path / 'none'}: no such file"
    assert str(found(tmp_path)[1][0]) == f"{tmp_path}: a folder without files of events"


def test_a_bad_row_stops_no_other(tmp_path: Path) -> None:
    good = b'{"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}\n'
    runs, problems = found(
        write(tmp_path, b'{"messages": [{"role": "us\n' + good + b"\n" + b'{"other": 1}\n' + good + b"\x00\n")
    )
    assert [r.row for r in runs] == [2, 5]
    assert [p.line for p in problems] == [1, 4, 6]


def test_rows_are_read_one_by_one(tmp_path: Path) -> None:
    row = json.dumps({"messages": [{"role": "user", "content": "u" * 1000}, {"role": "assistant", "content": "a"}]})
    path = tmp_path / "rows"
    with path.open("w") as f:
        for _ in range(2000):
            f.write(row + "\n")
    first = next(iter(read(path)))
    with path.open("r+b") as f:  # what comes later is not read yet
        f.seek(1_000_000)
        f.truncate()
    assert isinstance(first, Run)


def test_what_an_error_quotes_is_cleaned(tmp_path: Path) -> None:
    value = {"history": [{"role": "user", "content": [{"type": "\x1b[2J\nx"}]}]}
    _, (problem,) = found(write(tmp_path, json.dumps(value).encode()))
    assert "\x1b" not in str(problem)
    assert "\n" not in str(problem)
    _, (problem,) = found(write(tmp_path, json.dumps({"\x1b]0;t\x07key\n": 1}).encode()))
    assert "the keys key;" in str(problem)


EXAMPLE = (Path(__file__).parents[2] / "examples/fix_slugify.traj").read_bytes()
ROW = json.dumps(
    {
        "trajectory": [
            {"role": "system", "system_prompt": "s", "text": None},
            {"role": "user", "system_prompt": None, "text": "u"},
            {"role": "ai", "system_prompt": None, "text": "a ```ls``` "},
        ],
        "target": True,
    }
).encode()
CHAT = json.dumps(
    {"messages": [{"role": "user", "content": ["a", {"type": "text", "text": "b"}]}, {"role": "assistant"}]}
).encode()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("whole", [EXAMPLE[:6000], ROW + b"\n" + ROW + b"\n", CHAT], ids=["sweagent", "nebius", "chat"])
def test_mutated_bytes_raise_nothing(tmp_path: Path, whole: bytes, data: st.DataObject) -> None:
    out = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(out)))
        cut = data.draw(st.integers(0, 8))
        out[at : at + cut] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"null", b"[]", b"{}", b'"', b"7", b"\n", b"\\ud83d"])
        )
    for item in read(write(tmp_path, bytes(out))):
        assert isinstance(item, Run | Problem)
        if isinstance(item, Run):
            json.dumps([s.messages for s in item.steps], ensure_ascii=False, allow_nan=False).encode()  # can be sent


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats()
    | st.sampled_from(["", "ai", "user", "assistant", "x", "exit"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "text",
                    "system_prompt",
                    "history",
                    "trajectory",
                    "messages",
                    "query",
                    "action",
                    "response",
                    "tool_calls",
                    "function",
                    "arguments",
                    "attempts",
                    "type",
                    "is_demo",
                    "tool_call_ids",
                    "observation",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_any_shape_is_a_run_or_a_problem(tmp_path: Path, value: object) -> None:
    for mode in ("as-sent", "raw"):
        for item in read(write(tmp_path, json.dumps(value).encode()), mode):
            assert isinstance(item, Run | Problem)
