"""uvicorn as we run it, in the engine process and in front ends."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable

import uvicorn

from flide_agent.api.gate import Gate
from flide_agent.settings import Settings

SWITCH_SECONDS = 0.0005
"""Threads that render and the loop take turns at the interpreter; with the default of 5 ms each turn costs a request that."""


KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than clients keep theirs, and than most steps of an agent take. A connection that
the server closes first is a request that fails when it crosses the close."""


def settle_in() -> None:
    """This process is about to serve. What is loaded by now stays: the collector need not look through it again, a tenth of a second
    each time that all threads would wait for."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()


class Server(uvicorn.Server):
    """started_: called when it accepts connections. Lets streams end when it is told to stop."""

    def __init__(self, gate: Gate, settings: Settings, started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                gate,
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="on",
                timeout_graceful_shutdown=int(settings.shutdown_seconds),
                timeout_keep_alive=KEEP_ALIVE,
            )
        )
        self._gate, self._tell = gate, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gate.backend.end_streams()
        await super().shutdown(sockets)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def url_of(bound: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
