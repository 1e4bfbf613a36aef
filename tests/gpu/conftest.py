"""The GPU suite: `pytest -m gpu tests/gpu`.

FLIDE_GPU_MODELS and FLIDE_GPU_ROUNDS set how much of it runs (default: all of it); FLIDE_GPU_FIRST_ROUND is the seed of the first
round, so that processes side by side can share the rounds. FLIDE_GPU_LAYERS: only so many layers of each model, in its true widths;
FLIDE_GPU_EVERY: which part of the rounds float32 runs (by default a third on 0.8B and a twentieth on larger models).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path += [
    str(Path(__file__).parents[1] / room) for room in ("engine", "kernels")
]  # the random forests and rounds of those suites

from flide_engine.engine import Engine

MODELS = os.environ.get("FLIDE_GPU_MODELS", "0.8b,4b,9b").split(",")
ROUNDS = int(os.environ.get("FLIDE_GPU_ROUNDS", "300"))
LAYERS = int(os.environ.get("FLIDE_GPU_LAYERS", "0"))
FIRST_ROUND = int(os.environ.get("FLIDE_GPU_FIRST_ROUND", "0"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def rounds() -> range:
    """Seeds of the random rounds."""
    return range(FIRST_ROUND, FIRST_ROUND + ROUNDS)


@pytest.fixture(
    params=[(m, d) for m in MODELS for d in ("bfloat16", "float32")], ids=lambda p: f"{p[0]}-{p[1]}", scope="module"
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """One engine at a time per model size and dtype."""
    from quick import quick_engine  # imports CUDA code, which collection on a CPU machine must not

    size, dtype = request.param
    made = quick_engine(size, getattr(torch, dtype), memory_bytes=4 << 30, layers=LAYERS)
    yield made
    del made
    torch.cuda.empty_cache()
