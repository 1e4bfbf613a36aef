from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine

from flide_agent.store import CheckpointStore


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., CheckpointStore]]:
    """opened(engine, **options): a store in the test's directory, closed at the end."""
    stores: list[CheckpointStore] = []

    def make(engine: Any, *, path: Path | None = None, **options: Any) -> CheckpointStore:
        options = {"prompts_digest": "p", "disk_bytes": 64 << 20} | options
        store = CheckpointStore.open(path or tmp_path / "store", engine, **options)
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()
