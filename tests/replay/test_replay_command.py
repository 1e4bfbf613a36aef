"""The replay command around a counting service: what is asked, shown, written, and the exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from counting_service import EXAMPLE, CountingService, copies
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.errors import InvalidRequest, TooLong, Unreachable
from flide_agent.replay.questions import DEFAULT
from flide_agent.replay.reading import read
from flide_agent.replay.records import Run
from flide_agent.replay.report import Layout

SERVER = ("--url", "http://127.0.0.1:9")
"""Somebody else's: sessions are deleted in the end. The stand-in answers."""


def replay(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["replay", *map(str, arguments)], catch_exceptions=False)


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in text.splitlines()]


def steps_of(path: Path) -> list[list[Any]]:
    return [s.messages for r in read(path) if isinstance(r, Run) for s in r.steps]


def test_each_step_is_asked_with_its_whole_history_in_one_session(service: CountingService) -> None:
    result = replay(EXAMPLE, *SERVER)
    assert result.exit_code == 0
    assert [messages for _, messages, _ in service.asked] == steps_of(EXAMPLE)
    assert len({session for session, _, _ in service.asked}) == 1
    assert all(q == DEFAULT for _, _, q in service.asked[1:])
    assert service.deleted == [service.asked[0][0]]


def test_the_table_and_the_summary(service: CountingService) -> None:
    out = replay(EXAMPLE).output
    assert "(swe-agent-1.1, 20 steps)" in out
    assert "step tokens      m reused computed   reason failed    last tool steps trace empty      ms  then" in out
    assert "  python -m unittest\n" in out
    assert sum(" run 0.50 " in row for row in out.splitlines()) == 19, "at all steps but the first"
    assert "20 decisions in 1 run, model counting" in out
    assert "new 1" in out
    assert "append 19" in out
    assert "latency   p50 " in out


@pytest.mark.parametrize("untrained", [True, False])
def test_untrained_is_said_above_the_answers_and_in_every_record(service: CountingService, untrained: bool) -> None:
    service.untrained = untrained
    result = replay(EXAMPLE, "--json", "-", "--steps", "-2")
    assert result.stderr.count("untrained") == (2 if untrained else 0)
    assert [r["untrained"] for r in rows(result.stdout)] == [untrained] * 3


def test_json_takes_stdout_alone_and_its_keys_are_stable(service: CountingService) -> None:
    result = replay(EXAMPLE, "--json", "-", "--steps", "1-3")
    decisions, summary = rows(result.stdout)[:-1], rows(result.stdout)[-1]
    assert len(decisions) == 3
    assert " ".join(decisions[0]) == (
        "kind file row run format step moment source messages history history_tokens m reused_tokens computed_tokens reason answers "
        "milliseconds service_milliseconds session model prompt_format untrained out_of_scope phases labels begun request questions"
    )
    assert list(decisions[1]["answers"]) == list(DEFAULT)
    assert decisions[1]["m"] == decisions[0]["history_tokens"] // 64 * 64
    assert summary["kind"] == "summary"
    assert summary["decisions"] == 3
    assert summary["computed_tokens"] == sum(d["computed_tokens"] for d in decisions)
    assert summary["computed_without_reuse"] == sum(d["computed_tokens"] + d["reused_tokens"] for d in decisions)


@pytest.mark.parametrize(
    ("width", "reused", "then"), [(None, True, 40), (200, True, 60), (120, True, 29), (92, True, 0), (85, False, 0)]
)
def test_the_layout_fits_the_terminal(width: int | None, reused: bool, then: int) -> None:
    layout = Layout.fitting(DEFAULT, width)
    assert ("reused" in layout.header(), layout.then) == (reused, then)
    assert width is None or len(layout.header()) <= width


