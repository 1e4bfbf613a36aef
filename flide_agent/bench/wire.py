"""Clients that wait for each answer before they send the next request, on bare kept-alive connections in one event loop.

Against a server that does nothing, 64 httpx clients took 2 ms of this process' time a request and these take 0.01 (two shared
cores, Python 3.11): with httpx one would measure the client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
LIMIT = 1 << 26


@dataclass(frozen=True, slots=True)
class Got:
    """A reply. status 0: the connection went away, and body says why. ms: from the first byte sent to the last one read, which was
    at `ended` of time.perf_counter."""

    status: int
    body: bytes
    ms: float
    ended: float = 0.0


class Connection:
    """One kept-alive connection, opened when it is first used."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._prefix = parts.path.rstrip("/")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, body: bytes = b"", headers: str = "") -> Got:
        """One request. headers: whole lines, each with its line end."""
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port, limit=LIMIT)
            reader, writer = self._streams
            began = time.perf_counter()
            writer.write(head.encode() + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            found = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
            content = await reader.readexactly(int(found.get(b"content-length", b"0")))
            ended = time.perf_counter()
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError, IndexError) as e:
            self.close()
            return Got(0, f"{type(e).__name__}: {e}".encode(), 0.0, time.perf_counter())
        if found.get(b"connection", b"").lower() == b"close":
            self.close()
        return Got(int(lines[0].split()[1]), content, 1e3 * (ended - began), ended)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def closed_loop(
    url: str, clients: int, jobs: Sequence[T], work: Callable[[Connection, int, T], Awaitable[None]]
) -> list[float]:
    """Run all jobs, each client one after the other in their order. work: (connection, number of the job, job).

    Returns seconds of the host's monotonic clock (time.perf_counter): the start, when the first client found nothing more to do,
    and the end.
    """
    todo = iter(enumerate(jobs))
    idle = float("inf")

    async def client() -> None:
        nonlocal idle
        connection = Connection(url)
        try:
            for number, job in todo:
                await work(connection, number, job)
            idle = min(idle, time.perf_counter())
        finally:
            connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(min(clients, len(jobs)))))
    return [started, idle, time.perf_counter()]


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
