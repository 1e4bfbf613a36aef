"""Many checkpoints in the index: a start, a lookup, and what an answer never waits for."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from fake_engine import KEY, FakeEngine, some_tokens
from many_checkpoints import filled

from flide_agent.store import CheckpointStore
from flide_agent.store.files import Files
from flide_agent.store.identity import identity

Opened = Callable[..., CheckpointStore]


class Listed(Files):
    """Payload files that are only said to be there, so that many need no file system."""

    names: ClassVar[dict[str, str]] = {}

    def listing(self) -> dict[str, str]:
        return dict(self.names)


@pytest.mark.parametrize("count", [1_000, *(pytest.param(n, marks=pytest.mark.bars) for n in (10_000, 100_000))])
def test_start_and_lookup(opened: Opened, tmp_path: Path, bar: Callable[..., None], count: int) -> None:
    opened(FakeEngine()).close()
    Listed.names = filled(tmp_path / "store", count, identity(FakeEngine().info, "p"), count <= 10_000)
    engine = FakeEngine(pages=512)
    start = time.perf_counter()
    store = opened(engine, files=Files if count <= 10_000 else Listed, disk_bytes=1 << 30)
    seconds = time.perf_counter() - start
    assert store.stats().disk_count == count
    assert store.stats().disk_bytes == 2000 * count
    assert store.notes == ()
    if count <= 10_000:
        bar(f"store: restart with {count:,} checkpoints (s)", seconds, limit=1.0)
    tokens = some_tokens(30_000, 5)
    store.writer.put = lambda put: False  # type: ignore[method-assign]  # stays on the device
    store.publish(KEY, tokens, engine.make(tokens, 29_952), "s")
    times = []
    for i in range(101):
        history = np.concatenate([tokens, some_tokens(64, i)])
        history.flags.writeable = False
        start = time.perf_counter()
        store.junction(KEY, history)
        found = store.find(KEY, history, len(history))
        times.append(time.perf_counter() - start)
        assert found is not None
        assert found.m == 29_952
        found.release()
    median = 1000 * statistics.median(times)
    if count == 100_000:
        bar("store: lookup for 30,000 tokens among 100,000 checkpoints, median (ms)", median, limit=1.0, start_seconds=seconds)
    else:
        assert median < 3.0


def test_no_answer_waits_for_the_disk(opened: Opened, tmp_path: Path) -> None:
    """With every call into the file system and every commit held up, steps go on: find, publish, find again."""
    held = threading.Event()

    class Stuck(Files):
        def point(self, name: str) -> None:
            if threading.current_thread() is not threading.main_thread():
                held.wait(30)

    engine = FakeEngine(pages=512, slots=64)
    store = opened(engine, files=Stuck)
    trunk = some_tokens(64, 0)
    start = time.perf_counter()
    for i in range(1, 20):
        found = store.find(KEY, trunk, len(trunk))
        m = 0 if found is None else found.m
        assert m == (len(trunk) - 64 if i > 1 else 0)
        store.publish(KEY, trunk, engine.make(trunk, len(trunk), None if found is None else found.checkpoint), "s")
        store.hold(KEY, [store.key(KEY, trunk)], "t")
        if found is not None:
            found.release()
        trunk = np.concatenate([trunk, some_tokens(64, i)])
    assert time.perf_counter() - start < 5
    assert store.stats().writes == 0
    assert not store.flush(0.05)
    held.set()
    assert store.flush(20)
    assert store.stats().writes == 19