def test_json_to_a_file(service: CountingService, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert replay(EXAMPLE, "--json", path).exit_code == 0
    assert [r["kind"] for r in rows(path.read_text())] == ["decision"] * 20 + ["summary"]


@pytest.mark.parametrize(("given", "asked"), [("5", [5]), ("2-4", [2, 3, 4]), ("19-", [19, 20]), ("-2", [1, 2])])
def test_steps(service: CountingService, given: str, asked: list[int]) -> None:
    result = replay(EXAMPLE, "--json", "-", f"--steps={given}")
    assert [r["step"] for r in rows(result.stdout)[:-1]] == asked


@pytest.mark.parametrize("given", ["0", "x", "4-2", "", "1-x", "-"])
def test_steps_that_are_none(service: CountingService, given: str) -> None:
    result = replay(EXAMPLE, f"--steps={given}")
    if given == "-":  # from the first to the last
        assert result.exit_code == 0
    else:
        assert result.exit_code == 2
        assert not service.asked


def test_limit_counts_runs(service: CountingService, tmp_path: Path) -> None:
    result = replay(*copies(tmp_path, 3), *SERVER, "--limit", 2, "--json", "-")
    assert rows(result.stdout)[-1]["runs"] == 2
    assert len(service.deleted) == 2


def test_keep_deletes_nothing(service: CountingService) -> None:
    assert replay(EXAMPLE, *SERVER, "--keep").exit_code == 0
    assert not service.deleted


def test_nothing_is_deleted_from_a_store_that_goes_with_the_process(service: CountingService, tmp_path: Path) -> None:
    assert replay(EXAMPLE).exit_code == 0
    assert not service.deleted
    assert replay(EXAMPLE, "--store", tmp_path).exit_code == 0
    assert len(service.deleted) == 1


def test_a_refused_step_ends_its_run_and_no_other(service: CountingService, tmp_path: Path) -> None:
    service.refuse[len(steps_of(EXAMPLE)[4])] = TooLong("the state has 9 tokens; this server takes 8")
    result = replay(*copies(tmp_path, 2), "--json", "-")
    assert result.exit_code == 1
    records = rows(result.stdout)
    assert [r["kind"] for r in records].count("decision") == 8
    problems = [r["message"] for r in records if r["kind"] == "problem"]
    assert (
        problems == ["step 5 was refused: the state has 9 tokens; this server takes 8; its 15 further steps are left out"] * 2
    )


def test_a_service_that_went_away_stops_the_replay(service: CountingService, tmp_path: Path) -> None:
    service.refuse[len(steps_of(EXAMPLE)[4])] = Unreachable("no answer from http://x")
    result = replay(*copies(tmp_path, 2), "--keep")
    assert result.exit_code == 3
    assert "stopped: no answer from http://x" in result.output
    assert "4 decisions in 1 run" in result.output


def test_refused_questions_stop_the_replay(service: CountingService) -> None:
    service.refuse[2] = InvalidRequest.at(("questions", "a", "type"), "unknown type")
    result = replay(EXAMPLE)
    assert result.exit_code == 2
    assert "body.questions.a.type: unknown type" in result.output


def test_nobody_listens() -> None:
    result = replay(EXAMPLE, "--url", "http://127.0.0.1:9")  # the discard port: refused at once; every try is quick
    assert result.exit_code == 3


def test_url_goes_with_no_local_option() -> None:
    assert replay(EXAMPLE, "--url", "http://127.0.0.1:9", "--model", "default").exit_code == 2


def test_broken_files_are_named_and_the_others_go_on(service: CountingService, shared: Path) -> None:
    files = sorted((shared / "data/trajectories/made-broken").iterdir())
    result = replay(*files, EXAMPLE, "no/such/file", "--json", "-")
    assert result.exit_code == 1
    records = rows(result.stdout)
    failed = {Path(r["file"]).name: r for r in records if r["kind"] == "problem"}
    assert set(failed) == {"empty.traj", "truncated.traj", "last-line-cut.jsonl", "file"}
    assert failed["last-line-cut.jsonl"]["line"] == 2
    assert sum(r["kind"] == "decision" and r["run"] == "fix_slugify" for r in records) == 20
    for name in failed:
        assert any(name in row for row in result.stderr.splitlines())


def test_control_codes_of_a_file_never_reach_the_screen(service: CountingService, tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x1b[2J[red]\r\x00x"
    path = tmp_path / "a.jsonl"
    row = {"instance_id": evil, "messages": [{"role": "user", "content": evil}, {"role": "assistant", "content": evil}]}
    path.write_text(
        json.dumps(row) + "\n" + json.dumps({evil: 1}) + "\n" + json.dumps({"messages": [{"role": evil, "content": 1}]})
    )
    result = replay(path, "--json", "-")
    assert result.exit_code == 1
    for text in (result.stdout, result.stderr):
        assert not set(text) & set(map(chr, [*range(9), *range(11, 32), 127, *range(128, 160)]))
    assert rows(result.stdout)[0]["step"] == 1


def test_one_file_of_many_bad_rows_does_not_flood_the_screen(service: CountingService, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"kind": "ActionEvent"}\n' * 300)
    result = replay(path, "--json", "-")
    assert sum("other.jsonl" in row for row in result.stderr.splitlines()) == 5
    assert sum(r["kind"] == "problem" for r in rows(result.stdout)) == 300
    assert result.exit_code == 1


def test_questions_of_a_file(service: CountingService, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text(json.dumps({"questions": {"a very long question id": {"type": "noul", "instructions": "?"}}}))
    result = replay(EXAMPLE, "--questions", path)
    assert result.exit_code == 0
    assert list(service.asked[0][2]) == ["a very long question id"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "q.json:1:2: not valid JSON"),
        ("[]", "needs an object"),
        ("{}", "with at least one"),
        ('{"a": {"instructions": "?"}}', "question 'a' needs an object with a type"),
        ('{"a": 7}', "question 'a' needs"),
    ],
)
def test_a_questions_file_that_is_none(service: CountingService, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "q.json"
    path.write_text(text)
    result = replay(EXAMPLE, "--questions", path)
    assert result.exit_code == 2
    assert says in result.output.replace("\n", " ")
    assert not service.asked


def test_no_questions_file(service: CountingService) -> None:
    result = replay(EXAMPLE, "--questions", "no/such")
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("text", "value"), [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("1000", 1000), ("1.5k", 1500), ("7b", 7)]
)
def test_sizes(text: str, value: int) -> None:
    assert cli.size(text, "--memory") == value


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "two", "1e999", "3 parsecs", "nan"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(cli.typer.BadParameter):
        cli.size(text, "--memory")


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = "import sys, flide_agent.cli as c\ntry: c.app(['replay', '--help'])\nexcept SystemExit: pass\n"
    code += (
        "heavy = {'torch', 'numpy', 'litestar', 'lmdb', 'httpx', 'transformers'} & set(sys.modules)\nassert not heavy, heavy"
    )
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 0.5 * 3  # 0.3 s on an idle core; the machine may be busy


def test_version() -> None:
    from flide_agent import __version__

    result = CliRunner().invoke(cli.app, ["--version"])
    assert result.output == f"flide-agent {__version__}\n"


@pytest.mark.skipif(not all(map(shutil.which, ("ls", "cat", "grep"))), reason="the recording needs ls, cat and grep")
def test_the_example_is_what_its_script_records(tmp_path: Path) -> None:
    out = tmp_path / "again.traj"
    subprocess.run(
        [sys.executable, str(EXAMPLE.with_name("make_trajectory.py")), str(out)], check=True, stdout=subprocess.DEVNULL
    )
    then, now = json.loads(EXAMPLE.read_text(encoding="utf-8")), json.loads(out.read_text(encoding="utf-8"))
    assert [s["action"] for s in then["trajectory"]] == [s["action"] for s in now["trajectory"]]
    assert then["info"]["submission"] == now["info"]["submission"]
    assert str(tmp_path.parent) not in out.read_text(encoding="utf-8")
