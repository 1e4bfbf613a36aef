"""The order in which a choice's options are asked: nothing to a model whose card sorts them, as asked to all others."""

from __future__ import annotations

import itertools
import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from service_process import Running, Start

from flide_agent.api import frames, front
from flide_agent.asks import parse_systemone
from flide_agent.card import Card
from flide_agent.decision import Served
from flide_agent.default_model import DIRECTORY
from flide_agent.local import LocalService
from flide_agent.model_files import prompts_of
from flide_agent.prompts import Prompts
from flide_agent.reader import StateReader
from flide_agent.replay.questions import DEFAULT
from flide_agent.settings import Settings

KIND = DEFAULT["last_tool_kind"]
ORDERS = [dict(order) for order in itertools.permutations(KIND["criteria"].items())]
LEVELS = {"type": "score", "instructions": "How far is it?", "criteria": ["nothing", "half", "done"]}
CALL = {"name": "bash", "arguments": '{"command": "grep -rn x src"}'}
MESSAGES = [
    {"role": "user", "content": "Find out why the tests fail."},
    {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "1", "function": CALL}]},
    {"role": "tool", "tool_call_id": "1", "content": "src/a.py:3: x = 1\n" * 30},
]  # fmt: skip


def unsorted(into: Path) -> Path:
    """The model in the package, less what its card says of order."""
    shutil.copytree(DIRECTORY, into, ignore=shutil.ignore_patterns("__pycache__"))
    card = json.loads((into / "card.json").read_text())
    assert card.pop("options") == "sorted"
    (into / "card.json").write_text(json.dumps(card))
    return into


def answered(server: Running, session: str, orders: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Every answer to the question in each of these orders: by itself, in a step, on a candidate, beside another order of it, and in
    the other shape."""
    found = []
    with server.http() as http:
        for order in orders:
            asked = {"q": KIND | {"criteria": order}, "r": KIND | {"criteria": dict(reversed(order.items()))}, "s": LEVELS}
            body = {"state": MESSAGES, "questions": asked}
            found.append(http.post("/v1/systemone", json=body).json()["answers"]["q"])
            body = {"messages": MESSAGES, "questions": asked, "x_candidates": {"c": {"messages": MESSAGES[1:2]}}}
            step = http.post(f"/v1/sessions/{session}/decide", json=body).json()
            found += [step["answers"]["q"], step["answers"]["r"], step["x_candidates"]["c"]["answers"]["q"]]
            assert list(found[-3]["probabilities"]) == list(order), "as asked"
            assert list(found[-2]["probabilities"]) == list(reversed(order))
            choices = [{"value": name, "description": text} for name, text in order.items()]
            other = {"type": "choice", "name": "q", "instructions": KIND["instructions"], "choices": choices}
            body = {"input": "ls -la", "questions": [other]}
            (decided,) = http.post("/v1/decisions", json=body).json()["answers"]
            probabilities = {row["value"]: row["probability"] for row in decided["probabilities"]}
            assert list(probabilities) == list(order)
            found.append({"choice": decided["choice"], "probabilities": probabilities, "confidence": decided["confidence"]})
    return found


FRONT_ENDS = ("--front-ends", "1")


@pytest.mark.parametrize(
    ("more", "orders"), [((), ORDERS), (FRONT_ENDS, ORDERS[::5]), pytest.param(FRONT_ENDS, ORDERS, marks=pytest.mark.bars)]
)
def test_no_order_of_the_options_changes_a_bit(
    start: Start, tmp_path: Path, more: tuple[str, ...], orders: list[dict[str, str]]
) -> None:
    found = answered(start(tmp_path / "s", *more), "order", orders)
    each = 5
    assert len(found) == len(orders) * each
    for kind in range(each):
        first, *others = found[kind::each]
        assert all(answer == first for answer in others), "dicts are equal whatever the order of their keys"
        assert len(set(first["probabilities"].values())) > 1
    assert found[0] == found[1] == found[2]
    assert found[3] != found[1], "on the candidate"


def test_order_changes_what_a_model_without_the_property_says(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s", "--model", str(unsorted(tmp_path / "m")))
    with server.http() as http:
        replies = [
            http.post("/v1/systemone", json={"state": MESSAGES, "questions": {"q": KIND | {"criteria": o}}}) for o in ORDERS
        ]
    found = [reply.json()["answers"]["q"] for reply in replies]
    assert len({answer["probabilities"]["edit"] for answer in found}) > 12
    assert {reply.json()["x_prompt_format"] for reply in replies} == {"flide-1"}


def test_the_local_service_answers_as_the_server_does(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s")
    with LocalService(Settings(store=tmp_path / "l")) as service, server.client() as client:
        for order in ORDERS[::5]:
            asked = {"q": KIND | {"criteria": order}, "s": LEVELS}
            mine, theirs = (s.systemone(MESSAGES, asked, label_mass=True) for s in (service, client))
            assert mine.answers == theirs.answers
            assert mine.x_prompt_format == theirs.x_prompt_format == "flide-1-sorted"


def test_every_way_to_prompts_follows_the_card(tmp_path: Path) -> None:
    plain = unsorted(tmp_path / "m")
    assert [prompts_of(name)[0].sorts_options for name in ("default", str(plain), "dummy:0.8b")] == [True, False, False]
    card, digest = Card.read(DIRECTORY), Prompts.load(DIRECTORY).digest
    for known, sorts in ((card, True), (None, False)):
        hello = frames.Hello(b"{}", Served("m", False, 4096, date(2026, 1, 1), known), False, str(DIRECTORY), digest)
        assert front._prompts(hello).sorts_options is sorts, "checkpoints are the same either way, so the digest is"
    with pytest.raises(ValueError, match="without the model's card"):
        StateReader(Prompts.load(DIRECTORY), Served("m", False, 4096, date(2026, 1, 1), card), Settings())


def test_orders_share_a_branch(tmp_path: Path) -> None:
    """One of the cache, of the same tokens and labels, so that the engine is asked the same."""
    prompts, card = prompts_of("default")
    reader = StateReader(prompts, Served("m", False, 4096, date(2026, 1, 1), card), Settings())
    asked = {f"q{i}": KIND | {"criteria": order} for i, order in enumerate(ORDERS)}
    branches = reader.state("t", parse_systemone({"state": "s", "questions": asked}, Settings())).branches
    assert len({id(branch.tokens) for _, _, branch in branches}) == len({branch.labels for _, _, branch in branches}) == 1
    for _, question, branch in branches:
        shown = [question.options[i].name for i in branch.order] or [o.name for o in question.options]  # type: ignore[union-attr]
        assert shown == ["edit", "look", "run", "search"]
