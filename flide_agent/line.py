"""The line before the engine: who may stand in it, and who is next.

Admission is by requests, tokens and time to wait; a tenant with nothing in line may always come, so that another's flood does not
keep it out. Order is that of `turns`: fair between tenants, and between the owners (a session, or a tenant's requests outside
sessions) within each.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flide_engine.segments import Request

from flide_agent.errors import Overloaded
from flide_agent.slices import Slices
from flide_agent.turns import Turns

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

    @property
    def tenant(self) -> bytes:
        return self.slices.request.share_key

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
    """Not thread-safe: the dispatcher holds its lock. expected: requests of each tenant that were let in and are still being
    read. Tenants and owners are opaque keys; b"" is a tenant too."""

    def __init__(self, max_queue: int, max_tokens: int, max_wait: float) -> None:
        self.max_queue, self.max_tokens, self.max_wait = max_queue, max_tokens, max_wait
        self.tokens = 0
        self.running = 0
        self.expected: Counter[bytes] = Counter()
        self._waiting: dict[bytes, deque[Item]] = {}
        self._of_tenant: Counter[bytes] = Counter()
        self._count = 0
        self._turns = Turns()
        self._rows = self._seconds = self._requests = 0.0

    def __len__(self) -> int:
        return self._count

    # --- admission ---

    def wait(self, tenant: bytes | None = None, owner: bytes | None = None) -> float:
        """Seconds that one more request would wait, at the speed so far; 0.0 while that is unknown.

        It waits for what runs, for one slice of each of its tenant's owners, for all that its own owner has in line, and for
        other tenants no longer than for its own, or for one slice of each. tenant: None is one with everybody's requests.
        """
        if self._seconds <= FIRST_SPEED_AFTER:
            return 0.0
        mean = self._rows / max(1.0, self._requests)
        rows = {key: round(count * mean) for key, count in self.expected.items()}
        most = {key: min(n, round(mean)) for key, n in rows.items()}
        for line in self._waiting.values():
            first = line[0]
            rows[first.tenant] = rows.get(first.tenant, 0) + first.rows
            most[first.tenant] = max(most.get(first.tenant, 0), first.rows)
        own = sum(rows.values()) if tenant is None else rows.pop(tenant, 0)
        others = 0 if tenant is None else sum(min(n, max(own, most[key])) for key, n in rows.items())
        queued = sum(item.tokens for item in self._waiting.get(owner, ())) if owner is not None else 0
        return (self.running + own + others + queued) * self._seconds / self._rows

    def check(self, tenant: bytes, tokens: int = 0, owner: bytes | None = None) -> None:
        """Raise Overloaded when no request of `tokens` rows may come now."""
        come = self._count + self.expected.total()
        if self._of_tenant[tenant] + self.expected[tenant]:
            if come >= self.max_queue:
                raise self._refusal("queue", f"{come} requests wait already")
            if self._count and self.tokens + tokens > self.max_tokens:
                raise self._refusal("tokens", f"{self.tokens} tokens wait already")
        if self.max_wait and come and (wait := self.wait(tenant, owner)) > self.max_wait:
            raise self._refusal("wait", f"it would wait about {wait:.1f} s")

    def _refusal(self, reason: str, message: str) -> Overloaded:
        """Whole seconds are what Retry-After can say."""
        return Overloaded(message, retry_after=float(min(30, max(1, math.ceil(self.wait())))), reason=reason)

    def measured(self, requests: int, rows: int, seconds: float) -> None:
        """The engine ran so many rows, of so many requests or slices, in so long."""
        keep = 0.5 ** (seconds / _HALF)
        self._rows, self._seconds = self._rows * keep + rows, self._seconds * keep + seconds
        self._requests = self._requests * keep + requests

    def expected_seconds(self, rows: int) -> float:
        """Of engine time for so many rows, at the speed so far; 0.0 while that is unknown."""
        return rows * self._seconds / self._rows if self._seconds > FIRST_SPEED_AFTER else 0.0

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
        self._of_tenant[item.tenant] += 1
        self.tokens += item.tokens

    def take(self, room: int) -> tuple[list[Item], list[Item]]:
        """(what goes into the next round of about `room` rows, what leaves without an answer: cancelled or expired).

        The first of the fairest owner always goes, however long. A slice of a long request only joins a round that stays
        within one slice: a long request is not to make short ones longer.
        """
        now, rows_taken = time.perf_counter(), 0
        taken: list[Item] = []
        gone: list[Item] = []
        for item in self._turns.order(self._waiting):
            if not self._wanted(item, now):
                self._remove(item)
                gone.append(item)
            elif not taken or rows_taken + item.rows <= (item.slices.rows if item.slices.cut else room):
                self._remove(item)
                taken.append(item)
                rows_taken += item.rows
                self._turns.serve(item, item.rows)
        self._turns.end(self._waiting)
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
        self._of_tenant[item.tenant] -= 1
        if not self._of_tenant[item.tenant]:
            del self._of_tenant[item.tenant]
        self.tokens -= item.tokens


def let_go(future: Future[Done]) -> None:
    """Release the checkpoints of an answer that nobody takes."""
    if not future.cancelled() and future.exception() is None:
        for checkpoint in future.result().result.checkpoints.values():
            checkpoint.release()
