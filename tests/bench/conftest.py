"""The embedded model's tokenizer, and one server for all tests of this folder that need no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flide_agent import default_model
from flide_agent.bench.target import OwnServer, Target
from flide_agent.bench.texts import Texts
from flide_agent.prompts import Prompts

LANES = 24


@pytest.fixture(scope="session")
def prompts() -> Prompts:
    return Prompts.load(default_model.DIRECTORY)


@pytest.fixture(scope="session")
def texts(prompts: Prompts) -> Texts:
    return Texts(prompts)


@pytest.fixture(scope="session")
def own() -> Iterator[Target]:
    """A real server with tenants for its lanes. Tests use texts of their own."""
    with OwnServer({"device": "cpu", "memory_bytes": 128 << 20}, LANES, environment={"OMP_NUM_THREADS": "1"}) as target:
        yield target
