"""Replies leave in one packet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from flide_agent.api.http import MOST_GATHERED, Gathered, Protocol

Scope = dict[str, Any]


class Writing:
    """A transport that writes down what it is asked for."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.log.append(data)

    def close(self) -> None:
        self.closing = True
        self.log.append("close")

    def is_closing(self) -> bool:
        return self.closing

    def set_protocol(self, protocol: object) -> None:
        self.log.append(protocol)

    def get_extra_info(self, name: str) -> str:
        return f"about {name}"


def gathered() -> tuple[Gathered, Writing]:
    below = Writing()
    return Gathered(cast(asyncio.Transport, below), asyncio.get_running_loop()), below


async def test_writes_of_one_turn_leave_together() -> None:
    t, below = gathered()
    t.write(b"head ")
    t.write(b"body")
    assert below.log == []
    await asyncio.sleep(0)
    assert below.log == [b"head body"]
    t.write(b"next")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert below.log == [b"head body", b"next"]
    assert t.get_extra_info("peername") == "about peername"


async def test_nothing_overtakes_what_was_written() -> None:
    t, below = gathered()
    t.write(b"last words")
    t.close()
    assert below.log == [b"last words", "close"]
    t.write(b"too late")
    await asyncio.sleep(0)
    assert below.log == [b"last words", "close"], "a connection that is gone gets nothing"
    t, below = gathered()
    t.write(b"before")
    t.set_protocol(cast(Any, "another protocol"))
    assert below.log == [b"before", "another protocol"]


async def test_a_long_reply_leaves_as_it_comes() -> None:
    """Else nobody would see that its reader is slow."""
    t, below = gathered()
    part = bytes(MOST_GATHERED // 4)
    for _ in range(10):
        t.write(part)
    assert below.log == [4 * part, 4 * part]
    await asyncio.sleep(0)
    assert below.log == [4 * part, 4 * part, 2 * part]


async def answer(scope: Scope, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"body"})


@pytest.mark.parametrize("http", [Protocol, AutoHTTPProtocol])
async def test_a_server_writes_a_reply_once(http: type[asyncio.Protocol]) -> None:
    """uvicorn's own protocol writes head and body apart: if it does no more, `Gathered` can go."""
    config = uvicorn.Config(answer, http=http, lifespan="off", log_config=None)
    config.load()
    state = uvicorn.server.ServerState()
    below = Writing()
    below.get_extra_info = lambda name: None  # type: ignore[assignment,method-assign,misc,return-value]
    protocol = http(config=config, server_state=state, app_state={})  # type: ignore[call-arg]
    protocol.connection_made(cast(asyncio.Transport, below))
    protocol.data_received(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
    for _ in range(5):
        await asyncio.sleep(0)
    writes = [data for data in below.log if isinstance(data, bytes)]
    assert b"".join(writes).startswith(b"HTTP/1.1 200")
    assert b"".join(writes).endswith(b"\r\n\r\nbody")
    assert len(writes) == (1 if http is Protocol else 2)
    protocol.connection_lost(None)
