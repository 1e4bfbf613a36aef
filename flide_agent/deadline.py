"""A wall-clock end for synchronous HTTP calls.

httpx bounds each read by itself, so a server that sends byte by byte holds a call for ever. Here every read, write and connection gets what
is left of the whole call; only looking up a host's name is the system's own matter. Asynchronous calls need none of this: `asyncio.timeout`
ends them.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

_END: ContextVar[float] = ContextVar("flide_call_end")
_CHUNK = 1 << 16
"""Bytes of one write: the library below checks the time between writes only."""


@contextmanager
def until(end: float) -> Iterator[None]:
    """Calls in this block end at `end` (time.monotonic) with a timeout error."""
    token = _END.set(end)
    try:
        yield
    finally:
        _END.reset(token)


def bounded(client: httpx.Client) -> httpx.Client:
    """The client, its connections bound to `until`. Transports that are not httpx's own stay as they are."""
    # httpx has no public way to give httpcore a network backend; proxies of the environment have transports of their own.
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        if isinstance(pool, httpcore.ConnectionPool):
            pool._network_backend = _Backend(pool._network_backend)
    return client


def _left(timeout: float | None, late: type[httpcore.TimeoutException]) -> float | None:
    end = _END.get(None)
    if end is None:
        return timeout
    left = end - time.monotonic()
    if left <= 0:
        raise late("the call's deadline has passed")
    return left if timeout is None else min(timeout, left)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, below: httpcore.NetworkBackend) -> None:
        self._below = below

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._below.connect_tcp(host, port, left, local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._below.connect_unix_socket(path, _left(timeout, httpcore.ConnectTimeout), socket_options))

    def sleep(self, seconds: float) -> None:
        self._below.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    def __init__(self, below: httpcore.NetworkStream) -> None:
        self._below = below

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._below.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _CHUNK):
            self._below.write(buffer[start : start + _CHUNK], _left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._below.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._below.start_tls(ssl_context, server_hostname, _left(timeout, httpcore.ConnectTimeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._below.get_extra_info(info)
