"""uvicorn as we run it, in the engine process and in front ends."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from flide_agent.api.gate import Gate
from flide_agent.settings import Settings

SWITCH_SECONDS = 0.0005
"""Threads that render and the loop take turns at the interpreter; with the default of 5 ms each turn costs a request that."""


KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than clients keep theirs, and than most steps of an agent take. A connection that
the server closes first is a request that fails when it crosses the close."""
MOST_GATHERED = 1 << 16
"""Bytes of a reply that leave at once, so that a long one is told to wait when its reader is slow."""


class Gathered:
    """A transport whose writes of one turn of the event loop leave together. uvicorn writes head and body of a reply apart: two packets,
    each of which wakes whoever reads, and on a virtual machine that costs the sender more than the reply."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= MOST_GATHERED:
            self.flush()

    def flush(self) -> None:
        if self._parts and not self._transport.is_closing():
            self._transport.write(b"".join(self._parts))
        self._parts, self._size = [], 0

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.flush()
        self._transport.set_protocol(protocol)


class Protocol(AutoHTTPProtocol):  # type: ignore[valid-type,misc]
    """uvicorn's, over `Gathered`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(Gathered(transport, asyncio.get_running_loop()))  # type: ignore[arg-type]


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
                http=Protocol,
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
