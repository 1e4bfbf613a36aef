"""Servers for the tests of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from service_process import Running, Start


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """start(store, *options): a server that is up; start(..., wait=False): one that may not come up."""
    running: list[Running] = []

    def begin(store: Path, *options: str, port: int = 0, wait: bool = True) -> Running:
        server = Running(store, *options, port=port)
        running.append(server)
        return server.wait() if wait else server

    yield begin
    for server in running:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server with its defaults for all tests that need no other; they take sessions of their own names."""
    shared = Running(tmp_path_factory.mktemp("store") / "s").wait()
    yield shared
    shared.kill()
