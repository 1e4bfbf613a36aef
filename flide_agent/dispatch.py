"""The engine thread: everything that waits becomes one round.

One thread owns the engine. Requests wait in a bounded line (`line.py`); whenever the engine is free it takes the one whose turn
it is and all others that fit beside it, long ones a slice at a time (`slices.py`). While a round runs on a GPU the next is planned
and put behind it (`flight.py`). Since an answer has the same bits in any round, this changes latency and throughput and never an
answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flide_engine.memory import Memory, PoolFull
from flide_engine.segments import GRID, Request, RequestError, Round

from flide_agent.arrivals import Arrivals
from flide_agent.counters import Counters
from flide_agent.errors import DeadlineExceeded, FlideError, InternalError, Overloaded, TooLong, Unavailable
from flide_agent.flight import LEAD, Flight
from flide_agent.line import Admission, Done, Item, Line, Place, let_go
from flide_agent.slices import Slices

if TYPE_CHECKING:
    from flide_engine.engine import EngineInfo, RoundResult

__all__ = ["Counters", "Dispatcher", "Done", "Runs"]

log = logging.getLogger("flide_agent.dispatch")

MOST_MAKING = 0.05
"""What counts at most of a round's making, in seconds: a compilation or a capture says nothing of the next one."""
QUIET = 0.05
"""Seconds without a request after which the engine may work for itself (`Engine.idle`): as long as one piece of that takes, so that who
comes in the middle of one has left the engine alone for longer than it now waits."""
ROUND_SECONDS = 0.05
"""A round may grow beyond max_round_tokens while it stays this short: fuller rounds cost less a row, longer ones delay all in them."""
SPARE = 128
"""One part in so many of the engine's memory is freed beside what a round lacks."""
T = TypeVar("T")


