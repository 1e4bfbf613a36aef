"""Server-sent events of a session: `step` when one is answered, `durable` when it would survive a crash."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from flide_agent.errors import NotFound
from flide_agent.events import Feed
from flide_agent.local import Service

PING_SECONDS = 15.0
LOOK_SECONDS = 0.25
"""How often steps that are not durable yet are looked at."""
MOST_WATCHERS = 64


def _event(kind: str, data: bytes, number: int | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (head, kind.encode(), data)


async def follow(service: Service, feed: Feed, tenant: str, session: str, after: int) -> AsyncGenerator[bytes, None]:
    """Events beyond number `after`, until the session is deleted, the client leaves or the server ends."""
    feed.watchers += 1
    try:
        pending: dict[str, int] = {}
        spoken = time.monotonic()
        yield b": follow\n\n"
        while not feed.closed:
            alarm = feed.alarm(tenant, session)
            for event in feed.since(tenant, session, after):
                after = event.number
                pending[event.head] = after
                spoken = time.monotonic()
                yield _event("step", event.data, after)
            try:
                ready = await durable(service, tenant, session, set(pending))
            except NotFound:
                feed.forget(tenant, session)  # looking made an entry again
                yield _event("deleted", b"{}")
                return
            for step in ready:
                pending.pop(step["head"], None)
                spoken = time.monotonic()
                yield _event("durable", msgspec.json.encode(step))
            if time.monotonic() - spoken > PING_SECONDS:
                spoken = time.monotonic()
                yield b": still here\n\n"
            await feed.wait(alarm, LOOK_SECONDS if pending else PING_SECONDS)
    finally:
        feed.watchers -= 1


async def durable(service: Service, tenant: str, session: str, heads: set[str]) -> list[dict[str, Any]]:
    """Which of these steps are on stable storage, with their checkpoints. Raises NotFound."""
    info = await service.decider.in_thread(lambda: service.sessions.get(tenant, session))
    return [
        {"head": s.head, "step": s.number, "checkpoints": [msgspec.to_builtins(c) for c in s.checkpoints]}
        for s in info.steps
        if s.durable and s.head in heads
    ]
