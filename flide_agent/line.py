"""The line before the engine: who may stand in it, and who is next.

Admission is by requests, tokens and time to wait. Order is start-time fair queueing over owners (a session, or a tenant's
requests outside sessions): whoever had fewer rows so far goes first, so that nobody's flood delays the others by more than its
share. Nothing starves: an owner's turn comes with the rows that the others take.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flide_engine.segments import Request

from flide_agent.errors import Overloaded
from flide_agent.slices import Slices

if TYPE_CHECKING:
    from flide_engine.engine import RequestResult

FIRST_SPEED_AFTER = 0.05
"""Seconds of engine time before its speed is believed."""
_HALF = 2.0
"""Seconds of engine time after which a measured speed counts half."""


@dataclass(frozen=True, slots=True)
class Done:
    """An answered request. queued: time that it waited, in all; seconds: in its rounds; together: most requests in one of them."""

    result: RequestResult
    queued: float
    seconds: float
    together: int


class Place(Future[Done]):
    """A request's place in the line. left: whoever asked has gone; what is not begun is not run."""

    def __init__(self) -> None:
        super().__init__()
        self.left = False


@dataclass(slots=True, eq=False)
class Item:
    """deadline: of time.perf_counter; 0: none. tokens: rows that it still needs, about. rows: of its next slice."""

    slices: Slices
    owner: bytes
    deadline: float
    place: Place = field(default_factory=Place)
    arrived: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    together: int = 0
    tokens: int = 0
    rows: int = 0
    begun: bool = False

    @property
    def request(self) -> Request:
        return self.slices.next

    def drop(self) -> None:
        """Release what it holds of the engine's memory."""
        self.slices.drop()
        if self.slices.request.checkpoint is not None:
            self.slices.request.checkpoint.release()  # type: ignore[attr-defined]


class Admission:
    """The right to come to the line. `leave` gives it up or uses it, once; further calls do nothing."""

    __slots__ = ("_leave",)

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class Line:
    """Not thread-safe: the dispatcher holds its lock. expected: requests that were let in and are still being read."""

    def __init__(self, max_queue: int, max_tokens: int, max_wait: float) -> None:
        self.max_queue, self.max_tokens, self.max_wait = max_queue, max_tokens, max_wait
        self.tokens = 0
        self.running = 0
        self.expected = 0
        self._waiting: dict[bytes, deque[Item]] = {}
        self._count = 0
        self._served: dict[bytes, float] = {}
        self._now = 0.0
        self._rows = self._seconds = self._requests = 0.0

    def __len__(self) -> int:
        return self._count

    # --- admission ---

    def wait(self, owner: bytes | None = None) -> float:
        """Seconds that one more request would wait, at the speed so far; 0.0 while that is unknown.

        It waits for what runs, for one slice of everybody who waits or is expected, and for all that its own owner (if known)
        has in line.
        """
        if self._seconds <= FIRST_SPEED_AFTER:
            return 0.0
        rows = self.running + sum(line[0].rows for line in self._waiting.values())
        rows += round(self.expected * self._rows / max(1.0, self._requests))
        if owner in self._waiting:
            rows += sum(item.tokens for item in self._waiting[owner])
        return rows * self._seconds / self._rows

    def check(self, tokens: int = 0, owner: bytes | None = None) -> None:
        """Raise Overloaded when no request of `tokens` rows may come now."""
        if self._count + self.expected >= self.max_queue:
            raise self._refusal("queue", f"{self._count + self.expected} requests wait already")
        if self._count and self.tokens + tokens > self.max_tokens:
            raise self._refusal("tokens", f"{self.tokens} tokens wait already")
        if self.max_wait and self._count + self.expected and (wait := self.wait(owner)) > self.max_wait:
            raise self._refusal("wait", f"it would wait about {wait:.1f} s")

    def _refusal(self, reason: str, message: str) -> Overloaded:
        """Whole seconds are what Retry-After can say."""
        return Overloaded(message, retry_after=float(min(30, max(1, math.ceil(self.wait())))), reason=reason)

    def measured(self, requests: int, rows: int, seconds: float) -> None:
        """The engine ran so many rows, of so many requests or slices, in so long."""
        keep = 0.5 ** (seconds / _HALF)
        self._rows, self._seconds = self._rows * keep + rows, self._seconds * keep + seconds
        self._requests = self._requests * keep + requests

    # --- order ---

    def add(self, item: Item, *, again: bool = False) -> None:
        """At the end of its owner's requests; again: at their head, it has been begun."""
        line = self._waiting.setdefault(item.owner, deque())
        if again:
            line.appendleft(item)
        else:
            line.append(item)
        item.rows = item.request.tokens()
        self._count += 1
        self.tokens += item.tokens

    def take(self, room: int) -> tuple[list[Item], list[Item]]:
        """(what goes into the next round of about `room` rows, what leaves without an answer: cancelled or expired).

        The first of the fairest owner always goes, however long. A slice of a long request only joins a round that stays
        within one slice: a long request is not to make short ones longer.
        """
        now, rows_taken, active = time.perf_counter(), 0, max(1, len(self._waiting))
        taken: list[Item] = []
        gone: list[Item] = []
        heap: list[tuple[float, float, bytes]] = []
        heads = {owner: iter(list(line)) for owner, line in self._waiting.items()}
        current: dict[bytes, Item] = {}

        def push(owner: bytes) -> None:
            if (item := next(heads[owner], None)) is not None:
                current[owner] = item
                heapq.heappush(heap, (max(self._now, self._served.get(owner, 0.0)), item.arrived, owner))

        for owner in heads:
            push(owner)
        first: float | None = None
        while heap:
            tag, _, owner = heapq.heappop(heap)
            item = current[owner]
            if not self._wanted(item, now):
                self._remove(item)
                gone.append(item)
            elif not taken or rows_taken + item.rows <= (item.slices.rows if item.slices.cut else room):
                self._remove(item)
                taken.append(item)
                rows_taken += item.rows
                first = tag if first is None else first
                self._served[owner] = tag + item.rows
            push(owner)
        if first is not None:
            # Time goes on by everybody's share of what was taken, so that ever new owners cannot pass an old one forever.
            self._now = max(self._now + rows_taken / active, first)
        self._served = {o: v for o, v in self._served.items() if v > self._now or o in self._waiting}
        return taken, gone

    @staticmethod
    def _wanted(item: Item, now: float) -> bool:
        if item.begun:
            return not item.place.left
        if item.deadline and now > item.deadline:
            return False
        return not item.place.cancelled()

    def _remove(self, item: Item) -> None:
        line = self._waiting[item.owner]
        line.remove(item)
        if not line:
            del self._waiting[item.owner]
        self._count -= 1
        self.tokens -= item.tokens


def let_go(future: Future[Done]) -> None:
    """Release the checkpoints of an answer that nobody takes."""
    if not future.cancelled() and future.exception() is None:
        for checkpoint in future.result().result.checkpoints.values():
            checkpoint.release()
