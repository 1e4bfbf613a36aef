"""The Litestar app around a service."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from litestar import Litestar
from litestar.datastructures import State

from flide_agent.api.errors import HANDLERS
from flide_agent.api.routes import ROUTES
from flide_agent.local import Service


def make_app(service: Service) -> Litestar:
    """The app; it closes the service when it ends."""

    @asynccontextmanager
    async def life(_: Litestar) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await service.close()

    return Litestar(
        ROUTES,
        exception_handlers=HANDLERS,
        state=State({"service": service}),
        lifespan=[life],
        request_max_body_size=None,  # `body.read` caps it, and lets the sender read why
        openapi_config=None,
        logging_config=None,
    )
