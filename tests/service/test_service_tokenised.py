"""Requests that were read elsewhere: the engine is asked the same, and the answers have the same bits."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from flide_engine.segments import Request
from null_engine import open_null

from flide_agent import default_model
from flide_agent.arrivals import Arrivals
from flide_agent.asks import parse_systemone
from flide_agent.card import Card
from flide_agent.decision import Served
from flide_agent.errors import InternalError, InvalidRequest, TooLong, UnknownModel
from flide_agent.prompts import Prompts
from flide_agent.questions import answer_of
from flide_agent.reader import StateReader, check
from flide_agent.reading import Outcome, Reading, Tokenised, build_request, distributions, probabilities, read_answers
from flide_agent.settings import Settings

DAY = date(2026, 1, 1)
QUESTIONS: dict[str, Any] = {
    "next": {"type": "choice", "instructions": "What next?", "criteria": {"edit": None, "test": "run the tests", "stop": None}},
    "failed": {"type": "noul", "instructions": "Did the last command fail?"},
    "far": {"type": "score", "instructions": "How far is it?", "criteria": ["nothing", "half", "done"]},
}


@pytest.fixture(scope="module")
def reader() -> StateReader:
    served = Served("m", False, 4096, DAY, Card(4096, {"noul": 1.7}, {}))
    return StateReader(Prompts.load(default_model.DIRECTORY), served, Settings(max_question_tokens=200))


def read(reader: StateReader, state: Any, *, mass: bool = False) -> Reading:
    return reader.state("t", parse_systemone({"state": state, "questions": QUESTIONS, "x_label_mass": mass}, Settings()), b"k")


def crossed(value: Any) -> Any:
    """As it comes out of the pipe."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value))


def same(a: Request, b: Request) -> bool:
    parts = [
        np.array_equal(s.tokens, t.tokens)
        and (s.parent, s.kind, s.saves, s.readouts) == (t.parent, t.kind, t.saves, t.readouts)
        for s, t in zip(a.segments, b.segments, strict=True)
    ]
    return all(parts) and (a.checkpoint, a.share_key) == (b.checkpoint, b.share_key)


@pytest.mark.parametrize("state", ["", "short", "word " * 700, {"a": [1, 2]}, [{"role": "user", "content": "hi"}]])
@pytest.mark.parametrize("mass", [False, True])
def test_the_engine_is_asked_the_same(reader: StateReader, state: Any, mass: bool) -> None:
    reading = read(reader, state, mass=mass)
    asked = crossed(Tokenised.of(reading, 1.0, 2.0, 1.5))
    assert same(asked.request(asked.tokens, None, b"k"), build_request(reading, None))
    if len(reading.tokens) > 128:
        found: Any = SimpleNamespace(m=128, checkpoint=SimpleNamespace(m=128))
        assert same(asked.request(asked.tokens, found, b"k"), build_request(reading, found))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_answers_have_the_same_bits(reader: StateReader, dtype: type[np.floating[Any]]) -> None:
    reading, rng = read(reader, "s", mass=True), np.random.default_rng(3)
    for _ in range(50):
        own = [(4 * rng.standard_normal(len(b.labels))).astype(dtype) for _, _, b in reading.branches]
        logits, sums = ((), *((x,) for x in own)), ((), *((float(np.logaddexp.reduce(x)) + 0.1,) for x in own))
        done: Any = SimpleNamespace(result=SimpleNamespace(logits=logits, sums=sums, checkpoints={(0, 64): 1, (0, 128): 2}))
        outcome = crossed(Outcome.of(done, 64))
        assert outcome.answers(reading) == read_answers(reading, logits, sums)[0]
        assert (outcome.m, outcome.saved) == (64, 128)


def test_many_readouts_at_once_have_the_bits_of_each_alone(reader: StateReader) -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        sizes = rng.choice([2, 3, 4, 7, 8, 9, 26, 130, 255], int(rng.integers(1, 40)))
        logits = [(rng.uniform(0.1, 20) * rng.standard_normal(n)).astype(np.float32) for n in sizes]
        heats = [1.0 if rng.random() < 0.5 else float(rng.uniform(0.3, 3)) for _ in sizes]
        for x, heat, got in zip(logits, heats, distributions(logits, heats), strict=True):
            alone = probabilities(x, heat)
            assert np.array_equal(got, alone / alone.sum())
    question = read(reader, "s").branches[1][1]
    assert answer_of(question, np.array([0.25, 0.75])) == {"type": "noul", "noul": 0.25}
    with pytest.raises(InternalError):
        distributions([np.array([0.0, np.nan], np.float32)], [1.0])


def test_what_cannot_be_asked_is_refused_before_the_engine(reader: StateReader) -> None:
    ask = parse_systemone({"state": "s", "questions": QUESTIONS, "model": "other", "x_label_mass": True}, Settings())
    with pytest.raises(UnknownModel):
        check(ask, Served("m", False, 1, DAY), True)
    with pytest.raises(InvalidRequest, match="label mass"):
        check(ask, Served("other", False, 1, DAY), False)
    with pytest.raises(TooLong):
        read(reader, "word " * 5000)


async def test_a_state_that_gave_no_numbers_is_not_kept(reader: StateReader, tmp_path: Path) -> None:
    service: Any = open_null(Settings(store=tmp_path / "s"))
    decider, released = service.decider, []
    asked = Tokenised.of(read(reader, "word " * 100), 1.0, 0.0, 1.0)

    def broken(run: Any) -> Any:
        def answer(round: Any) -> Any:
            result = run(round)
            (one,) = result.results
            for checkpoint in one.checkpoints.values():
                released.append(checkpoint)
            bad = tuple(tuple(x + np.nan for x in readouts) for readouts in one.logits)
            return dataclasses.replace(result, results=(dataclasses.replace(one, logits=bad),))

        return answer

    service.engine.run = broken(service.engine.run)
    with pytest.raises(InternalError, match="not finite"):
        await decider.run("t", asked)
    assert released
    assert not any(checkpoint.alive for checkpoint in released)
    del service.engine.run
    assert (await decider.run("t", asked)).m == 0
    await decider.settle()
    assert (await decider.run("t", asked)).m == 64
    await service.close()


async def test_what_other_threads_finish_arrives_and_wakes_the_loop_once() -> None:
    loop = asyncio.get_running_loop()
    calls: list[Any] = []
    counting: Any = SimpleNamespace(
        is_closed=lambda: False, call_soon_threadsafe=lambda f: calls.append(f) or loop.call_soon_threadsafe(f)
    )
    arrivals = Arrivals(counting)
    futures = [loop.create_future() for _ in range(100)]
    futures[7].cancel()
    thread = threading.Thread(target=lambda: [arrivals.add(f) for f in futures])
    thread.start()
    thread.join()  # the loop has not run meanwhile
    await asyncio.gather(*futures, return_exceptions=True)
    assert len(calls) == 1
    late = loop.create_future()
    arrivals.add(late)
    await late
    assert len(calls) == 2
