"""A few real runs, made once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from training import agent
from training.facts import Episode
from training.workplace import Templates, packages


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def templates() -> Iterator[Templates]:
    with tempfile.TemporaryDirectory(prefix="templates") as folder:
        yield Templates(Path(folder))


@pytest.fixture(scope="session")
def small_packages() -> list[Path]:
    found = [p for p in packages() if len(list(p.rglob("*.py"))) < 12]
    if len(found) < 3:
        pytest.skip("fewer than three small pure-Python packages are installed")
    return found[:3]


@pytest.fixture(scope="session")
def runs(templates: Templates, small_packages: list[Path]) -> list[Episode]:
    """Eight runs of the scripted agent: real commands."""
    return [agent.episode(templates, small_packages, seed) for seed in range(8)]
