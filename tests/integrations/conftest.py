"""A real service for the tests of the integrations: a process of its own on loopback, with the embedded model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "service"))
from service_process import Running


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all files that run in this process."""
    server = Running(tmp_path_factory.mktemp("flide") / "store").wait()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def url(service: Running) -> str:
    return service.url


@pytest.fixture(scope="session")
def cold_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second service, which has not seen what the first one has."""
    server = Running(tmp_path_factory.mktemp("cold") / "store").wait()
    yield server.url
    server.stop()
