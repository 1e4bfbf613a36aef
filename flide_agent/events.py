"""What sessions have just done, for those who watch: a bounded memory of the last steps with their answers, and a way to wait.

Answers are kept nowhere else. They live here, in memory, until newer ones push them out or the server ends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from flide_agent.decision import Decision

MOST_EVENTS = 512
"""Of one session."""
MOST_BYTES = 32 << 20
LARGEST = 64 << 10
"""Bytes of one event; a larger one is kept without its answers."""


@dataclass(frozen=True, slots=True)
class Event:
    """number: from 1, in the order of the session. data: JSON. head: the step's."""

    number: int
    head: str
    data: bytes


@dataclass(slots=True)
class _Session:
    events: deque[Event] = field(default_factory=deque)
    last: int = 0
    size: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Feed:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self.closed = False
        self.watchers = 0
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()
        self._size = 0

    def take(self, decision: Decision) -> None:
        """A step was answered."""
        if not decision.session:
            return
        step: dict[str, Any] = decision.reply["x_session"]
        value = step | {"at": decision.started, "answers": decision.reply["answers"]}
        data = msgspec.json.encode(value)
        if len(data) > LARGEST:
            data = msgspec.json.encode(value | {"answers": {}, "answers_left_out": True})
        session = self._session(decision.tenant, decision.session)
        session.last += 1
        session.events.append(Event(session.last, step["head"], data))
        session.size += len(data)
        self._size += len(data)
        while len(session.events) > MOST_EVENTS:
            self._drop_oldest(session)
        while self._size > MOST_BYTES and len(self._sessions) > 1:
            _, oldest = self._sessions.popitem(last=False)
            self._size -= oldest.size
            oldest.wake.set()
        session.wake.set()
        session.wake = asyncio.Event()

    def since(self, tenant: str, session: str, after: int) -> list[Event]:
        """What is remembered of a session beyond event number `after`."""
        found = self._sessions.get((tenant, session))
        return [] if found is None else [e for e in found.events if e.number > after]

    def alarm(self, tenant: str, session: str) -> asyncio.Event:
        """Set by the session's next event, its deletion, or the end of the feed. Taken before looking, it misses nothing."""
        return self._session(tenant, session).wake

    async def wait(self, alarm: asyncio.Event, seconds: float) -> None:
        """Until the alarm, or so long."""
        if self.closed:
            return
        try:
            await asyncio.wait_for(alarm.wait(), seconds)
        except TimeoutError:
            return

    def forget(self, tenant: str, session: str) -> None:
        """The session was deleted."""
        found = self._sessions.pop((tenant, session), None)
        if found is not None:
            self._size -= found.size
            found.wake.set()

    def close(self) -> None:
        """Let all who wait go."""
        self.closed = True
        for session in self._sessions.values():
            session.wake.set()

    def _session(self, tenant: str, session: str) -> _Session:
        found = self._sessions.setdefault((tenant, session), _Session())
        self._sessions.move_to_end((tenant, session))
        return found

    def _drop_oldest(self, session: _Session) -> None:
        gone = session.events.popleft()
        session.size -= len(gone.data)
        self._size -= len(gone.data)
