"""Engines shared by the engine tests, and a model whose answers are as sharp as the bars ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flide_engine.engine import Engine

SHARPER = 2.5
"""What brings the standard deviation of the label logits of a tiny model from 1.6 to 4."""


def sharp_engine(name: str, dtype: torch.dtype = torch.float32, **settings: int) -> Engine:
    """An engine whose label logits have a standard deviation of about 4: the final norm is scaled up."""
    engine = Engine.load(name, dtype=dtype, memory_bytes=settings.pop("memory_bytes", 256 << 20), **settings)
    engine.model.norm.copy_((1 + engine.model.norm) * SHARPER - 1)
    return engine


@pytest.fixture(scope="session", params=["dummy:tiny", "dummy:tiny6"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """float32 engines of both head groupings; every test must give back all the memory it took."""
    made = sharp_engine(request.param)
    yield made


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
