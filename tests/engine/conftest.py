"""Engines shared by the engine tests, and the check that none of them leaks memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flide_engine.engine import Engine
from sharp import sharp_engine


@pytest.fixture(scope="session", params=["dummy:tiny", "dummy:tiny6"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """float32 engines of both head groupings; every test must give back all the memory it took."""
    return sharp_engine(request.param)


@pytest.fixture(autouse=True)
def no_leak(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves pages or slots taken."""
    if "engine" not in request.fixturenames:
        yield
        return
    memory = request.getfixturevalue("engine").memory
    before = memory.free()
    yield
    assert memory.free() == before, "a test leaked pages or slots"
