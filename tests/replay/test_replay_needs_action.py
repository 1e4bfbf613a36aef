"""Questions that have no answer before the agent's first action: they are not asked there, and shown as -."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from counting_service import EXAMPLE, CountingService
from test_replay_options import replay
from training.asks import AT_START

from flide_agent.replay.moments import AFTER, BEFORE, PROPOSED, Plan
from flide_agent.replay.pack import DEFAULT_PACK, described, load, pack_of
from flide_agent.replay.questions import DEFAULT, QuestionsError
from flide_agent.replay.records import Step

PROGRAM = {"type": "choice", "instructions": "Which program ran last?", "criteria": {"ls": "", "cat": ""}}
NEEDING = frozenset(DEFAULT) - frozenset(AT_START)
"""The model in the package was never shown these before the first command."""


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in text.splitlines()]


def pack(folder: Path, **questions: dict[str, Any]) -> Path:
    path = folder / "pack.json"
    path.write_text(json.dumps(questions))
    return path


def test_the_default_questions_are_asked_where_they_have_an_answer(service: CountingService) -> None:
    result = replay(EXAMPLE, "--steps", "1-3", "--json", "-")
    assert DEFAULT_PACK.needing == NEEDING == {"last_tool_kind", "step_count", "empty_output"}
    assert [set(DEFAULT) - set(q) for _, _, q in service.asked] == [NEEDING, set(), set()]
    assert [set(DEFAULT) - set(r["answers"]) for r in rows(result.stdout)[:-1]] == [NEEDING, set(), set()]
    first, second = (row.split() for row in replay(EXAMPLE, "--steps", "1-2").output.splitlines()[3:5])
    assert (first[6:11], second[6:12]) == (["0.25", "-", "-", "0.25", "-"], ["0.25", "run", "0.50", "1.50", "0.25", "0.25"])


def test_a_pack_says_so(service: CountingService, tmp_path: Path) -> None:
    path = pack(tmp_path, program=PROGRAM | {"needs_action": True}, other=PROGRAM)
    assert replay(EXAMPLE, "--steps", "1-2", "--questions", path).exit_code == 0
    assert [list(q) for _, _, q in service.asked] == [["other"], ["program", "other"]]
    assert all(q == PROGRAM for _, _, questions in service.asked for q in questions.values()), (
        "the key is none of the service's"
    )
    kept = load(path)
    assert pack_of(described(kept), "again") == kept
    with pytest.raises(QuestionsError, match="needs_action must be true or false"):
        load(pack(tmp_path, program=PROGRAM | {"needs_action": 1}))


def test_a_step_without_a_question_left_is_no_decision(service: CountingService, tmp_path: Path) -> None:
    path = pack(tmp_path, program=PROGRAM | {"needs_action": True})
    result = replay(EXAMPLE, "--questions", path, "--json", "-", "--steps", "1-3")
    assert [r["step"] for r in rows(result.stdout)[:-1]] == [2, 3]
    planned = replay(EXAMPLE, "--questions", path, "--dry-run", "--json", "-", "--steps", "1-3")
    assert rows(planned.stdout)[-1]["decisions"] == 2


def test_after_an_action_there_is_one_and_a_proposed_one_is_none_yet() -> None:
    start, action = {"role": "user", "content": "go"}, {"role": "assistant", "content": "ls"}
    result = {"role": "user", "content": "a.py"}
    steps = [
        Step(1, [start], "history", "ls", proposed=[action], result=[result]),
        Step(2, [start, action, result], "history", ""),
    ]
    at = {"b": BEFORE, "p": PROPOSED, "a": AFTER}
    plan = Plan(dict.fromkeys(at, PROGRAM), at, at)
    assert [[(s.index, m) for s, m in parts] for _, parts in plan.parts(steps)] == [[(1, AFTER), (2, BEFORE)]]
    (asked,) = (plan.asked(*found) for found in plan.parts(steps))
    assert (list(asked.questions), asked.candidates) == (["a", "b"], None)
