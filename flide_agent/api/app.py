"""The app around a service: Litestar inside, the gate around it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from litestar import Litestar
from litestar.datastructures import State

from flide_agent import views
from flide_agent.api import operations, routes
from flide_agent.api.errors import HANDLERS
from flide_agent.api.gate import Gate
from flide_agent.errors import FlideError, NotFound
from flide_agent.events import Feed
from flide_agent.keys import Keys
from flide_agent.local import TENANT, Service
from flide_agent.metrics import Metrics

log = logging.getLogger("flide_agent")
LONGEST_PAUSE = 60.0
"""Seconds between two looks for sessions that nobody uses any more."""


def make_app(service: Service, keys: Keys | None = None) -> Gate:
    """The app; it closes the service when it ends. keys: None lets everybody in."""
    feed, metrics = Feed(), Metrics(service)
    service.decider.watchers += [metrics.decision, feed.take]

    @asynccontextmanager
    async def life(_: Litestar) -> AsyncGenerator[None, None]:
        sweep = asyncio.ensure_future(_expire(service, feed, keys)) if service.settings.session_seconds else None
        try:
            yield
        finally:
            feed.close()
            if sweep is not None:
                sweep.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sweep
            await service.close()

    app = Litestar(
        [*routes.ROUTES, *operations.ROUTES],
        exception_handlers=HANDLERS,
        state=State({"service": service, "feed": feed, "metrics": metrics}),
        lifespan=[life],
        request_max_body_size=None,  # `body.read` caps it, and lets the sender read why
        openapi_config=None,
        logging_config=None,
    )
    return Gate(app, service, keys, metrics, feed)


async def _expire(service: Service, feed: Feed, keys: Keys | None) -> None:
    """Delete sessions that nobody used for `session_seconds`."""
    seconds = service.settings.session_seconds
    while True:
        await asyncio.sleep(min(LONGEST_PAUSE, seconds / 4))
        for tenant in sorted({TENANT, *(keys.tenants if keys is not None else ())}):
            try:
                await _expire_tenant(service, feed, tenant, seconds)
            except FlideError as e:
                log.warning("expired sessions stay for now: %s", e.error_type)


async def _expire_tenant(service: Service, feed: Feed, tenant: str, seconds: float) -> None:
    decider = service.decider
    for session in await decider.in_thread(lambda: decider.retention.expired(tenant, seconds)):
        with contextlib.suppress(NotFound):  # somebody deleted it meanwhile
            await views.delete(decider, tenant, session)
            feed.forget(tenant, session)
