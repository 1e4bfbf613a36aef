"""Rounds in a row on a device that works by itself: the next is made ready while one runs, and no answer changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from flide_engine.memory import PoolFull
from flide_engine.segments import Round
from test_service_dispatch import FakeEngine, request

from flide_agent.dispatch import QUIET, Dispatcher
from flide_agent.errors import InternalError
from flide_agent.flight import LEAD, Flight


class Device(FakeEngine):
    """A FakeEngine whose rounds run one after the other on a thread of its own, `seconds` each. log: what the engine was told."""

    info = SimpleNamespace(vocab_size=1000, max_context=4096, asynchronous=True)

    def __init__(self, seconds: float = 0.0, check: Callable[[Round], None] = lambda _: None) -> None:
        super().__init__(check)
        self.seconds, self.log = seconds, []
        self.refuse: list[Exception] = []
        self.works: list[Callable[[], bool]] = []  # what idle does next
        self._free = threading.Semaphore(1)

    def name(self, round: Round) -> int:
        return int(round.requests[0].segments[0].tokens[0])

    def prepare(self, round: Round) -> Round:
        self.log.append(("prepare", self.name(round)))
        if self.refuse:
            raise self.refuse.pop(0)
        return round

    def submit(self, round: Round) -> Any:
        self.log.append(("submit", self.name(round)))
        ready, out = threading.Event(), {}
        before = getattr(self, "last", None)

        def work() -> None:
            if before is not None:
                before.wait()
            time.sleep(self.seconds)
            try:
                out["result"] = super(Device, self).run(round)
            except Exception as e:
                out["error"] = e
            ready.set()

        threading.Thread(target=work, daemon=True).start()
        self.last = ready
        return SimpleNamespace(done=ready.is_set, ready=ready, out=out, name=self.name(round))

    def idle(self) -> bool:
        self.log.append(("idle", time.perf_counter()))
        return bool(self.works) and self.works.pop(0)()

    def collect(self, ticket: Any) -> Any:
        assert ticket.ready.wait(10)
        self.log.append(("collect", ticket.name))
        if "error" in ticket.out:
            raise ticket.out["error"]
        return ticket.out["result"]

    def run(self, round: Round) -> Any:
        self.log.append(("run", self.name(round)))
        return super().run(round)


def dispatcher(engine: Device, **limits: Any) -> Dispatcher:
    d = Dispatcher(engine, limits.pop("relieve", lambda _: False), **limits)  # type: ignore[arg-type]
    d.start()
    return d


def answer(place: Any) -> float:
    return float(place.result(10).result.logits[0][0][0])


def test_the_next_round_is_submitted_before_the_one_that_runs_is_collected() -> None:
    engine = Device(0.05)
    d = dispatcher(engine, max_round_tokens=64)
    places = [d.enqueue(request(n)) for n in (1, 2, 3)]
    assert [answer(p) for p in places] == [1, 2, 3]
    assert d.close(5)
    assert engine.log.index(("submit", 2)) < engine.log.index(("collect", 1))
    assert engine.log.index(("submit", 3)) < engine.log.index(("collect", 2))
    assert d.counters.overlapped == 2
    assert not [x for x in engine.log if x[0] == "run"]


def test_all_answers_of_many_threads_are_right_and_rounds_stay_full() -> None:
    """64 closed-loop clients: whoever comes while a round runs goes into the next one together."""
    engine = Device(0.01)
    d = dispatcher(engine, max_round_tokens=64 * 64)
    wrong: list[int] = []

    def client(n: int) -> None:
        for i in range(8):
            name = 1 + (n * 8 + i) % 900
            if answer(d.enqueue(request(name), owner=bytes([n]))) != name:
                wrong.append(name)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(64)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert d.close(5)
    assert not wrong
    assert d.counters.requests == 512
    assert d.counters.overlapped > 0
    assert d.counters.requests / d.counters.rounds > 16, "rounds fell apart into small ones"


@pytest.mark.parametrize(("behind", "early"), [(2, True), (0, False)])
def test_a_full_round_that_waits_is_submitted_at_once_and_a_thin_one_late(behind: int, early: bool) -> None:
    engine = Device(0.3)
    d = dispatcher(engine, max_round_tokens=128)
    for n in (1, 2, 3):  # its speed is known then
        answer(d.enqueue(request(n)))
    places = [d.enqueue(request(4))]
    while ("submit", 4) not in engine.log:
        time.sleep(0.001)
    began = time.perf_counter()
    places += [d.enqueue(request(5 + n)) for n in range(1 + behind)]
    while ("submit", 5) not in engine.log:
        time.sleep(0.001)
    assert (time.perf_counter() - began < 0.1) == early
    assert [answer(p) for p in places] == list(range(4, 6 + behind))
    assert d.close(5)


def test_what_does_not_fit_beside_the_one_in_flight_runs_after_it() -> None:
    engine = Device(0.05)
    d = dispatcher(engine, max_round_tokens=64)
    first = d.enqueue(request(1))
    while ("submit", 1) not in engine.log:
        time.sleep(0.001)
    engine.refuse.append(PoolFull(1, 1))
    second = d.enqueue(request(2))
    assert (answer(first), answer(second)) == (1, 2)
    assert d.close(5)
    assert engine.log.index(("collect", 1)) < engine.log.index(("run", 2))


def test_what_fits_once_others_made_way_is_put_behind_all_the_same() -> None:
    short = [PoolFull(1, 1)]

    class Full(Device):
        def prepare(self, round: Round) -> Round:
            if self.name(round) == 2 and short:
                raise short.pop()
            return super().prepare(round)

    engine, relieved = Full(0.05), list[PoolFull]()
    engine.memory.now_free = (0, 0)
    d = dispatcher(engine, max_round_tokens=64, relieve=lambda full: relieved.append(full) or True)
    places = [d.enqueue(request(n)) for n in (1, 2)]
    assert [answer(p) for p in places] == [1, 2]
    assert d.close(5)
    assert [(f.pages, f.slots) for f in relieved] == [(1, 1)]
    assert engine.log.index(("submit", 2)) < engine.log.index(("collect", 1))


def test_a_failed_round_is_taken_apart_and_the_next_one_is_not_touched() -> None:
    def check(round: Round) -> None:
        if any(int(r.segments[0].tokens[0]) == 13 for r in round.requests):
            raise RuntimeError("bad")

    engine = Device(0.03, check)
    d = dispatcher(engine, max_round_tokens=128)
    block = d.enqueue(request(1))
    time.sleep(0.01)
    places = [d.enqueue(request(n)) for n in (12, 13, 14, 15)]
    assert [answer(block), answer(places[0]), answer(places[2]), answer(places[3])] == [1, 12, 14, 15]
    with pytest.raises(InternalError):
        places[1].result(10)
    assert d.close(5)
    assert d.counters.failed == 1


def test_close_waits_for_the_round_in_flight() -> None:
    engine = Device(0.1)
    d = dispatcher(engine, max_round_tokens=64)
    places = [d.enqueue(request(n)) for n in (1, 2)]
    while ("submit", 1) not in engine.log:
        time.sleep(0.001)
    assert d.close(5)
    assert [answer(p) for p in places] == [1, 2]


def test_a_single_request_waits_for_nothing() -> None:
    engine = Device()
    d = dispatcher(engine)
    for n in range(1, 50):
        assert answer(d.enqueue(request(n))) == n
    assert d.counters.overlapped == 0
    assert d.close(5)


@pytest.mark.parametrize(
    ("expected", "ends", "least", "most"), [(0.2, 9.0, 0.2 - LEAD, 0.4), (0.0, 9.0, 0, 0.05), (5.0, 0.05, 0.05, 0.3)]
)
def test_the_turn_comes_near_the_expected_end_or_when_it_ended(expected: float, ends: float, least: float, most: float) -> None:
    began = time.perf_counter()
    flight = Flight([], SimpleNamespace(done=lambda: time.perf_counter() - began > ends), expected, began)
    flight.wait_for_turn()
    assert least <= time.perf_counter() - began < most


def idles(engine: Device) -> int:
    return sum(what == "idle" for what, _ in engine.log)


def test_a_quiet_engine_works_for_itself_until_nothing_is_left_and_again_after_a_round() -> None:
    engine = Device()
    engine.works = [lambda: True] * 3
    d = dispatcher(engine)
    time.sleep(8 * QUIET)
    assert idles(engine) == 4, "three pieces, then told that nothing is left"
    assert answer(d.enqueue(request(1))) == 1
    time.sleep(3 * QUIET)
    assert idles(engine) == 5
    assert d.close(5)


def test_no_piece_is_begun_while_a_request_waits_or_soon_after_one() -> None:
    engine = Device(0.002)
    engine.works = [lambda: bool(time.sleep(0.03)) or True] * 100
    d = dispatcher(engine)
    for n in range(1, 60):
        assert answer(d.enqueue(request(n))) == n
    assert idles(engine) == 0
    spans = []
    for n in range(10):
        time.sleep(QUIET * (1 + n / 10))  # at any moment of a piece
        began = time.perf_counter()
        answer(d.enqueue(request(1)))
        spans.append((began, time.perf_counter()))
    begun = [at for what, at in engine.log if what == "idle"]
    assert begun
    assert not [at for at in begun for first, last in spans if first < at < last + QUIET / 2]
    assert d.close(5)


def test_no_piece_is_begun_while_a_request_is_being_read() -> None:
    engine = Device()
    d = dispatcher(engine)
    time.sleep(2 * QUIET)
    answer(d.enqueue(request(1)))
    before, admission = idles(engine), d.admit()
    time.sleep(4 * QUIET)
    assert idles(engine) == before
    admission.leave()
    time.sleep(3 * QUIET)
    assert idles(engine) == before + 1
    assert d.close(5)


def test_a_piece_that_fails_leaves_the_engine_answering() -> None:
    def fails() -> bool:
        raise RuntimeError("out of memory")

    engine = Device()
    engine.works = [fails, lambda: True]
    d = dispatcher(engine)
    time.sleep(4 * QUIET)
    assert idles(engine) == 1
    assert answer(d.enqueue(request(7))) == 7
    time.sleep(4 * QUIET)
    assert idles(engine) == 3
    assert d.close(5)


def test_an_engine_that_works_in_its_callers_thread_is_left_alone() -> None:
    engine = Device()
    engine.info = SimpleNamespace(vocab_size=1000, max_context=4096, asynchronous=False)
    d = dispatcher(engine)
    assert answer(d.enqueue(request(7))) == 7
    time.sleep(3 * QUIET)
    assert idles(engine) == 0
    assert d.close(5)
