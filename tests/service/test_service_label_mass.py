"""`x_label_mass`: how much of the whole vocabulary's probability an answer's labels hold."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from flide_engine.segments import Request, Round
from null_engine import open_null
from service_process import Running

from flide_agent import asks
from flide_agent.errors import InternalError, InvalidRequest
from flide_agent.local import LocalService, Service
from flide_agent.reading import build_request, label_mass
from flide_agent.settings import Settings

QUESTIONS: dict[str, Any] = {
    "failed": {"type": "noul", "instructions": "Did it fail?"},
    "next": {"type": "choice", "instructions": "What next?", "criteria": {"edit": None, "test": "run the tests", "stop": None}},
    "risk": {"type": "score", "instructions": "How risky?", "criteria": ["none", "some", "much"]},
}
MESSAGES = [{"role": "user", "content": f"step {i}: " + "more output " * 20} for i in range(6)]
MANY = {f"q{i}": {"type": "noul", "instructions": f"Is number {i} so?"} for i in range(60)}


def masses(answers: Any) -> dict[str, float]:
    return {key: a.x_label_mass for key, a in answers.items()}


def bare(answers: Any) -> dict[str, Any]:
    return {key: msgspec.structs.replace(a, x_label_mass=None) for key, a in answers.items()}


def test_it_comes_when_asked_for_and_changes_no_answer(server: Running) -> None:
    with server.client() as client:
        plain = client.systemone("make: *** Error 2", QUESTIONS)
        asked = client.systemone("make: *** Error 2", QUESTIONS, label_mass=True)
        one = client.systemone("make: *** Error 2", {"next": QUESTIONS["next"]}, label_mass=True)
        step = client.decide("mass", messages=MESSAGES, questions=QUESTIONS, label_mass=True,
                             candidates={"c": {"messages": MESSAGES[:1]}})  # fmt: skip
        session = client.systemone(MESSAGES, QUESTIONS, session={"id": "mass-2"}, label_mass=True)
        client.delete("mass")
        client.delete("mass-2")
    assert masses(plain.answers) == dict.fromkeys(QUESTIONS)
    assert all(0 < m < 1 for m in masses(asked.answers).values())
    assert len(set(masses(asked.answers).values())) == 3
    assert bare(asked.answers) == plain.answers
    assert one.answers["next"] == asked.answers["next"], "the same bits beside other questions"
    assert masses(step.answers) == masses(session.answers)
    assert step.x_candidates is not None
    beyond = masses(step.x_candidates["c"].answers)
    assert all(0 < m < 1 for m in beyond.values())
    assert beyond != masses(step.answers)


def test_in_the_decisions_shape(server: Running) -> None:
    body = {"input": "s", "questions": [{"type": "predicate", "instructions": "Did it fail?"}]}
    http = server.http()
    (plain,), (asked,) = (http.post("/v1/decisions", json=body | {"x_label_mass": x}).json()["answers"] for x in (False, True))
    mass = asked.pop("x_label_mass")
    assert asked == plain
    assert mass == http.post("/v1/systemone", json={"state": "s", "x_label_mass": True,
                             "questions": {"q": QUESTIONS["failed"]}}).json()["answers"]["q"]["x_label_mass"]  # fmt: skip


def test_it_is_the_labels_share_of_the_full_softmax_and_the_same_in_slices() -> None:
    """Against the engine asked for the logits of the whole vocabulary as labels."""
    settings = Settings(memory_bytes=128 << 20, device="cpu", slice_tokens=128)
    with LocalService(settings) as local:
        engine, reader = local.service.engine, local.service.decider.reader
        got = masses(local.systemone("a state " * 40, MANY, label_mass=True).answers)
        assert local.service.dispatcher.counters.slices > 1
        assert got == masses(local.systemone("a state " * 40, MANY, label_mass=True).answers), "resumed too"
        alone = masses(local.systemone("a state " * 40, {"q7": MANY["q7"]}, label_mass=True).answers)
        assert alone == {"q7": got["q7"]}
        ask = asks.parse_systemone({"state": "a state " * 40, "questions": {"q7": MANY["q7"]}}, settings)
        request = build_request(reader.read("default", ask), None)
        (readout,) = request.segments[1].readouts
        everything = tuple(range(engine.info.vocab_size))
        branch = replace(request.segments[1], readouts=(replace(readout, labels=everything),))
        trunk = replace(request.segments[0], saves=())
        logits = engine.run(Round((Request((trunk, branch)),))).results[0].logits[1][0].astype(np.float64)
        p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        assert alone["q7"] == pytest.approx(p[list(readout.labels)].sum(), rel=1e-5)


def test_an_engine_that_cannot_refuses(tmp_path: Path) -> None:
    async def go() -> None:
        service = cast(Service, open_null(Settings(store=tmp_path / "s")))
        ask = asks.parse_systemone({"state": "s", "questions": QUESTIONS, "x_label_mass": True}, service.settings)
        with pytest.raises(InvalidRequest, match="label mass needs a product") as refused:
            await service.decider.decide("t", ask)
        assert refused.value.details[0]["loc"] == ["body", "x_label_mass"]
        await service.close()

    asyncio.run(go())


def test_labels_that_hold_everything_hold_one() -> None:
    logits = np.array([3.0, 1.0], np.float32)
    total = float(np.float32(np.log(np.exp(logits.astype(np.float64)).sum())))
    assert label_mass(logits, np.nextafter(np.float32(total), np.float32(0))) == 1.0
    assert label_mass(logits, total + 1) == pytest.approx(1 / np.e, rel=1e-6)
    for bad in (None, float("nan"), float("inf")):
        with pytest.raises(InternalError):
            label_mass(logits, bad)
