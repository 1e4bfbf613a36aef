"""The app around a backend: Litestar inside, the gate around it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from litestar import Litestar
from litestar.datastructures import State

from flide_agent.api import operations, routes
from flide_agent.api.backend import Backend
from flide_agent.api.errors import HANDLERS
from flide_agent.api.gate import Gate
from flide_agent.keys import Keys


def make_app(backend: Backend, keys: Keys | None = None) -> Gate:
    """The app; it starts the backend and closes it when it ends. keys: None lets everybody in."""

    @asynccontextmanager
    async def life(_: Litestar) -> AsyncGenerator[None, None]:
        await backend.start()
        try:
            yield
        finally:
            await backend.close()

    app = Litestar(
        [*routes.ROUTES, *operations.ROUTES],
        exception_handlers=HANDLERS,
        state=State({"backend": backend}),
        lifespan=[life],
        request_max_body_size=None,  # `body.read` caps it, and lets the sender read why
        openapi_config=None,
        logging_config=None,
    )
    return Gate(app, backend, keys)
