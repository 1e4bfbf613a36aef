"""A model's card: which questions it covers, temperatures, and what a service says of answers outside it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flide_agent.card import Card, CardError, plain
from flide_agent.default_model import DIRECTORY
from flide_agent.local import LocalService
from flide_agent.questions import parse_questions
from flide_agent.reading import probabilities
from flide_agent.settings import Settings

FAILED = {"type": "noul", "instructions": "Did the last command fail?", "criteria": {"true": "an error", "false": "no error"}}
WHICH = {
    "type": "choice",
    "instructions": "Which tool came last?",
    "criteria": {"look": "reads a file", "run": "runs a program"},
}
NAMED = {"type": "choice", "instructions": "Which program?", "criteria": {"ls": None, "cat": None, "rm": None}}
STEPS = {"type": "score", "instructions": "How many steps?", "criteria": ["few", "many"]}
CARD: dict[str, Any] = {
    "trained_tokens": 512,
    "temperatures": {"noul": 2.0, "choice": 0.5},
    "questions": {
        "failed": {
            "type": "noul",
            "ask": FAILED,
            "wordings": ["Did the last command fail?"],
            "opposite": ["Did the last command work?"],
            "sides": [["an error", "no error"]],
        },
        "which": {
            "type": "choice",
            "ask": WHICH,
            "wordings": ["Which tool came last?"],
            "options": {
                "look": {"names": ["look", "view"], "texts": ["reads a file"]},
                "run": {"names": ["run"], "texts": ["runs a program"]},
            },
        },
        "named": {"type": "choice", "wordings": ["Which program?"], "names": 3},
        "steps": {"type": "score", "ask": STEPS, "wordings": ["How many steps?"], "levels": [["few", "many"]]},
    },
}  # fmt: skip


def _written(directory: Path, card: object = CARD) -> Path:
    shutil.copytree(DIRECTORY, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "card.json").write_text(json.dumps(card))
    return directory


def _with(question: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {k: v for k, v in (question | changes).items() if v is not None}


@pytest.mark.parametrize(
    ("question", "covered"),
    [
        (FAILED, True),
        (_with(FAILED, instructions="  did the LAST command\nfail ?"), True),
        (_with(FAILED, instructions="Did the last command work?", criteria={"true": "no error", "false": "an error"}), True),
        (_with(FAILED, instructions="Did the last command work?"), False),
        (_with(FAILED, criteria={"true": "no error", "false": "an error"}), False),
        (_with(FAILED, instructions="Did the last command work?", criteria=None), True),
        (_with(FAILED, criteria=None), True),
        (_with(FAILED, criteria={"true": "it was slow", "false": "it was fast"}), False),
        (_with(FAILED, instructions="Did the last command fail badly?"), False),
        (WHICH, True),
        (_with(WHICH, criteria={"run": "runs a program", "view": "reads a file"}), True),
        (_with(WHICH, criteria={"reads a file": None, "runs a program": None}), True),
        (_with(WHICH, criteria={"look": "reads a file"}), False),
        (_with(WHICH, criteria={"look": "reads a file", "run": "runs a program", "other": "else"}), False),
        (_with(WHICH, criteria={"look": "runs a program", "run": "reads a file"}), False),
        (NAMED, True),
        (_with(NAMED, criteria={"pytest": None, "cat": None, "rm": None}), True),
        (_with(NAMED, criteria={"ls": None, "cat": None}), False),
        (_with(NAMED, criteria={"ls": "lists", "cat": None, "rm": None}), False),
        (STEPS, True),
        (_with(STEPS, criteria=["many", "few"]), False),
        (_with(FAILED, type="score", criteria=["few", "many"]), False),
    ],
)
def test_what_a_card_covers(tmp_path: Path, question: dict[str, Any], covered: bool) -> None:
    card = Card.read(_written(tmp_path))
    assert card is not None
    questions = parse_questions({"q": question})
    assert card.outside(questions, 512) == ({} if covered else {"q": "question"})
    assert card.outside(questions, 513) == {"q": "history"}
    assert card.asks() == {"failed": FAILED, "which": WHICH, "steps": STEPS}


def test_a_question_may_have_a_temperature_of_its_own(tmp_path: Path) -> None:
    card = Card.read(_written(tmp_path, CARD | {"temperatures": {"noul": 2.0, "failed": 3.0}}))
    assert card is not None
    asked = parse_questions({"f": FAILED, "m": {"type": "noul", "instructions": "Is it slow?"}, "s": STEPS})
    assert [card.temperature(q) for q in asked.values()] == [3.0, 2.0, 1.0]


def test_a_temperature_divides_the_logits() -> None:
    logits = np.array([2.0, 0.0], np.float32)
    assert probabilities(logits, 2.0) == pytest.approx(probabilities(logits / 2))
    assert np.array_equal(probabilities(logits, 1.0), probabilities(logits))
    assert plain(" Is  it so?!") == "is it so"


@pytest.mark.parametrize(
    "broken",
    [
        {},
        CARD | {"temperatures": {"noul": 0}},
        CARD | {"trained_tokens": "many"},
        CARD | {"misspelt": 1},
        CARD | {"options": "shuffled"},
    ],
)
def test_a_card_that_cannot_be_read_names_its_file(tmp_path: Path, broken: object) -> None:
    with pytest.raises(CardError, match=r"card\.json"):
        Card.read(_written(tmp_path, broken))


def test_options_stand_as_asked_unless_a_card_sorts_them(tmp_path: Path) -> None:
    least = {"trained_tokens": 262144, "temperatures": {}, "questions": {}, "options": "sorted"}
    found = [Card.read(_written(tmp_path / name, card)) for name, card in (("a", CARD), ("b", least))]
    assert [card and card.options for card in found] == ["asked", "sorted"]
    shipped = Card.read(DIRECTORY)
    assert shipped is not None
    assert shipped.options == "sorted"


def test_a_model_without_a_card_is_served_as_it_is(tmp_path: Path) -> None:
    assert Card.read(tmp_path) is None


def test_a_service_marks_what_is_outside_and_calibrates(tmp_path: Path) -> None:
    plain_model = _written(tmp_path / "plain")
    (plain_model / "card.json").unlink()
    asked = {"failed": FAILED, "mood": {"type": "noul", "instructions": "Is the agent happy?"}, "steps": STEPS}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "ls"}, {"role": "user", "content": "a.py"}]
    with LocalService(Settings(model=str(_written(tmp_path / "card")), store=tmp_path / "a")) as service:
        reply = service.decide("s", messages=messages, questions=asked)
        assert reply.x_out_of_scope == {"mood": "question"}
        long = {"c": {"messages": [{"role": "assistant", "content": "x " * 600}]}}
        judged = service.decide("s", messages=messages, questions={"failed": FAILED}, candidates=long)
        assert judged.x_out_of_scope == {"failed": "history"}, "what is judged is the history with the candidate"
        assert service.systemone("word " * 600, {"failed": FAILED}).x_out_of_scope == {"failed": "history"}
        assert service.systemone("word", {"failed": FAILED}).x_out_of_scope == {}
    with LocalService(Settings(model=str(plain_model), store=tmp_path / "b")) as service:
        raw = service.decide("s", messages=messages, questions=asked)
    assert raw.x_out_of_scope == {}
    for name, heat in (("failed", 2.0), ("mood", 2.0)):
        cold, warm = raw.answers[name].noul, reply.answers[name].noul  # type: ignore[union-attr]
        assert np.log(cold / (1 - cold)) / heat == pytest.approx(np.log(warm / (1 - warm)), abs=1e-9)
    assert raw.answers["steps"] == reply.answers["steps"], "its type has no temperature in the card"


def test_a_service_of_random_weights_says_so_in_every_answer(tmp_path: Path) -> None:
    with LocalService(Settings(store=tmp_path / "a")) as service:
        decider = service.service.decider
        assert not decider.served.untrained
        assert not service.systemone("word", {"failed": FAILED}).x_untrained
        decider.served = dataclasses.replace(decider.served, untrained=True)
        assert service.systemone("word", {"failed": FAILED}).x_untrained
