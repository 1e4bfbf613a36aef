"""The engine thread: everything that waits becomes one round.

One thread owns the engine. Requests wait in a bounded queue; whenever the engine is free it takes the oldest one and, in
order of arrival, all others that fit beside it. The oldest is always taken, so nothing starves. Since an answer has the same
bits in any round, this changes latency and throughput and never an answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from flide_engine.memory import Memory, PoolFull
from flide_engine.segments import GRID, Request, RequestError, Round

from flide_agent.errors import FlideError, InternalError, Overloaded, TooLong, Unavailable

if TYPE_CHECKING:
    from flide_engine.engine import EngineInfo, RequestResult, RoundResult

log = logging.getLogger("flide_agent.dispatch")


class Runs(Protocol):
    """What the dispatcher needs of an engine."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def memory(self) -> Memory: ...

    def run(self, round: Round) -> RoundResult: ...


@dataclass(frozen=True, slots=True)
class Done:
    """An answered request. queued, seconds: time in the queue and in its round; together: requests in that round."""

    result: RequestResult
    queued: float
    seconds: float
    together: int


@dataclass(slots=True)
class _Item:
    request: Request
    tokens: int
    future: Future[Done]
    arrived: float
    started: float = 0.0

    def drop_checkpoint(self) -> None:
        if self.request.checkpoint is not None:
            self.request.checkpoint.release()  # type: ignore[attr-defined]


@dataclass(slots=True)
class Counters:
    """Since the start. per_round: requests in a round -> how many rounds had so many. Tokens are rows of the engine."""

    rounds: int = 0
    requests: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    relieved: int = 0
    retried_alone: int = 0
    tokens_computed: int = 0
    tokens_shared: int = 0
    tokens_reused: int = 0
    engine_seconds: float = 0.0
    per_round: Counter[int] = field(default_factory=Counter)

    def report(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in self.__slots__ if name != "per_round"}
        return out | {"requests_per_round": {str(n): c for n, c in sorted(self.per_round.items())}}


class Dispatcher:
    """relieve: frees device memory for a PoolFull and says whether it freed any (store.relieve); runs on the engine thread."""

    def __init__(
        self, engine: Runs, relieve: Callable[[PoolFull], bool], max_queue: int = 256, max_round_tokens: int = 8192
    ) -> None:
        self.engine, self.relieve = engine, relieve
        self.max_queue, self.max_round_tokens = max_queue, max_round_tokens
        self.counters = Counters()
        self._waiting: deque[_Item] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float = 30.0) -> bool:
        """Refuse what comes, finish what waits, stop the thread. False when it did not end in time."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def enqueue(self, request: Request) -> Future[Done]:
        """Put a request in line. Keeps its checkpoint alive until it is answered. Raises Overloaded, Unavailable, and
        InternalError for what no engine can run: it must not reach a round that others share.

        Cancelling the future while the request waits takes it out of the line. Whoever takes the result owns the
        references of its checkpoints.
        """
        try:
            request.validate(self.engine.info.vocab_size, self.engine.info.max_context)
        except RequestError as e:
            raise _as_ours(e) from e
        item = _Item(request, request.tokens(), Future(), time.perf_counter())
        with self._wake:
            if self._closing:
                raise Unavailable("the server is shutting down", retry_after=1.0)
            if len(self._waiting) >= self.max_queue:
                self.counters.refused += 1
                raise Overloaded(f"{self.max_queue} requests wait already", retry_after=self._pause())
            if request.checkpoint is not None:
                request.checkpoint.retain()  # type: ignore[attr-defined]
            self._waiting.append(item)
            self._wake.notify()
        return item.future

    async def submit(self, request: Request) -> Done:
        """`enqueue` for coroutines. Cancelling the caller frees its place; a result that comes too late is released."""
        future = self.enqueue(request)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(_let_go)
            raise

    def _pause(self) -> float:
        """Seconds until the line will have moved, from the speed so far; whole seconds are what Retry-After can say."""
        tokens = sum(i.tokens for i in self._waiting)
        speed = self.counters.tokens_computed / self.counters.engine_seconds if self.counters.engine_seconds else 0.0
        return float(min(30, max(1, math.ceil(tokens / speed)))) if speed else 1.0

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                if not self._waiting:
                    return
                items = self._take()
            if items:
                self._answer(items)

    def _take(self) -> list[_Item]:
        """The oldest request and, in order, all that fit beside it. Cancelled ones leave the line here."""
        taken: list[_Item] = []
        left: deque[_Item] = deque()
        room = self.max_round_tokens
        for item in self._waiting:
            if taken and item.tokens > room:
                left.append(item)
            elif item.future.set_running_or_notify_cancel():
                taken.append(item)
                room -= item.tokens
            else:
                self.counters.cancelled += 1
                item.drop_checkpoint()
        self._waiting = left
        return taken

    def _answer(self, items: list[_Item]) -> None:
        """Run these as one round and hand out what comes; a round that fails is taken apart until the guilty one is alone."""
        started = time.perf_counter()
        try:
            result = self._run(items)
        except PoolFull as full:
            if len(items) > 1:  # too much at once: what the first half publishes can be freed for the second
                self._answer(items[: len(items) // 2])
                self._answer(items[len(items) // 2 :])
            else:
                self._fail(items[0], self._no_memory(items[0].request, full))
        except Exception as error:
            if len(items) > 1:
                self.counters.retried_alone += len(items)
                for item in items:
                    self._answer([item])
            else:
                self._fail(items[0], _as_ours(error))
        else:
            seconds = time.perf_counter() - started
            self._count(items, result, seconds)
            for item, answer in zip(items, result.results, strict=True):
                item.drop_checkpoint()
                item.future.set_result(Done(answer, started - item.arrived, seconds, len(items)))

    def _run(self, items: list[_Item]) -> RoundResult:
        round = Round(tuple(i.request for i in items))
        while True:
            try:
                return self.engine.run(round)
            except PoolFull as full:
                # What can never fit must not push everybody's checkpoints out before it fails.
                if all(self._hopeless(i.request, full) for i in items) or not self.relieve(full):
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

    def _fail(self, item: _Item, error: FlideError) -> None:
        self.counters.failed += 1
        item.drop_checkpoint()
        item.future.set_exception(error)

    def _count(self, items: list[_Item], result: RoundResult, seconds: float) -> None:
        c = self.counters
        c.rounds += 1
        c.requests += len(items)
        c.per_round[len(items)] += 1
        c.tokens_computed += result.tokens
        c.tokens_shared += sum(r.shared_tokens for r in result.results)
        c.tokens_reused += sum(i.request.start for i in items)
        c.engine_seconds += seconds


def _as_ours(error: Exception) -> FlideError:
    if isinstance(error, FlideError):
        return error
    if isinstance(error, RequestError):
        return InternalError(f"the engine refused the request: {error}")
    log.error("the engine failed on a request", exc_info=error)
    return InternalError(f"the engine failed on this request ({type(error).__name__})")


def _let_go(future: Future[Done]) -> None:
    if not future.cancelled() and future.exception() is None:
        for checkpoint in future.result().result.checkpoints.values():
            checkpoint.release()