class Runs(Protocol):
    """What the dispatcher needs of an engine; also prepare, submit, collect and idle where `info.asynchronous`."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def memory(self) -> Memory: ...

    def run(self, round: Round) -> RoundResult: ...


class Dispatcher:
    """relieve: frees device memory for a PoolFull and says whether it freed any (store.relieve); runs on the engine thread.

    most_round_tokens: rows of a round of a small model, whose rounds are short.
    """

    def __init__(
        self,
        engine: Runs,
        relieve: Callable[[PoolFull], bool],
        max_queue: int = 256,
        max_round_tokens: int = 8192,
        *,
        most_round_tokens: int = 0,
        slice_tokens: int = 4096,
        max_queue_tokens: int = 1 << 20,
        max_wait: float = 0.0,
    ) -> None:
        self.engine, self.relieve = engine, relieve
        self.max_round_tokens, self.slice_tokens = max_round_tokens, slice_tokens
        self.most_round_tokens = max(max_round_tokens, most_round_tokens)
        self.counters = Counters()
        self._overlaps = getattr(engine.info, "asynchronous", False)
        self._line = Line(max_queue, max_queue_tokens, max_wait)
        self._wake = threading.Condition()
        self._closing = False
        self._arrivals: Arrivals | None = None
        self._making = 0.0  # seconds that planning and launching a round take, a running mean
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop_admission(self) -> None:
        """Refuse what comes from now on; what waits goes on."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def close(self, seconds: float = 30.0) -> bool:
        """Refuse what comes, finish what waits, stop the thread. False when it did not end in time."""
        self.stop_admission()
        if self._thread.ident is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def waiting_tokens(self) -> int:
        return self._line.tokens

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not len(self._line) and not self._line.running

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def admit(self, tenant: bytes = b"") -> Admission:
        """Let a request in before it is read. tenant: its share key. Raises Overloaded or Unavailable, at no cost."""
        with self._wake:
            self._check(tenant)
            self._line.expected[tenant] += 1
        return Admission(lambda: self._leave_expected(tenant))

    def _leave_expected(self, tenant: bytes) -> None:
        with self._wake:
            self._line.expected -= Counter([tenant])

    def _check(self, tenant: bytes, tokens: int = 0, owner: bytes | None = None) -> None:
        if self._closing:
            raise Unavailable("the server is shutting down", retry_after=1.0)
        try:
            self._line.check(tenant, tokens, owner)
        except Overloaded:
            self.counters.refused += 1
            raise

    def enqueue(self, request: Request, owner: bytes = b"", deadline: float = 0.0, admission: Admission | None = None) -> Place:
        """Put a request in line. Keeps its checkpoint alive until it is answered. Raises Overloaded, Unavailable, and
        InternalError for what no engine can run: it must not reach a round that others share.

        owner: whose turn it takes among those of its tenant, which is its share key. deadline: of time.perf_counter; not begun
        by then it fails with DeadlineExceeded. admission: it was let in already. Cancelling the future while the request waits
        takes it out of the line. Whoever takes the result owns the references of its checkpoints.
        """
        try:
            request.validate(self.engine.info.vocab_size, self.engine.info.max_context)
        except RequestError as e:
            raise _as_ours(e) from e
        if (pages := -(-(request.start + len(request.segments[0])) // GRID)) > self.engine.memory.pages:
            # Known before its first slice runs and pushes out everybody's checkpoints.
            raise TooLong(f"this request needs {pages} pages of memory and the engine has {self.engine.memory.pages}; "
                          "raise memory_bytes or send less")  # fmt: skip
        item = Item(Slices(request, self.slice_tokens), owner, deadline, tokens=request.tokens())
        if admission is not None:
            admission.leave()
        with self._wake:
            if admission is None:
                self._check(item.tenant, item.tokens, owner)
            if request.checkpoint is not None:
                request.checkpoint.retain()  # type: ignore[attr-defined]
            self._line.add(item)
            self._wake.notify()
        return item.place

    async def submit(self, request: Request, owner: bytes = b"", deadline: float = 0.0) -> Done:
        """`enqueue` for coroutines. Cancelling the caller frees its place; a result that comes too late is released."""
        return await self.wait(self.enqueue(request, owner, deadline))

    async def wait(self, place: Place) -> Done:
        """The answer of a request in line; see `submit`."""
        loop = asyncio.get_running_loop()
        if self._arrivals is None or self._arrivals.loop is not loop:
            self._arrivals = Arrivals(loop)
        arrivals, came = self._arrivals, loop.create_future()
        place.add_done_callback(lambda _: arrivals.add(came))
        try:
            await came
        except asyncio.CancelledError:
            place.left = True
            place.cancel()
            place.add_done_callback(let_go)
            raise
        return place.result()

    def _loop(self) -> None:
        flight: Flight | None = None
        while True:
            with self._wake:
                self._line.running = sum(i.rows for i in flight.items) if flight is not None else 0
            if flight is None:
                if not self._wait():
                    return
            else:
                flight.wait_for_turn(max(LEAD, 1.5 * self._making), self._full)
            items = self._take()
            if not self._overlaps:
                if items:
                    self._answer(items)
                continue
            behind = self._put_behind(items, flight) if items else None
            if flight is not None:
                self._land(flight)
            if items and behind is None:  # it did not fit beside the one in flight, or it is not a good round
                self._answer(items)
            elif behind is not None and flight is not None:
                behind.began = time.perf_counter()
            flight = behind

    def _wait(self) -> bool:
        """Until something waits; in quiet moments the engine works for itself, a piece at a time. False: nothing will come any more."""
        works = self._overlaps
        while True:
            with self._wake:
                quiet = False
                while not len(self._line) and not self._closing and not quiet:
                    quiet = not self._wake.wait(QUIET if works else None) and not self._line.expected
                if len(self._line) or self._closing:
                    return bool(len(self._line))
            works = self._work_ahead()

    def _work_ahead(self) -> bool:
        """Whether the engine found something to do for itself."""
        engine: Any = self.engine
        try:
            return bool(engine.idle())
        except Exception:
            log.warning("the engine failed at work for itself; rounds go on", exc_info=True)
            return False

    def _take(self) -> list[Item]:
        """The next round, out of the line; those whose turn came and who do not want it any more leave."""
        with self._wake:
            if not len(self._line):
                return []
            items, gone = self._line.take(self._room())
            for item in list(items):
                if not item.begun and not item.place.set_running_or_notify_cancel():
                    items.remove(item)
                    gone.append(item)
                item.begun = True
            self._line.running += sum(i.rows for i in items)
        for item in gone:
            self._leave(item)
        return items

    def _full(self) -> bool:
        """Whether more waits than the next round takes."""
        with self._wake:
            return self._line.tokens >= self._room()

    def _room(self) -> int:
        """Rows of the next round. Under the lock."""
        seconds = self._line.expected_seconds(self.max_round_tokens)
        if not seconds:
            return self.max_round_tokens
        return min(self.most_round_tokens, max(1, int(ROUND_SECONDS / seconds)) * self.max_round_tokens)

    def _put_behind(self, items: list[Item], flight: Flight | None) -> Flight | None:
        """Prepare and submit a round, behind `flight` if there is one. None when it must wait: `_answer` finds out why."""
        engine: Any = self.engine
        began = time.perf_counter()
        try:
            ticket = engine.submit(self._with_memory(items, engine.prepare))
        except Exception:
            return None
        self._making += 0.2 * (min(time.perf_counter() - began, MOST_MAKING) - self._making)
        self.counters.overlapped += flight is not None
        with self._wake:
            expected = self._line.expected_seconds(sum(i.rows for i in items))
        return Flight(items, ticket, expected)

    def _land(self, flight: Flight) -> None:
        """Wait for a round and hand out its answers."""
        engine: Any = self.engine
        try:
            result = engine.collect(flight.ticket)
        except Exception as error:
            self._take_apart(flight.items, error)
        else:
            self._hand_out(flight.items, result, time.perf_counter() - flight.began)

    def _leave(self, item: Item) -> None:
        """Without an answer: it was cancelled, or its time was up before it began."""
        if item.place.cancelled() or item.place.left:
            self.counters.cancelled += 1
            item.drop()
            if not item.place.cancelled():
                item.place.set_exception(Unavailable("nobody waits for this request any more"))
        else:
            self.counters.expired += 1
            item.drop()
            if item.place.set_running_or_notify_cancel():
                item.place.set_exception(DeadlineExceeded("the deadline passed before the engine came to this request"))

    def _answer(self, items: list[Item]) -> None:
        """Run these as one round and hand out what comes; a round that fails is taken apart until the guilty one is alone."""
        started = time.perf_counter()
        try:
            result = self._with_memory(items, self.engine.run)
        except PoolFull as full:
            if len(items) > 1:  # too much at once: what the first half publishes can be freed for the second
                self._answer(items[: len(items) // 2])
                self._answer(items[len(items) // 2 :])
            else:
                self._fail(items[0], self._no_memory(items[0].request, full))
        except Exception as error:
            self._take_apart(items, error)
        else:
            self._hand_out(items, result, time.perf_counter() - started)

    def _take_apart(self, items: list[Item], error: Exception) -> None:
        """A round has failed: each request by itself, or the only one's failure."""
        if len(items) > 1:
            self.counters.retried_alone += len(items)
            for item in items:
                self._answer([item])
        else:
            self._fail(items[0], _as_ours(error))

    def _hand_out(self, items: list[Item], result: RoundResult, seconds: float) -> None:
        self._count(items, result, seconds)
        for item, answer in zip(items, result.results, strict=True):
            item.seconds += seconds
            item.together = max(item.together, len(items))
            item.slices.take(answer)
            self._next(item)

    def _next(self, item: Item) -> None:
        """Hand out the whole answer, or go on with the next slice when its turn comes."""
        if (result := item.slices.done) is not None:
            queued = time.perf_counter() - item.arrived - item.seconds
            item.drop()
            item.place.set_result(Done(result, queued, item.seconds, item.together))
            return
        with self._wake:
            item.tokens = max(0, item.tokens - self.slice_tokens)
            self._line.add(item, again=True)

    def _with_memory(self, items: list[Item], work: Callable[[Round], T]) -> T:
        """What `work` makes of these as a round, once there is room for it: what is kept and not in use makes way."""
        round, memory = Round(tuple(i.request for i in items)), self.engine.memory
        while True:
            try:
                return work(round)
            except PoolFull as full:
                # What can never fit must not push everybody's checkpoints out before it fails.
                if all(self._hopeless(i.request, full) for i in items):
                    raise
                # A little more than is missing, so that not every round of a full pool has to ask.
                pages = full.pages + memory.pages // SPARE if full.pages > 0 else 0
                slots = full.slots + memory.slots // SPARE if full.slots > 0 else 0
                if not self.relieve(PoolFull(pages, slots)):
                    raise
                self.counters.relieved += 1

    def _hopeless(self, request: Request, full: PoolFull) -> bool:
        """Whether `full` would still hold with everything given back that this request does not itself stand on."""
        pages, slots = self.engine.memory.free()
        held_pages = self.engine.memory.pages - pages - request.start // GRID
        held_slots = self.engine.memory.slots - slots - (request.checkpoint is not None)
        return full.pages > held_pages or full.slots > held_slots

    def _no_memory(self, request: Request, full: PoolFull) -> FlideError:
        if self._hopeless(request, full):
            return TooLong(f"this request needs more memory than the engine has; raise memory_bytes or send less ({full})")
        return Unavailable("the engine's memory is in use by other requests", retry_after=1.0)

    def _fail(self, item: Item, error: FlideError) -> None:
        self.counters.failed += 1
        item.drop()
        item.place.set_exception(error)

    def _count(self, items: list[Item], result: RoundResult, seconds: float) -> None:
        c = self.counters
        c.rounds += 1
        c.requests += sum(i.slices.count == 0 for i in items)
        c.slices += len(items)
        c.per_round[len(items)] += 1
        c.tokens_computed += result.tokens
        c.tokens_shared += sum(r.shared_tokens for r in result.results)
        c.tokens_reused += sum(i.request.start for i in items if i.slices.count == 0)
        c.engine_seconds += seconds
        with self._wake:
            self._line.measured(len(items), result.tokens, seconds)


def _as_ours(error: Exception) -> FlideError:
    if isinstance(error, FlideError):
        return error
    if isinstance(error, RequestError):
        return InternalError(f"the engine refused the request: {error}")
    log.error("the engine failed on a request", exc_info=error)
    return InternalError(f"the engine failed on this request ({type(error).__name__})")
