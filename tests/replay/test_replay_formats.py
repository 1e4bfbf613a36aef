"""What a step sees in each format: rewritten histories, several events of one answer, branches, labels, tools."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flide_agent.replay.reading import read
from flide_agent.replay.records import Problem, Run
from flide_agent.replay.sources import sources


def runs(tmp_path: Path, *values: Any, mode: str = "as-sent") -> list[Run]:
    path = tmp_path / "file"
    path.write_text("\n".join(json.dumps(v) for v in values), encoding="utf-8")
    found = list(read(path, mode))
    assert not [p for p in found if isinstance(p, Problem)], found
    return [r for r in found if isinstance(r, Run)]


def seen(run: Run) -> list[list[str]]:
    return [[m["content"] for m in s.messages] for s in run.steps]


def labels(run: Run, name: str) -> list[Any]:
    return [s.labels.get(name) for s in run.steps]


# OpenHands


def oh(id_: int, source: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "source": source, "timestamp": "2026-01-01T00:00:00", **more}


def ran(id_: int, command: str) -> dict[str, Any]:
    return oh(id_, "agent", action="run", args={"command": command, "thought": f"t{id_}", "security_risk": 2})


def output(id_: int, text: str, code: int = 0) -> dict[str, Any]:
    return oh(id_, "agent", observation="run", content=text, cause=id_ - 1, extras={"metadata": {"exit_code": code}})


EVENTS = [
    oh(0, "agent", action="system", args={"content": "sys", "tools": [{"name": "run"}]}),
    oh(1, "user", action="message", args={"content": "task"}),
    ran(2, "ls"),
    output(3, "files", 1),
    oh(4, "environment", observation="agent_state_changed", content="", extras={}),
    ran(5, "cat"),
    output(6, "text"),
    oh(7, "agent", action="condensation", args={"forgotten_event_ids": [2, 3], "summary": "so far", "summary_offset": 2}),
    oh(8, "agent", action="message", args={"content": "done"}),
]


def test_openhands_condensation_takes_out_what_it_names(tmp_path: Path) -> None:
    (run,) = runs(tmp_path, EVENTS)
    assert seen(run) == [["sys", "task"], ["sys", "task", "t2", "files"], ["sys", "task", "so far", "t5", "text"]]
    (raw,) = runs(tmp_path, EVENTS, mode="raw")
    assert seen(raw)[2] == ["sys", "task", "t2", "files", "t5", "text"]
    assert run.tools == [{"name": "run"}]
    assert labels(run, "last_failed") == [None, True, False]
    assert labels(run, "security_risk") == ["HIGH", "HIGH", None]
    assert labels(run, "next_tool") == ["run", "run", None]
    assert run.steps[0].at is not None


def test_openhands_actions_of_one_answer_are_one_step(tmp_path: Path) -> None:
    def part(id_: int, call: str) -> dict[str, Any]:
        said = {"id": "r1", "choices": [{"message": {"tool_calls": [{"id": call, "function": {"arguments": f"[{id_}]"}}]}}]}
        meta = {"function_name": "f", "tool_call_id": call, "model_response": said, "total_calls_in_response": 2}
        return oh(id_, "agent", action="run", args={"command": "x", "thought": ""}, tool_call_metadata=meta)

    (run,) = runs(tmp_path, [EVENTS[1], part(2, "a"), part(3, "b"), output(4, "o"), oh(5, "agent", action="finish", args={})])
    assert len(run.steps) == 2
    assert [c["function"]["arguments"] for c in run.steps[1].messages[1]["tool_calls"]] == ["[2]", "[3]"]


def test_openhands_pairs_and_outcomes_stay_out(tmp_path: Path) -> None:
    row = {"instance_id": "i", "history": [[EVENTS[1], output(2, "hi")], [ran(3, "ls"), output(4, "files")], [ran(5, "x"), output(6, "y")]],
           "test_result": {"git_patch": "PATCH"}, "git_patch": "PATCH", "success": True, "metrics": {"x": "PATCH"}}  # fmt: skip
    (run,) = runs(tmp_path, row)
    assert (run.name, run.format, len(run.steps)) == ("i", "openhands", 2)
    assert "PATCH" not in json.dumps([s.messages for s in run.steps])


def sdk(kind: str, **more: Any) -> dict[str, Any]:
    return {"id": more.pop("id", kind), "kind": kind, "source": "agent", "timestamp": "2026-01-01T00:00:00", **more}


def test_sdk_events_in_lines_a_list_and_a_folder(tmp_path: Path) -> None:
    def acted(id_: str, response: str) -> dict[str, Any]:
        call = {"id": id_, "name": "terminal", "arguments": f'{{"c": "{id_}"}}'}
        return sdk("ActionEvent", id=id_, thought=[{"type": "text", "text": f"t{id_}"}], tool_call=call, tool_call_id=id_,
                   llm_response_id=response, security_risk="LOW", action={}, tool_name="terminal")  # fmt: skip

    def result(id_: str, code: int) -> dict[str, Any]:
        raw = {"content": [{"type": "text", "text": f"o{id_}"}], "metadata": {"exit_code": code}}
        return sdk("ObservationEvent", id=f"r{id_}", observation=raw, tool_call_id=id_)

    events = [
        sdk("SystemPromptEvent", system_prompt={"type": "text", "text": "sys"}, tools=[{"name": "terminal"}]),
        sdk("MessageEvent", source="user", llm_message={"role": "user", "content": [{"type": "text", "text": "task"}]}),
        acted("a", "1"),
        acted("b", "1"),
        result("a", 0),
        result("b", 3),
        acted("c", "2"),
        sdk("AgentErrorEvent", error="no such tool", tool_call_id="c"),
        sdk("Condensation", forgotten_event_ids=["a", "ra", "rb"], summary="sum", summary_offset=2),
        acted("d", "3"),
    ]
    (run,) = runs(tmp_path, *events)
    assert seen(run) == [["sys", "task"], ["sys", "task", "ta", "oa", "ob"], ["sys", "task", "sum", "tc", "no such tool"]]
    assert [c["id"] for c in run.steps[1].messages[2]["tool_calls"]] == ["a", "b"]
    assert labels(run, "last_failed") == [None, True, True]
    assert run.tools == [{"name": "terminal"}]
    (again,) = runs(tmp_path, events)
    folder = tmp_path / "run" / "events"
    folder.mkdir(parents=True)
    for i, event in enumerate(events):
        (folder / f"event-{i:05}-{event['id']}.json").write_text(json.dumps(event))
    (place,) = sources([tmp_path / "run"])
    (apart,) = read(place)
    assert isinstance(apart, Run)
    assert [s.messages for s in run.steps] == [s.messages for s in again.steps] == [s.messages for s in apart.steps]


# Claude Code and Anthropic


def cc(id_: str, parent: str | None, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, "id": more.pop("answer", id_)}
    return {"type": kind, "uuid": id_, "parentUuid": parent, "sessionId": "s", "message": message, **more}


USE = [{"type": "tool_use", "id": "u1", "name": "Bash", "input": {"command": "ls"}}]


def got(call: str, text: str, error: bool = False) -> list[Any]:
    return [{"type": "tool_result", "tool_use_id": call, "content": text, "is_error": error}]


def test_claude_code_branches_and_side_chains(tmp_path: Path) -> None:
    events = [
        cc("1", None, "user", "task"),
        cc("2", "1", "assistant", [{"type": "text", "text": "old way"}]),
        cc("3", "2", "user", "no"),
        cc("4", "3", "assistant", "dead end"),
        cc("5", "2", "user", "yes"),
        cc("6", "5", "assistant", USE),
        cc("7", "6", "user", got("u1", "boom", True), toolUseResult={"secret": "OUTCOME"}),
        cc("s1", None, "user", "side task", isSidechain=True),
        cc("s2", "s1", "assistant", "side answer", isSidechain=True),
        cc("8", "7", "assistant", "end"),
        {"type": "summary", "summary": "OUTCOME", "leafUuid": "8"},
    ]
    main, branch, side = runs(tmp_path, *events)
    assert seen(main) == [["task"], ["task", "old way", "yes"], ["task", "old way", "yes", "", "boom"]]
    assert labels(main, "last_failed") == [None, None, True]
    assert (branch.name, seen(branch)) == ("s branch 2", [["task", "old way", "no"]])  # what both hold is counted once
    assert (side.name, seen(side)) == ("s side chain 1", [["side task"]])
    assert "OUTCOME" not in json.dumps([s.messages for r in (main, branch, side) for s in r.steps])


def test_claude_code_lines_of_one_answer_and_parallel_calls(tmp_path: Path) -> None:
    second = [{"type": "tool_use", "id": "u2", "name": "Read", "input": {}}]
    events = [
        cc("1", None, "user", "task"),
        cc("2", "1", "assistant", [{"type": "text", "text": "both"}], answer="m"),
        cc("3", "2", "assistant", USE, answer="m"),
        cc("4", "3", "assistant", second, answer="m"),
        cc("5", "3", "user", got("u1", "r1")),
        cc("6", "4", "user", got("u2", "r2")),
        cc("7", "6", "assistant", "end"),
    ]
    (run,) = runs(tmp_path, *events)
    assert len(run.steps) == 2
    last = run.steps[1].messages
    assert [c["id"] for c in last[1]["tool_calls"]] == ["u1", "u2"]
    assert sorted(m["content"] for m in last[2:]) == ["r1", "r2"]


def test_claude_code_after_a_compaction_the_history_starts_anew(tmp_path: Path) -> None:
    events = [
        cc("1", None, "user", "task"),
        cc("2", "1", "assistant", "first"),
        {
            "type": "system",
            "subtype": "compact_boundary",
            "uuid": "b",
            "parentUuid": None,
            "logicalParentUuid": "2",
            "sessionId": "s",
        },
        cc("3", "b", "user", "summary of it", isCompactSummary=True),
        cc("4", "3", "assistant", "second"),
        {"type": "user", "uuid": "5", "parentUuid": "4", "sessionId": "s", "message": {"role": "user", "contenst": "misspelt"}},
        cc("6", "5", "assistant", "third"),
    ]
    (run,) = runs(tmp_path, *events)
    assert seen(run) == [["task"], ["summary of it"], ["summary of it", "second"]]
    assert run.notes == ["events without a message that can be read, left out: 1"]
    (raw,) = runs(tmp_path, *events, mode="raw")
    assert seen(raw)[1] == ["task", "first", "summary of it"]


def test_anthropic_messages(tmp_path: Path) -> None:
    row = {
        "system": [{"type": "text", "text": "sys", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "Bash", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "task"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, *USE]},
            {"role": "user", "content": [*got("u1", "no", True), {"type": "text", "text": "go on"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "end"}]},
        ],
    }
    (run,) = runs(tmp_path, row)
    assert (run.format, run.tools) == ("anthropic", row["tools"])
    assert seen(run) == [["sys", "task"], ["sys", "task", "", "no", "go on"]]
    assert [m["role"] for m in run.steps[1].messages] == ["system", "user", "assistant", "tool", "user"]
    assert json.loads(run.steps[1].messages[2]["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
    assert labels(run, "last_failed") == [None, True]


# ATIF


def step(id_: int, source: str, message: Any = "", **more: Any) -> dict[str, Any]:
    return {"step_id": id_, "source": source, "message": message, **more}


def test_atif_own_observation_copied_context_and_no_call(tmp_path: Path) -> None:
    acted = {"tool_calls": [{"tool_call_id": "c", "function_name": "bash", "arguments": {"x": 1}}],
             "observation": {"results": [{"source_call_id": "c", "content": [{"type": "text", "text": "seen"}]}]}}  # fmt: skip
    one = {
        "schema_version": "ATIF-v1.8",
        "trajectory_id": "t",
        "agent": {"name": "a", "version": "1", "tool_definitions": [{"type": "function"}]},
        "steps": [
            step(1, "user", [{"type": "text", "text": "task"}, {"type": "audio", "source": {}}]),
            step(2, "agent", "copied", is_copied_context=True, **acted),
            step(3, "agent", "by rule", llm_call_count=0),
            step(4, "agent", "acts", **acted),
            step(5, "agent", "end", timestamp="2026-01-01T00:00:00Z"),
        ],
        "final_metrics": {"extra": "OUTCOME"},
        "subagent_trajectories": [
            {"schema_version": "ATIF-v1.9", "agent": {}, "steps": [step(1, "user", "u"), step(2, "agent", "x")]}
        ],
    }
    main, sub = runs(tmp_path, one)
    assert seen(main) == [
        ["task\n[audio]", "copied", "seen", "by rule"],
        ["task\n[audio]", "copied", "seen", "by rule", "acts", "seen"],
    ]
    assert main.tools == [{"type": "function"}]
    assert main.steps[1].at == 1767225600.0
    assert seen(sub) == [["u"]]
    assert "is not known" in sub.notes[0]


def test_atif_summarisation_restarts_the_history(shared: Path) -> None:
    path = shared / "data/trajectories/atif-1.5-terminus2-summarization.json"
    (run,), (raw,) = read(path), read(path, "raw")
    assert isinstance(run, Run)
    assert isinstance(raw, Run)
    assert [len(s.messages) for s in run.steps] == [1, 3, 5, 2, 4, 6, 8]
    assert [len(s.messages) for s in raw.steps] == [1, 3, 5, 9, 11, 13, 15]
    assert run.steps[3].messages[1]["content"].startswith("Here are the answers the other agent provided.")


@pytest.mark.parametrize(
    ("steps", "says"),
    [({}, "steps is not a list"), (["x"], "steps[0] is not a step"), ([{"source": "robot"}], "steps[0].source is none of")],
)
def test_atif_that_is_none(tmp_path: Path, steps: Any, says: str) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps({"schema_version": "ATIF-v1.5", "agent": {}, "steps": steps}))
    (problem,) = read(path)
    assert says in str(problem)


# LangChain, Inspect, chat


def test_langchain_removed_messages_status_and_broken_calls(tmp_path: Path) -> None:
    broken = [{"name": "f", "args": '{"x', "id": "c2", "error": "no JSON"}]
    state = {
        "values": {
            "messages": [
                {"type": "human", "content": "task", "id": "h"},
                {"type": "ai", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}], "id": "a",
                 "tool_calls": [{"name": "f", "args": {"x": 1}, "id": "c", "type": "tool_call"}], "invalid_tool_calls": broken},
                {"type": "tool", "content": "no", "tool_call_id": "c", "status": "error"},
                {"type": "ai", "content": "again", "id": "b"},
                {"type": "remove", "content": "", "id": "a"},
                {"type": "AIMessageChunk", "content": "end"},
            ]
        }
    }  # fmt: skip
    (run,) = runs(tmp_path, state)
    assert seen(run) == [["task"], ["task", "", "no"], ["task", "no", "again"]]
    calls = run.steps[1].messages[1]["tool_calls"]
    assert [c["function"]["arguments"] for c in calls] == ['{"x": 1}', '{"x']
    assert labels(run, "last_failed") == [None, True, None]


def test_langchain_dumps_of_both_kinds_agree(shared: Path) -> None:
    (one,), (two,) = (read(shared / f"data/trajectories/langchain-GENERATED-{n}.json") for n in ("messages_to_dict", "dumpd"))
    assert isinstance(one, Run)
    assert isinstance(two, Run)
    assert [s.messages for s in one.steps] == [s.messages for s in two.steps]


def sample(**more: Any) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": "attachment://a1"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": "bash", "arguments": {"cmd": "ls"}}]},
        {
            "role": "tool",
            "content": "no",
            "tool_call_id": "c",
            "function": "bash",
            "error": {"type": "timeout", "message": "m"},
        },
        {"role": "assistant", "content": "end"},
    ]
    return {
        "id": "q",
        "epoch": 1,
        "target": "OUTCOME",
        "scores": {"s": "OUTCOME"},
        "messages": messages,
        "attachments": {"a1": "long"},
        **more,
    }


def test_inspect_logs_and_archives(tmp_path: Path) -> None:
    (run,) = runs(
        tmp_path, {"version": 2, "eval": {}, "samples": [sample(events=[{"event": "model", "tools": [{"name": "bash"}]}])]}
    )
    assert seen(run) == [["long"], ["long", "", "no"]]
    assert (labels(run, "next_tool"), labels(run, "last_failed")) == (["bash", None], [None, True])
    assert run.tools == [{"name": "bash"}]
    assert "OUTCOME" not in json.dumps([s.messages for s in run.steps])
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}")
        archive.writestr("samples/q_epoch_1.json", json.dumps(sample()))
        archive.writestr("samples/r_epoch_1.json", "{broken")
    one, problem = read(path)
    assert isinstance(one, Run)
    assert [s.messages for s in one.steps] == [s.messages for s in run.steps]
    assert isinstance(problem, Problem)
    path.write_bytes(path.read_bytes()[:-30])
    assert "a broken zip archive" in str(next(iter(read(path))))


def test_an_attachment_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps({"eval": {}, "samples": [sample(attachments={})]}))
    assert "messages[0] refers to an attachment" in str(next(iter(read(path))))


def test_responses_items_and_the_other_form_of_the_same_run_agree(shared: Path) -> None:
    one, two = (
        next(iter(read(shared / f"data/trajectories/mini-v2-GENERATED-{n}.traj.json"))) for n in ("responses-api", "toolcall")
    )
    assert isinstance(one, Run)
    assert isinstance(two, Run)
    assert [s.action for s in one.steps][:7] == [s.action for s in two.steps][:7]
    assert labels(one, "last_failed") == labels(two, "last_failed")
    assert [[m["role"] for m in s.messages] for s in one.steps] == [[m["role"] for m in s.messages] for s in two.steps]


def test_messages_as_text_nulls_everywhere_and_tools(tmp_path: Path) -> None:
    rebench = [
        {"role": r, "content": c, "tool_calls": t, "name": None, "tool_call_id": None}
        for r, c, t in (
            ("system", "s", None),
            ("user", "u", None),
            ("assistant", None, [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]),
        )
    ]
    tools = [{"type": "function", "function": {"name": "f", "minimum": float("inf")}}]
    (run,) = runs(tmp_path, {"trajectory": rebench, "tools": tools, "resolved": 1})
    assert (seen(run), run.tools) == ([["s", "u"]], [{"type": "function", "function": {"name": "f", "minimum": None}}])
    (text,) = runs(tmp_path, {"messages": json.dumps(rebench), "tools": json.dumps(tools)})
    assert (seen(text), text.tools) == (seen(run), run.tools)


# Where files come from


ROW = b'{"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}\n'


def test_packed_files_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows"
    path.write_bytes(gzip.compress(ROW * 3))
    assert len(list(read(path))) == 3
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ROW * 2)))
    found = list(read(Path("-")))
    assert [r.file for r in found] == ["-", "-"]


def test_parquet_without_pyarrow_says_what_to_install(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (problem,) = read(shared / "data/trajectories/nebius-6rows.parquet")
    assert "pip install 'flide-agent[parquet]'" in str(problem)


def test_folders_patterns_and_names(tmp_path: Path) -> None:
    for name in ("b/two.jsonl", "a/one.traj", "a/notes.md", ".hidden/x.json", "c/.x.json", "d.json.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(ROW)
    (tmp_path / "a/loop").symlink_to(tmp_path)
    names = [str(p.relative_to(tmp_path)) for p in sources([tmp_path])]
    assert names == ["d.json.gz", "a/one.traj", "b/two.jsonl"]
    assert [p.name for p in sources([tmp_path / "*/*.traj", tmp_path / "a/notes.md", tmp_path / "no*", Path("-")])] == [
        "one.traj",
        "notes.md",
        "no*",
        "-",
    ]
