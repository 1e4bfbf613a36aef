"""Whose turn it is: start-time fair queueing, over tenants and, within each, over its sessions.

Whoever had fewer rows so far goes first, so that nobody's flood delays the others by more than its share: a tenant's that of the
other tenants, a session's that of the tenant's other sessions. Nothing starves: a turn comes with the rows that others take.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar


class Waits(Protocol):
    """What is known of a request in line. tenant, owner: whose turn it takes. arrived: of time.perf_counter."""

    @property
    def tenant(self) -> bytes: ...

    @property
    def owner(self) -> bytes: ...

    @property
    def arrived(self) -> float: ...


W = TypeVar("W", bound=Waits)


class Clock:
    """Virtual time of some keys, in rows: who was served goes on from where its last rows ended, a newcomer from now."""

    def __init__(self) -> None:
        self.now = 0.0
        self._served: dict[bytes, float] = {}

    def tag(self, key: bytes) -> float:
        return max(self.now, self._served.get(key, 0.0))

    def serve(self, key: bytes, rows: int) -> None:
        self._served[key] = self.tag(key) + rows

    def advance(self, first: float, rows: int, active: int) -> None:
        """Time goes on by everybody's share of what was taken, so that ever new keys cannot pass an old one forever.

        first: the tag of the first that was served. active: keys that waited.
        """
        self.now = max(self.now + rows / max(1, active), first)

    def forget(self, waiting: Mapping[bytes, object]) -> None:
        """Those who are not ahead of their share and wait for nothing."""
        self._served = {k: v for k, v in self._served.items() if v > self.now or k in waiting}


class _Round:
    """What one clock serves in one round."""

    def __init__(self, clock: Clock, active: int) -> None:
        self.clock, self.active, self.rows = clock, active, 0
        self.first: float | None = None

    def serve(self, key: bytes, rows: int) -> None:
        self.first = self.clock.tag(key) if self.first is None else self.first
        self.clock.serve(key, rows)
        self.rows += rows

    def end(self) -> None:
        if self.first is not None:
            self.clock.advance(self.first, self.rows, self.active)


class Turns:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._tenants, self._owners = Clock(), dict[bytes, Clock]()
        self._rounds: dict[bytes, _Round] = {}
        self._all = _Round(self._tenants, 0)

    def order(self, waiting: Mapping[bytes, Sequence[W]]) -> Iterator[W]:
        """Everybody's requests (by owner, in the order that each owner's are to run), the next in turn first.

        Say `serve` of each that is taken, before the next one is asked for, and `end` at the end.
        """
        queues: dict[bytes, list[tuple[float, float, bytes]]] = {}
        heads = {owner: iter(list(line)) for owner, line in waiting.items()}
        current: dict[bytes, W] = {}

        def push(owner: bytes) -> None:
            if (item := next(heads[owner], None)) is not None:
                current[owner] = item
                clock = self._owners.setdefault(item.tenant, Clock())
                heapq.heappush(queues.setdefault(item.tenant, []), (clock.tag(owner), item.arrived, owner))

        for owner in heads:
            push(owner)
        tenants = [(self._tenants.tag(t), queue[0][1], t) for t, queue in queues.items()]
        heapq.heapify(tenants)
        self._all = _Round(self._tenants, len(queues))
        self._rounds = {t: _Round(self._owners[t], len(queue)) for t, queue in queues.items()}
        while tenants:
            _, _, tenant = heapq.heappop(tenants)
            queue = queues[tenant]
            _, _, owner = heapq.heappop(queue)
            yield current[owner]
            push(owner)
            if queue:
                heapq.heappush(tenants, (self._tenants.tag(tenant), queue[0][1], tenant))

    def serve(self, item: Waits, rows: int) -> None:
        """The item takes its turn of so many rows."""
        self._all.serve(item.tenant, rows)
        self._rounds[item.tenant].serve(item.owner, rows)

    def end(self, waiting: Mapping[bytes, Sequence[Waits]]) -> None:
        """The round is full. waiting: what is left."""
        for each in (self._all, *self._rounds.values()):
            each.end()
        here = {line[0].tenant: None for line in waiting.values()}
        self._tenants.forget(here)
        for tenant in list(self._owners):
            self._owners[tenant].forget(waiting)
            if tenant not in here and self._tenants.tag(tenant) <= self._tenants.now:
                del self._owners[tenant]
