"""The engine thread, with an engine whose speed and failures the test decides."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from flide_engine.engine import RequestResult, RoundResult
from flide_engine.memory import PoolFull
from flide_engine.segments import Readout, Request, RequestError, Round, Segment

from flide_agent.dispatch import Dispatcher
from flide_agent.errors import DeadlineExceeded, InternalError, Overloaded, TooLong, Unavailable


class FakeCheckpoint:
    def __init__(self, m: int = 64) -> None:
        self.m, self.refs = m, 1

    def retain(self) -> FakeCheckpoint:
        self.refs += 1
        return self

    def release(self) -> None:
        self.refs -= 1


class FakeMemory:
    pages, slots = 100, 10

    def __init__(self) -> None:
        self.now_free = (100, 10)

    def free(self) -> tuple[int, int]:
        return self.now_free


class FakeEngine:
    """Answers with the first token of each request. `gate` holds a round until the test opens it."""

    info = SimpleNamespace(vocab_size=1000, max_context=4096)

    def __init__(self, check: Callable[[Round], None] = lambda _: None) -> None:
        self.rounds: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.check = check
        self.memory = FakeMemory()
        self.made: list[FakeCheckpoint] = []

    def run(self, round: Round) -> RoundResult:
        self.rounds.append([int(r.segments[0].tokens[0]) for r in round.requests])
        self.started.release()
        assert self.gate.wait(10)
        self.check(round)
        results = []
        for r in round.requests:
            checkpoint = FakeCheckpoint()
            self.made.append(checkpoint)
            logits = ((np.array([r.segments[0].tokens[0]], np.float32),),)
            results.append(RequestResult(logits, {(0, 64): checkpoint}, r.tokens(), 0))  # type: ignore[dict-item]
        return RoundResult(tuple(results), sum(r.tokens() for r in round.requests), 1, 0.0)


def request(name: int, tokens: int = 64, checkpoint: FakeCheckpoint | None = None) -> Request:
    ids = np.full(tokens, name, np.int32)
    return Request((Segment(ids, readouts=(Readout(0, (1,)),)),), checkpoint=checkpoint)


def dispatcher(engine: FakeEngine, relieve: Callable[[PoolFull], bool] = lambda _: False, **limits: float) -> Dispatcher:
    d = Dispatcher(engine, relieve, **limits)  # type: ignore[arg-type]
    d.start()
    return d


def test_what_waits_becomes_one_round() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    d = dispatcher(engine)
    first = d.enqueue(request(0))
    engine.started.acquire()
    rest = [d.enqueue(request(i)) for i in range(1, 6)]
    engine.gate.set()
    assert [f.result(5).result.logits[0][0][0] for f in [first, *rest]] == [0, 1, 2, 3, 4, 5]
    assert engine.rounds == [[0], [1, 2, 3, 4, 5]]
    assert d.close(5)
    assert d.counters.report()["requests_per_round"] == {"1": 1, "5": 1}
    assert d.counters.tokens_computed == 6 * 64
    assert rest[0].result().together == 5
    assert rest[0].result().queued > 0


def test_a_round_is_bounded_and_the_oldest_always_goes() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    d = dispatcher(engine, max_round_tokens=200)
    futures = [d.enqueue(request(0))]
    engine.started.acquire()
    futures += [d.enqueue(request(i, n)) for i, n in [(1, 100), (2, 500), (3, 64), (4, 64)]]
    engine.gate.set()
    for f in futures:
        f.result(5)
    d.close(5)
    assert engine.rounds == [[0], [1, 3], [2], [4]], "2 is too big beside 1, then goes first although it is over the bound"


@pytest.mark.parametrize(("seconds_a_round", "rows"), [(0.2, 100), (0.03, 100), (0.024, 200), (0.001, 400)])
def test_rounds_of_a_fast_engine_may_be_fuller(seconds_a_round: float, rows: int) -> None:
    d = dispatcher(FakeEngine(), max_round_tokens=100, most_round_tokens=400)
    assert d._room() == 100, "its speed is not known yet"
    for _ in range(2000):
        d._line.measured(1, 100, seconds_a_round)
    assert d._room() == rows
    d.close(5)


def test_full_line_is_refused_with_a_time() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    d = dispatcher(engine, max_queue=2)
    waiting = [d.enqueue(request(0))]
    engine.started.acquire()
    waiting += [d.enqueue(request(1)), d.enqueue(request(2))]
    checkpoint = FakeCheckpoint()
    with pytest.raises(Overloaded) as refused:
        d.enqueue(request(3, checkpoint=checkpoint))
    assert refused.value.retry_after
    assert refused.value.retry_after >= 1
    assert checkpoint.refs == 1
    engine.gate.set()
    for f in waiting:
        f.result(5)
    d.close(5)
    assert d.counters.refused == 1


def test_tokens_that_wait_are_bounded_and_one_request_always_may() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    d = dispatcher(engine, max_queue_tokens=200)
    waiting = [d.enqueue(request(0))]
    engine.started.acquire()
    waiting += [d.enqueue(request(1, 300))]
    with pytest.raises(Overloaded, match="300 tokens wait") as refused:
        d.enqueue(request(2, 1))
    assert refused.value.reason == "tokens"
    engine.gate.set()
    for f in waiting:
        f.result(5)
    d.close(5)


def test_who_would_wait_too_long_is_refused() -> None:
    engine = FakeEngine(lambda _: time.sleep(0.1))
    d = dispatcher(engine, max_wait=0.15)
    d.enqueue(request(0)).result(5)
    engine.gate.clear()
    waiting = [d.enqueue(request(1))]
    while len(engine.rounds) < 2:
        time.sleep(0.001)
    waiting += [d.enqueue(request(2))]
    with pytest.raises(Overloaded, match="would wait about") as refused:
        d.admit()
    assert refused.value.reason == "wait"
    engine.gate.set()
    for f in waiting:
        f.result(5)
    d.admit().leave()
    d.close(5)


def test_who_was_let_in_is_not_refused_later_and_counts_meanwhile() -> None:
    engine = FakeEngine()
    d = dispatcher(engine, max_queue=2)
    first, second = d.admit(), d.admit()
    with pytest.raises(Overloaded):
        d.admit()
    with pytest.raises(Overloaded):
        d.enqueue(request(1))
    second.leave()
    second.leave()
    third = d.admit()
    for admission in (first, third):
        d.enqueue(request(2), admission=admission).result(5)
        admission.leave()
    d.admit()
    d.admit()
    d.close(5)


def test_a_deadline_that_passes_in_the_line_ends_the_wait() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    d = dispatcher(engine)
    first = d.enqueue(request(0))
    engine.started.acquire()
    held = FakeCheckpoint()
    late = d.enqueue(request(1, checkpoint=held), deadline=time.perf_counter() + 0.01)
    in_time = d.enqueue(request(2), deadline=time.perf_counter() + 60)
    time.sleep(0.02)
    engine.gate.set()
    with pytest.raises(DeadlineExceeded):
        late.result(5)
    assert in_time.result(5).result.logits[0][0][0] == 2
    first.result(5)
    assert engine.rounds == [[0], [2]], "nothing was computed for it"
    assert held.refs == 1
    assert d.counters.expired == 1
    d.close(5)


def test_a_failing_request_does_not_take_others_with_it() -> None:
    def check(round: Round) -> None:
        if any(int(r.segments[0].tokens[0]) == 2 for r in round.requests):
            raise ZeroDivisionError("boom")

    engine = FakeEngine(check)
    engine.gate.clear()
    d = dispatcher(engine)
    futures = [d.enqueue(request(0))]
    engine.started.acquire()
    checkpoints = [FakeCheckpoint() for _ in range(3)]
    futures += [d.enqueue(request(i + 1, checkpoint=c)) for i, c in enumerate(checkpoints)]
    engine.gate.set()
    assert futures[1].result(5).result.logits[0][0][0] == 1
    assert futures[3].result(5).result.logits[0][0][0] == 3
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        futures[2].result(5)
    assert [c.refs for c in checkpoints] == [1, 1, 1]
    assert d.enqueue(request(7)).result(5).together == 1, "the engine thread lives on"
    d.close(5)
    assert d.counters.failed == 1


def test_what_the_engine_refuses_is_told() -> None:
    def check(_: Round) -> None:
        raise RequestError("segment 0: wrong")

    d = dispatcher(FakeEngine(check))
    with pytest.raises(InternalError, match="segment 0: wrong"):
        d.enqueue(request(1)).result(5)
    d.close(5)


def test_what_no_engine_can_run_gets_into_no_round() -> None:
    engine = FakeEngine()
    d = dispatcher(engine)
    with pytest.raises(InternalError, match="token ids"):
        d.enqueue(request(1000))
    d.close(5)
    assert engine.rounds == []


def test_full_memory_is_relieved_and_tried_again() -> None:
    short = [PoolFull(3, 1), PoolFull(1, 0)]

    def check(_: Round) -> None:
        if short:
            raise short[0]

    engine = FakeEngine(check)
    engine.memory.now_free = (0, 0)
    asked: list[PoolFull] = []

    def relieve(full: PoolFull) -> bool:
        asked.append(full)
        short.pop(0)
        return True

    d = dispatcher(engine, relieve)
    d.enqueue(request(1)).result(5)
    d.close(5)
    assert [(f.pages, f.slots) for f in asked] == [(3, 1), (1, 0)]
    assert d.counters.relieved == 2


def test_a_round_too_big_for_the_memory_is_halved() -> None:
    def check(round: Round) -> None:
        if len(round.requests) > 2:
            raise PoolFull(5, 5)

    engine = FakeEngine(check)
    engine.memory.now_free = (0, 0)
    engine.gate.clear()
    d = dispatcher(engine)
    futures = [d.enqueue(request(0))]
    engine.started.acquire()
    futures += [d.enqueue(request(i)) for i in range(1, 5)]
    engine.gate.set()
    assert [f.result(5).together for f in futures] == [1, 2, 2, 2, 2]
    d.close(5)


@pytest.mark.parametrize(("missing", "free", "kind"), [((101, 0), (0, 10), TooLong), ((5, 0), (0, 10), Unavailable)])
def test_memory_that_cannot_be_had(missing: tuple[int, int], free: tuple[int, int], kind: type[Exception]) -> None:
    """101 pages of 100 will never be there; 5 pages held by others will be."""
    relieved: list[PoolFull] = []

    def relieve(full: PoolFull) -> bool:
        relieved.append(full)
        return False

    def check(_: Round) -> None:
        raise PoolFull(*missing)

    engine = FakeEngine(check)
    engine.memory.now_free = free
    d = dispatcher(engine, relieve)
    with pytest.raises(kind):
        d.enqueue(request(1)).result(5)
    d.close(5)
    assert bool(relieved) == (kind is Unavailable), "nobody's checkpoints go for what can never fit"


def test_cancelling_frees_the_place_and_the_checkpoints() -> None:
    async def run() -> None:
        engine = FakeEngine()
        engine.gate.clear()
        d = dispatcher(engine)
        held = FakeCheckpoint()
        running = asyncio.ensure_future(d.submit(request(0)))
        await asyncio.to_thread(engine.started.acquire)
        waiting = asyncio.ensure_future(d.submit(request(1, checkpoint=held)))
        last = asyncio.ensure_future(d.submit(request(2)))
        await asyncio.sleep(0.01)
        running.cancel()
        waiting.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        engine.gate.set()
        assert (await last).result.logits[0][0][0] == 2
        await asyncio.to_thread(d.close, 5)
        assert engine.rounds == [[0], [2]], "the cancelled one never ran"
        assert held.refs == 1
        assert [c.refs for c in engine.made] == [0, 1], "what came too late was released"
        assert d.counters.cancelled == 1

    asyncio.run(run())


def test_close_finishes_what_waits_and_refuses_the_rest() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    d = dispatcher(engine)
    futures = [d.enqueue(request(i)) for i in range(3)]
    closing = threading.Thread(target=d.close, args=(5,))
    closing.start()
    while not d._closing:
        time.sleep(0.001)
    with pytest.raises(Unavailable):
        d.enqueue(request(9))
    engine.gate.set()
    closing.join(5)
    assert not d.alive
    assert all(f.done() for f in futures)
