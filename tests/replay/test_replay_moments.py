"""The three moments of a step: which histories, candidates and labels each question meets, in how few requests."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from counting_service import EXAMPLE, CountingService, copies
from test_replay_readers import STEPS
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.errors import InvalidRequest
from flide_agent.local import LocalService
from flide_agent.replay.decision import Decision
from flide_agent.replay.moments import AFTER, BEFORE, MOMENTS, PROPOSED, Plan
from flide_agent.replay.reading import read
from flide_agent.replay.records import Problem, Run, Step
from flide_agent.replay.walk import Walk
from flide_agent.settings import Settings

PACK = """
[questions.stuck]
type = "noul"
instructions = "Is it stuck?"

[questions.risky]
type = "noul"
instructions = "Is this action risky?"
moment = "proposed"
reference = "security_risk"
map = {LOW = false, HIGH = true}

[questions.failed]
type = "noul"
instructions = "Did the last command fail?"
moment = "after"
reference = "last_failed"
"""
REWRITTEN = {
    "sweagent-10-marshmallow-elided.traj": 7,
    "sweagent-11-DERIVED-query.traj": 7,
    "atif-1.5-terminus2-summarization.json": 1,
}
"""Steps whose history is not the one before with action and result."""
NOUL = {"type": "noul", "instructions": "?"}
ALL = {"b": NOUL, "p": NOUL, "a": NOUL}
AT = {"b": BEFORE, "p": PROPOSED, "a": AFTER}


def replay(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["replay", *map(str, arguments)], catch_exceptions=False)


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in text.splitlines()]


def pack(tmp_path: Path, text: str = PACK) -> Path:
    path = tmp_path / "pack.toml"
    path.write_text(text)
    return path


def runs(path: Path, mode: str = "as-sent") -> list[Run]:
    return [r for r in read(path, mode) if isinstance(r, Run)]


def planned(steps: list[Step], moments: dict[str, str] = AT) -> list[list[tuple[int, str]]]:
    plan = Plan(dict.fromkeys(moments, NOUL), moments)
    return [[(s.index, m) for s, m in parts] for _, parts in plan.parts(steps)]


def chat(tmp_path: Path, *messages: dict[str, Any], **more: Any) -> list[Step]:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": messages, **more}))
    return runs(path)[0].steps


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def test_before_and_proposed_are_one_request_and_after_is_the_next_before() -> None:
    (run,) = runs(EXAMPLE)
    assert planned(run.steps[:3]) == [
        [(1, BEFORE), (1, PROPOSED)],
        [(1, AFTER), (2, BEFORE), (2, PROPOSED)],
        [(2, AFTER), (3, BEFORE), (3, PROPOSED)],
        [(3, AFTER)],
    ]
    assert planned(run.steps[:2], {"a": AFTER}) == [[(1, AFTER)], [(2, AFTER)]]
    assert planned(run.steps[:2], {"p": PROPOSED}) == [[(1, PROPOSED)], [(2, PROPOSED)]]
    assert planned(run.steps[:3], {"b": BEFORE}) == [[(n, BEFORE)] for n in (1, 2, 3)]
    assert planned([run.steps[0], run.steps[2]], {"b": BEFORE, "a": AFTER}) == [  # step 2 is left out: nothing is shared
        [(1, BEFORE)],
        [(1, AFTER)],
        [(3, BEFORE)],
        [(3, AFTER)],
    ]


def test_what_each_question_meets(service: CountingService, tmp_path: Path) -> None:
    result = replay(EXAMPLE, "--steps", "1-3", "--questions", pack(tmp_path), "--json", "-")
    assert result.exit_code == 0
    steps = runs(EXAMPLE)[0].steps[:3]
    assert [messages for _, messages, _ in service.asked] == [*(s.messages for s in steps), steps[2].after()]
    assert service.candidates == [*({"action": {"messages": s.proposed}} for s in steps), None]
    several = ["failed", "stuck", "risky"]
    assert [list(q) for _, _, q in service.asked] == [["stuck", "risky"], several, several, ["failed"]]
    found = rows(result.stdout)[:-1]
    assert [(r["step"], r["moment"], list(r["answers"]), r["request"]) for r in found] == [
        (1, "before", ["stuck"], 1),
        (1, "proposed", ["risky"], 1),
        (1, "after", ["failed"], 2),
        (2, "before", ["stuck"], 2),
        (2, "proposed", ["risky"], 2),
        (2, "after", ["failed"], 3),
        (3, "before", ["stuck"], 3),
        (3, "proposed", ["risky"], 3),
        (3, "after", ["failed"], 4),
    ]
    # The counting service answers 0.25 about a history and 0.75 about a candidate.
    told = {r["moment"]: [a["noul"] for a in r["answers"].values()] for r in found}
    assert told == {"before": [0.25], "proposed": [0.75], "after": [0.25]}
    assert {r["messages"] for r in found if r["step"] == 1 and r["moment"] == "after"} == {len(steps[1].messages)}
    summary = rows(result.stdout)[-1]
    assert (summary["decisions"], summary["requests"]) == (9, 4)
    by_request = {r["request"]: r for r in found}
    assert summary["computed_tokens"] == sum(r["computed_tokens"] for r in by_request.values())
    assert sum(summary["reasons"].values()) == 4


def test_the_screen_names_the_moment_and_counts_a_request_once(service: CountingService, tmp_path: Path) -> None:
    out = replay(EXAMPLE, "--steps", "1-2", "--questions", pack(tmp_path)).output
    assert "step   moment tokens" in out
    assert sum(" proposed " in row and '"' in row for row in out.splitlines()) == 2
    assert "6 decisions in 1 run, 3 requests" in out
    assert "moment" not in replay(EXAMPLE, "--steps", "1-2").output


@pytest.mark.parametrize("name", STEPS)
def test_after_is_the_next_before_unless_the_history_was_rewritten(shared: Path, name: str) -> None:
    """With "raw" every history only grows; "as-sent" differs in files that elide or summarise."""
    path = shared / "data/trajectories" / name
    apart = sum(a.after() != b.messages for r in runs(path) for a, b in pairwise(r.steps))
    assert apart == REWRITTEN.get(name, 0)
    for run in runs(path, "raw"):
        for a, b in pairwise(run.steps):
            assert a.after() == b.messages
            assert a.then == b.labels
            assert a.proposed[0]["role"] == "assistant"
            assert a.result


def test_an_elided_history_is_asked_about_apart(shared: Path) -> None:
    (run,) = runs(shared / "data/trajectories/sweagent-10-marshmallow-elided.traj")
    parts = planned(run.steps)
    alone = [p[0][0] for p in parts if p == [(p[0][0], AFTER)]]
    assert len(alone) == 7
    k = alone[0]
    after, following = run.steps[k - 1].after(), run.steps[k].messages
    assert len(after) == len(following)
    assert "Old environment output" in following[3]["content"]
    assert "Old environment output" not in after[3]["content"]


def test_labels_belong_to_the_moment(service: CountingService, tmp_path: Path) -> None:
    failing = {"role": "tool", "content": "no", "tool_call_id": "c", "is_error": True}
    call = {"id": "c", "type": "function", "function": {"name": "rm", "arguments": "{}"}}
    steps = chat(
        tmp_path,
        said("user", "task"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        failing,
        said("assistant", "look"),
        said("user", "fine") | {"extra": {"returncode": 0}},
    )
    assert [s.labels for s in steps] == [{"next_tool": "rm"}, {"last_failed": True}]
    assert [s.then for s in steps] == [{"last_failed": True}, {"last_failed": False}]
    result = replay(tmp_path / "chat.json", "--questions", pack(tmp_path), "--json", "-")
    told = {(r["step"], r["moment"]): r["labels"] for r in rows(result.stdout)[:-1]}
    assert told[1, "after"] == {"last_failed": True}
    assert told[2, "after"] == {"last_failed": False}
    assert told[1, "proposed"] == {"next_tool": "rm"}
    assert rows(result.stdout)[-1]["scores"]["failed"]["labels"] == {"false": 1, "true": 1}


def test_a_run_that_is_over_has_no_result_of_its_last_step(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/trajectories"
    for name in ("mini-v1-claude35-hello.traj.json", "mini-v2-GENERATED-toolcall.traj.json", "nebius-6rows.jsonl",
                 "sweagent-10-marshmallow-elided.traj", "sweagent-0x-marshmallow-default.traj"):  # fmt: skip
        for run in runs(folder / name):
            assert not run.steps[-1].result, name
            assert planned(run.steps[-1:]) == [[(len(run.steps), BEFORE), (len(run.steps), PROPOSED)]]
    going = [said("user", "task"), said("assistant", "act"), said("user", "seen")]
    assert chat(tmp_path, *going, info={"exit_status": ""})[0].result == going[2:]
    assert chat(tmp_path, *going, info={"exit_status": "Submitted"})[0].result == []


def test_a_failed_try_tells_what_came_back_where_the_next_prompt_does(tmp_path: Path) -> None:
    task, bad, told = said("user", "task"), said("assistant", "bad"), said("user", "not formatted correctly")
    first = {"action": "bad", "response": "bad", "observation": "", "query": [task]}
    second = {"action": "good", "response": "good", "observation": "ok", "query": [task, bad, told]}
    path = tmp_path / "a.traj"
    path.write_text(
        json.dumps({"history": [task, said("assistant", "good"), said("user", "ok")], "trajectory": [first, second]})
    )
    (run,) = runs(path)
    assert [(s.proposed, s.result) for s in run.steps] == [([bad], [told]), ([said("assistant", "good")], [said("user", "ok")])]
    (raw,) = runs(path, "raw")
    assert raw.steps[0].result == []


def test_several_actions_of_one_answer_are_one_proposal(shared: Path, tmp_path: Path) -> None:
    def acted(id_: int, call: str) -> dict[str, Any]:
        said = {"id": "r1", "choices": [{"message": {"tool_calls": [{"id": call, "function": {"arguments": f"[{id_}]"}}]}}]}
        meta = {"function_name": "f", "tool_call_id": call, "model_response": said, "total_calls_in_response": 2}
        return {
            "id": id_,
            "source": "agent",
            "action": "run",
            "args": {"command": "x", "thought": ""},
            "tool_call_metadata": meta,
        }

    events = [{"id": 1, "source": "user", "action": "message", "args": {"content": "task"}}, acted(2, "a"),
              {"id": 3, "source": "agent", "observation": "run", "content": "one", "extras": {}}, acted(4, "b"),
              {"id": 5, "source": "agent", "observation": "run", "content": "two", "extras": {}},
              {"id": 6, "source": "agent", "action": "finish", "args": {}}]  # fmt: skip
    path = tmp_path / "events.json"
    path.write_text(json.dumps(events))
    (run,) = runs(path)
    assert [c["function"]["arguments"] for c in run.steps[0].proposed[0]["tool_calls"]] == ["[2]", "[4]"]
    assert [m["content"] for m in run.steps[0].result] == ["one", "two"]
    assert run.steps[0].after() == run.steps[1].messages


@pytest.mark.parametrize("moment", ["later", "", 7, None])
def test_a_moment_that_is_none(service: CountingService, tmp_path: Path, moment: object) -> None:
    path = tmp_path / "q.json"
    path.write_text(json.dumps({"a": {**NOUL, "moment": moment}}))
    result = replay(EXAMPLE, "--questions", path)
    assert result.exit_code == 2
    assert "moment must be one of before, proposed, after" in result.output.replace("\n", " ")


def test_a_tokenizer_without_candidates_stops_the_replay(service: CountingService, tmp_path: Path) -> None:
    service.refuse[len(runs(EXAMPLE)[0].steps[0].messages)] = InvalidRequest.at(("x_candidates",), "no candidates here")
    result = replay(*copies(tmp_path, 2), "--questions", pack(tmp_path))
    assert result.exit_code == 2
    assert "stopped: " in result.output


def test_a_recording_holds_every_moment(service: CountingService, tmp_path: Path) -> None:
    recording, questions = tmp_path / "r.jsonl", pack(tmp_path)
    assert replay(EXAMPLE, "--steps", "1-2", "--questions", questions, "--record", recording).exit_code == 0
    kept = rows(recording.read_text())[1:]
    assert [(r["step"], r["moment"]) for r in kept] == [(s, m) for s in (1, 2) for m in MOMENTS]
    assert len({r["history"] for r in kept}) == 5  # after 1 is before 2
    again = replay(EXAMPLE, "--steps", "1-2", "--questions", questions, "--verify", recording)
    assert (again.exit_code, "6 decisions as recorded, to the last bit" in again.output) == (0, True)
    moved = pack(tmp_path, PACK.replace('moment = "after"', 'moment = "before"'))
    assert replay(EXAMPLE, "--steps", "1-2", "--questions", moved, "--verify", recording).exit_code == 4


def test_moments_through_the_real_service() -> None:
    """`after` has the bits of the next `before`; `proposed` agrees with the action in the history up to rounding; one request."""
    questions = {
        f"{m}-{name}": q for m in MOMENTS for name, q in {"a": NOUL, "b": {**NOUL, "instructions": "Is it risky?"}}.items()
    }
    moments = {name: name.partition("-")[0] for name in questions}
    (run,) = runs(EXAMPLE)
    with LocalService(Settings(device="cpu")) as local:
        walk = Walk(local, questions, (1, 3), moments=moments)
        found: dict[tuple[int, str], Decision] = {}
        for event in walk.over([run]):
            assert not isinstance(event, Problem), event
            if isinstance(event, Decision):
                found[event.step.index, event.moment] = event
        assert local.service.dispatcher.counters.rounds == 4
        plain = {name.partition("-")[2]: q for name, q in questions.items() if moments[name] == BEFORE}
        judged = local.decide("x", messages=[*run.steps[1].messages, *run.steps[1].proposed], questions=plain).answers
    for name in plain:
        after, before = found[1, AFTER].answers[f"after-{name}"], found[2, BEFORE].answers[f"before-{name}"]
        assert after == before
        proposed = found[2, PROPOSED].answers[f"proposed-{name}"]
        assert proposed["noul"] == pytest.approx(judged[name].noul, abs=1e-4)  # type: ignore[union-attr]
        assert proposed != before
