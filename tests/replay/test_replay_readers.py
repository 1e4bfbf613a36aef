"""Readers: the right number of steps, and before each one exactly what the agent saw."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flide_agent.replay.reading import read
from flide_agent.replay.records import Problem, Run

STEPS = {
    "sweagent-0x-marshmallow-default.traj": ("swe-agent-0.x", [14]),
    "sweagent-0x-pydicom-demo-in-history.traj": ("swe-agent-0.x", [12]),
    "sweagent-10-history-only.traj": ("swe-agent-history", [5]),
    "sweagent-10-marshmallow-elided.traj": ("swe-agent-1.0", [13]),
    "sweagent-101-pandas-claude-cachecontrol.traj": ("swe-agent-1.0.1", [17]),
    "sweagent-11-DERIVED-query.traj": ("swe-agent-1.1", [13]),
    "nebius-6rows.jsonl": ("nebius", [4, 1, 9, 21, 39, 298]),
    "mini-fixture-bare-list.traj.json": ("chat", [10]),
    "mini-v1-claude35-hello.traj.json": ("mini-swe-agent-1", [3]),
    "mini-v1-GENERATED-textbased.traj.json": ("mini-swe-agent-1", [12]),
    "mini-v2-GENERATED-toolcall.traj.json": ("mini-swe-agent-1.1", [11]),
    "mini-v2-GENERATED-responses-api.traj.json": ("mini-swe-agent-1.1", [11]),
    "nebius-6rows.parquet": ("nebius", [4, 1, 9, 21, 39, 298]),
    "openhands-events-gui.json": ("openhands", [5]),
    "openhands-events-cli-0.58.json": ("openhands", [2]),
    "openhands-resolver-output.jsonl": ("openhands", [4, 22]),
    "openhands-sdk-events.jsonl": ("openhands-sdk", [2]),
    "atif-1.5-openhands.json": ("atif-v1.5", [2]),
    "atif-1.5-terminus2-summarization.json": ("atif-v1.5", [7]),
    "claude-code-session.jsonl": ("claude-code", [5]),
    "inspect-ai-log-images.json": ("inspect", [1]),
    "langchain-GENERATED-messages_to_dict.json": ("langchain", [5]),
    "langchain-GENERATED-dumpd.json": ("langchain", [5]),
    "openai-messages-listparts-claude.json": ("chat", [5]),
    "openai-chat-tau-airline-5.jsonl": ("chat", [15, 5, 11, 30, 12]),
}
"""Format and decision steps of each file, from the README beside the files."""


def runs(path: Path, mode: str = "as-sent") -> list[Run]:
    found = list(read(path, mode))
    assert not [p for p in found if isinstance(p, Problem)], found
    return [r for r in found if isinstance(r, Run)]


def written(tmp_path: Path, value: Any, name: str = "run") -> Path:
    path = tmp_path / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def text_of(raw: dict[str, Any]) -> str:
    """Content of a SWE-agent message, worked out apart from the reader."""
    content = raw["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def seen(run: Run) -> list[list[tuple[str, str]]]:
    return [[(m["role"], m["content"]) for m in s.messages] for s in run.steps]


def test_every_shared_file_is_covered(shared: Path) -> None:
    assert {p.name for p in (shared / "data/trajectories").iterdir() if p.is_file()} == set(STEPS) | {"README.md"}


def test_the_counts_are_those_of_the_readme_beside_the_files(shared: Path) -> None:
    text = (shared / "data/trajectories/README.md").read_text(encoding="utf-8")
    cells = [[c.strip() for c in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("|")]
    told = {c[0]: [int(n) for n in c[6].split("/")] for c in cells if len(c) == 10 and c[6].replace("/", "").isdigit()}
    assert set(STEPS) - set(told) == {"nebius-6rows.parquet"}  # the same rows as the JSONL
    assert told == {name: steps for name, (_, steps) in STEPS.items() if name in told}


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_shared_files(shared: Path, name: str) -> None:
    form, counts = STEPS[name]
    found = runs(shared / "data/trajectories" / name)
    assert [len(r.steps) for r in found] == counts
    assert {r.format for r in found} == {form}
    assert all([s.index for s in r.steps] == list(range(1, len(r.steps) + 1)) for r in found)


@pytest.mark.parametrize("name", STEPS)
def test_found_by_content_not_by_name(shared: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "anything.bin"
    path.write_bytes((shared / "data/trajectories" / name).read_bytes())
    assert [len(r.steps) for r in runs(path)] == STEPS[name][1]


def test_nebius_history_is_what_stands_before_each_ai_item(shared: Path) -> None:
    path = shared / "data/trajectories/nebius-6rows.jsonl"
    rows = [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
    names = {"ai": "assistant"}
    for run, row in zip(runs(path), rows, strict=True):
        items = [(names.get(i["role"], i["role"]), i["system_prompt"] or i["text"]) for i in row["trajectory"]]
        expected = [items[:k] for k, (role, _) in enumerate(items) if role == "assistant"]
        assert seen(run) == expected
        assert run.name == row["instance_id"]


@pytest.mark.parametrize("name", ["sweagent-10-marshmallow-elided.traj", "sweagent-101-pandas-claude-cachecontrol.traj"])
def test_10_takes_the_messages_of_the_step_before(shared: Path, name: str) -> None:
    path = shared / "data/trajectories" / name
    value = json.loads(path.read_text(encoding="utf-8"))
    (run,) = runs(path)
    expected = [[(m["role"], text_of(m)) for m in step["messages"]] for step in value["trajectory"]]
    assert seen(run)[1:] == expected[:-1]
    assert seen(run)[0] == [(m["role"], text_of(m)) for m in value["history"][:2]]
    assert [s.source for s in run.steps] == ["history"] + ["messages"] * (len(expected) - 1)


def test_11_takes_its_own_query_and_agrees_with_10(shared: Path) -> None:
    folder = shared / "data/trajectories"
    (shifted,) = runs(folder / "sweagent-11-DERIVED-query.traj")
    (original,) = runs(folder / "sweagent-10-marshmallow-elided.traj")
    assert [s.messages for s in shifted.steps] == [s.messages for s in original.steps]
    assert {s.source for s in shifted.steps} == {"query"}


@pytest.mark.parametrize(
    ("name", "mode", "growing"),
    [
        ("sweagent-10-marshmallow-elided.traj", "as-sent", 5),  # 4 of the 12 pairs of `messages`, and the very first prompt
        ("sweagent-10-marshmallow-elided.traj", "raw", 12),
        ("sweagent-11-DERIVED-query.traj", "raw", 12),
        ("sweagent-101-pandas-claude-cachecontrol.traj", "as-sent", 16),
        ("sweagent-0x-marshmallow-default.traj", "as-sent", 13),
    ],
)
def test_how_many_prompts_only_grow(shared: Path, name: str, mode: str, growing: int) -> None:
    (run,) = runs(shared / "data/trajectories" / name, mode)
    pairs = list(pairwise(s.messages for s in run.steps))
    assert sum(b[: len(a)] == a for a, b in pairs) == growing


@pytest.mark.parametrize("mode", ["as-sent", "raw"])
@pytest.mark.parametrize("name", [n for n in STEPS if n.startswith("sweagent") and "history-only" not in n])
def test_sweagent_history_ends_with_the_last_observation_and_hides_the_action(shared: Path, name: str, mode: str) -> None:
    path = shared / "data/trajectories" / name
    trajectory = json.loads(path.read_text(encoding="utf-8"))["trajectory"]
    (run,) = runs(path, mode)
    for k, step in enumerate(run.steps):
        assert step.action == trajectory[k]["action"]
        if k:
            before = trajectory[k - 1]
            assert before["observation"].strip()[:80] in step.messages[-1]["content"]
            assert step.messages[-2]["role"] == "assistant"
            assert step.messages[-2]["content"].strip() == before["response"].strip()
        assert step.messages[-1]["role"] in ("user", "tool")


def test_the_demonstration_stays_in_the_history(shared: Path) -> None:
    (run,) = runs(shared / "data/trajectories/sweagent-0x-pydicom-demo-in-history.traj")
    assert [m["role"] for m in run.steps[0].messages] == ["system", "user", "user"]
    assert len(run.steps[0].messages[1]["content"]) > 19_000


def agent(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "agent": "main", **more}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text, "agent": "main"}


def tried(response: str, observation: str = "", **more: Any) -> dict[str, Any]:
    return {"action": response, "observation": observation, "response": response, "thought": "", "state": {}, **more}


def test_failed_tries_are_steps_on_the_same_history(tmp_path: Path) -> None:
    # `again` fails twice with the words of an earlier success, then succeeds: only the last try is in the history.
    history = [user("task"), agent("ls"), user("files"), agent("ls"), user("files 2"), agent("done"), user("bye")]
    trajectory = [tried("ls", "files"), tried("bad"), tried("ls"), tried("ls", "files 2"), tried("done", "bye")]
    (run,) = runs(written(tmp_path, {"history": history, "trajectory": trajectory}))
    assert [len(s.messages) for s in run.steps] == [1, 3, 3, 3, 5]
    assert [s.action for s in run.steps] == ["ls", "bad", "ls", "ls", "done"]


def test_more_steps_than_agent_messages_without_any_equal_text(tmp_path: Path) -> None:
    history = [user("task"), agent("one"), user("o1"), agent("rewritten"), user("o2")]
    trajectory = [tried("one", "o1"), tried("lost"), tried("two", "o2")]
    (run,) = runs(written(tmp_path, {"history": history, "trajectory": trajectory}))
    assert [len(s.messages) for s in run.steps] == [1, 5, 5]


def test_a_query_shows_the_temporary_messages_of_a_failed_try(tmp_path: Path) -> None:
    first = [user("task")]
    second = [user("task"), agent("bad"), user("Your output was not formatted correctly")]
    trajectory = [tried("bad", query=first), tried("good", "ok", query=second)]
    value = {"history": [user("task"), agent("good"), user("ok")], "trajectory": trajectory}
    (run,) = runs(written(tmp_path, value))
    assert [len(s.messages) for s in run.steps] == [1, 3]
    (raw,) = runs(written(tmp_path, value), "raw")
    assert [len(s.messages) for s in raw.steps] == [1, 1]


def test_what_the_tool_wrote_when_the_run_ended_is_no_decision(tmp_path: Path) -> None:
    history = [user("task"), agent("ls"), user("files"), agent("Exit due to context window"), user("Exited (autosubmitted)")]
    trajectory = [tried("ls", "files"), tried("Exit due to context window", "Exited") | {"action": ""}]
    (run,) = runs(written(tmp_path, {"history": history, "trajectory": trajectory}))
    assert [s.action for s in run.steps] == ["ls"]


def test_agent_messages_of_a_demonstration_are_no_decisions(tmp_path: Path) -> None:
    history = [user("demo") | {"is_demo": True}, agent("demo act", is_demo=True), user("task"), agent("act"), user("seen")]
    (run,) = runs(written(tmp_path, {"history": history, "trajectory": [tried("act", "seen")]}))
    assert [len(s.messages) for s in run.steps] == [3]
    (alone,) = runs(written(tmp_path, {"history": history}))
    assert [len(s.messages) for s in alone.steps] == [3]


def test_attempts_are_runs_and_the_copy_at_the_top_is_not(tmp_path: Path) -> None:
    one = {"history": [user("task"), agent("a"), user("x")], "trajectory": [tried("a", "x")], "info": {}}
    two = {
        "history": [user("task"), agent("b"), user("y"), agent("c")],
        "trajectory": [tried("b", "y"), tried("c")],
        "info": {},
    }
    found = runs(written(tmp_path, two | {"attempts": [one, two], "environment": "env"}))
    assert [(r.row, len(r.steps), r.name) for r in found] == [(1, 1, "env"), (2, 2, "env")]


def test_tool_calls_keep_id_name_and_arguments(shared: Path) -> None:
    (run,) = runs(shared / "data/trajectories/sweagent-10-history-only.traj")
    last = run.steps[-1].messages
    (call,) = last[2]["tool_calls"]
    assert call["function"]["name"]
    assert json.loads(call["function"]["arguments"])
    assert last[3]["role"] == "tool"
    assert last[3]["tool_call_id"] == call["id"]
    assert set().union(*last) <= {"role", "content", "name", "tool_calls", "tool_call_id"}


OUTCOME = "OUTCOME-4711"


def test_no_outcome_reaches_a_prompt(tmp_path: Path) -> None:
    history = [user("task"), agent("ls", thought="t", score=OUTCOME), user("files"), agent("submit"), user(OUTCOME)]
    steps = [tried("ls", "files", query=[user("task") | {"reward": OUTCOME}]), tried("submit", OUTCOME, query=history[:3])]
    sent_as = [
        {
            "history": history,
            "trajectory": [s | {"state": {"diff": OUTCOME}, "extra_info": {"x": OUTCOME}} for s in steps],
            "info": {"submission": OUTCOME, "exit_status": OUTCOME, "edited_files30": OUTCOME, "review": OUTCOME},
            "replay_config": OUTCOME,
            "environment": "e",
        },
        {
            "trajectory": [
                {"role": "system", "system_prompt": "s", "text": None, "mask": OUTCOME, "cutoff_date": OUTCOME},
                {"role": "user", "system_prompt": None, "text": "u", "mask": False, "cutoff_date": None},
                {"role": "ai", "system_prompt": None, "text": "a", "mask": True, "cutoff_date": None},
            ],
            "target": OUTCOME,
            "eval_logs": OUTCOME,
            "generated_patch": OUTCOME,
            "exit_status": OUTCOME,
        },
        {
            "messages": [
                user("u"),
                agent("a", extra={"response": OUTCOME, "cost": OUTCOME}, score=OUTCOME),
                user("r") | {"extra": {"returncode": OUTCOME}},
                {"role": "exit", "content": OUTCOME, "extra": {"submission": OUTCOME}},
                agent("after the exit"),
            ],
            "info": {"submission": OUTCOME},
            "resolved": OUTCOME,
            "model_patch": OUTCOME,
            "reward": OUTCOME,
        },
    ]
    for value in sent_as:
        for mode in ("as-sent", "raw"):
            (run,) = runs(written(tmp_path, value), mode)
            assert run.steps
            assert OUTCOME not in json.dumps([s.messages for s in run.steps])


def test_outcomes_of_shared_files_stay_out(shared: Path) -> None:
    rows = [json.loads(r) for r in (shared / "data/trajectories/nebius-6rows.jsonl").read_text(encoding="utf-8").splitlines()]
    found = runs(shared / "data/trajectories/nebius-6rows.jsonl")
    for run, row in zip(found, rows, strict=True):
        whole = json.dumps([s.messages for s in run.steps[-1:]])
        for field in ("generated_patch", "eval_logs"):
            if row[field]:
                assert json.dumps(row[field])[1:-1] not in whole
    (mini,) = runs(shared / "data/trajectories/mini-v2-GENERATED-toolcall.traj.json")
    assert all(m["role"] != "exit" for s in mini.steps for m in s.messages)
