"""What the HTTP side asks of the service: the same whether it runs in this process (`inside`) or behind a pipe (`remote`).

No torch and no engine behind these imports: front-end processes have neither.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol, TypeVar

import msgspec

from flide_agent.asks import Ask, Opening
from flide_agent.decision import Served
from flide_agent.inflight import Inflight
from flide_agent.settings import Settings

T = TypeVar("T")
INLINE_BYTES = 16 << 10
"""Bodies up to this size are decoded and checked where they arrive; the canonical form of a long history is work for a thread."""
INLINE_TEXT_BYTES = 32 << 10
"""The same of bodies without \\u escapes, if all but a state that is a text is within INLINE_BYTES: mostly less than what handing them to a
thread costs the event loop."""


class Answer(msgspec.Struct, frozen=True):
    """body: the reply as it goes out. m, saved: of a decision, see `Decision`."""

    body: bytes
    status: int = 200
    m: int = 0
    saved: int = 0


class Prefetch(msgspec.Struct, frozen=True, tag=True):
    ask: Ask


class OpenSession(msgspec.Struct, frozen=True, tag=True):
    opening: Opening


class ListSessions(msgspec.Struct, frozen=True, tag=True):
    limit: int
    cursor: str | None


class GetSession(msgspec.Struct, frozen=True, tag=True):
    session: str


class DeleteSession(msgspec.Struct, frozen=True, tag=True):
    session: str


class ForkSession(msgspec.Struct, frozen=True, tag=True):
    session: str
    opening: Opening


class Ready(msgspec.Struct, frozen=True, tag=True):
    """whole: with what is known of engine and store."""

    whole: bool


class Stats(msgspec.Struct, frozen=True, tag=True):
    pass


class MetricsText(msgspec.Struct, frozen=True, tag=True):
    pass


Operation = (
    Prefetch | OpenSession | ListSessions | GetSession | DeleteSession | ForkSession | Ready | Stats | MetricsText
)  # fmt: skip


class Admitted(Protocol):
    """The right to come to the engine's line. `leave` gives it up; after it was used that does nothing."""

    def leave(self) -> None: ...


class Backend(Protocol):
    """Everything raises FlideError. Belongs to one event loop."""

    settings: Settings
    served: Served
    inflight: Inflight

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Finish what runs and give everything back."""

    def end_streams(self) -> None:
        """Let those who follow sessions go: the server is about to end."""

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work off the event loop."""
        ...

    async def admit(self, tenant: str, size: int) -> Admitted:
        """Let a decision in before its body of about `size` bytes is read, so that a refusal costs nothing."""
        ...

    async def decide(self, tenant: str, ask: Ask, admitted: Admitted) -> Answer:
        """Cancelling frees its place."""
        ...

    async def do(self, tenant: str, operation: Operation) -> Answer: ...

    async def follow(self, tenant: str, session: str, after: int) -> AsyncGenerator[bytes, None]:
        """Server-sent events of a session beyond number `after`; NotFound and Overloaded come before the first."""
        ...

    def replied(self, route: str, method: str, status: int, seconds: float) -> None:
        """A reply left, for the metrics."""

    def refused(self, reason: str) -> None:
        """A request was refused for load, for the metrics."""
