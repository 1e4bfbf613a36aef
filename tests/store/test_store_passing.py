"""A store that goes with its process: its writes come together, and what is void by then is not written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_engine import KEY, FakeEngine, FakeInfo
from flide_engine.memory import PoolFull
from flide_engine.segments import Tokens

from flide_agent.store import CheckpointStore, Kind, queue
from flide_agent.store.files import Files, UnsyncedFiles
from flide_agent.store.jobs import Put, Rows, Task
from flide_agent.store.nodes import Node
from flide_agent.store.queue import MAX_BATCH, Queue
from flide_agent.store.removal import Removal

Opened = Callable[..., CheckpointStore]


def some_tokens(n: int, seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 1000, n).astype(np.int32)


def put(store: CheckpointStore, engine: FakeEngine, seed: int, kind: Kind = Kind.STEP) -> bytes:
    return store.publish(KEY, some_tokens(128, seed), engine.make(some_tokens(128, seed), 128), "s", kind)


def passing(opened: Opened, slots: int = 64) -> tuple[FakeEngine, CheckpointStore]:
    engine = FakeEngine(slots=slots, info=FakeInfo(slots=slots))
    return engine, opened(engine, files=UnsyncedFiles)


def test_what_later_steps_made_superfluous_is_not_written(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LINGER", 60.0)
    engine, store = passing(opened)
    keys = [put(store, engine, seed) for seed in range(4)]
    store.rank({keys[0]: Kind.OLD, keys[1]: Kind.RUNG})
    assert store.flush(10)
    assert [store.describe(key, 128).tiers for key in keys] == [("device",), *[("device", "disk")] * 3]
    assert (store.stats().writes, store.stats().writes_dropped) == (3, 1)
    # It is there as long as the device has room for it, and once something goes on from it, it is written after all.
    with store.find(KEY, some_tokens(128, 0), 128) as found:  # type: ignore[union-attr]
        assert store.resumed(KEY, some_tokens(128, 0), found.m, "s") == keys[0]
    assert store.flush(10)
    assert store.describe(keys[0], 128).tiers == ("device", "disk")


def test_a_store_that_stays_writes_all_of_it(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine, files=Files)
    keys = [put(store, engine, seed) for seed in range(4)]
    store.rank(dict.fromkeys(keys, Kind.OLD))
    assert store.flush(10)
    assert all(store.describe(key, 128).durable for key in keys)


def test_the_device_gives_up_and_the_disk_still_has_it(opened: Opened) -> None:
    engine, store = passing(opened, slots=16)
    key = put(store, engine, 0)
    assert store.flush(10)
    assert store.relieve(PoolFull(0, 1))
    assert store.describe(key, 128).tiers == ("disk",)
    with store.find(KEY, some_tokens(128, 0), 128) as found:  # type: ignore[union-attr]
        assert (found.m, found.tier) == (128, "disk")
        assert engine.good(found.checkpoint, some_tokens(128, 0))


def test_few_slots_wait_for_no_write(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LINGER", 60.0)
    engine, store = passing(opened, slots=16)
    first, second = put(store, engine, 0), put(store, engine, 1)  # two are an eighth of them
    until = time.monotonic() + 10
    while not (store.describe(first, 128).durable and store.describe(second, 128).durable) and time.monotonic() < until:
        time.sleep(0.01)
    assert store.describe(first, 128).durable
    assert store.describe(second, 128).durable


def waiting(n: int = 1) -> list[Put]:
    engine = FakeEngine(slots=max(n, 1))
    return [Put(Node(bytes([i]), 64), engine.make(some_tokens(64, i), 64), some_tokens(64, i), []) for i in range(n)]


def taken(q: Queue) -> tuple[int, float]:
    """How many jobs came, and after how long."""
    begun = time.monotonic()
    jobs = q.take()
    assert jobs is not None
    q.done()
    return len(jobs), time.monotonic() - begun


def rows(n: int) -> list[Any]:
    return [Rows(list, lambda rows, ok: None) for _ in range(n)]


def test_a_first_job_waits_for_others_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LINGER", 0.3)
    q = Queue(patience=2)
    q.add(Removal())
    count, seconds = taken(q)
    assert count == 1
    assert seconds > 0.25
    monkeypatch.setattr(queue, "LINGER", 60.0)
    for one in waiting(2):
        assert q.put(one)
    assert taken(q)[0] == 2
    for job in rows(MAX_BATCH):
        q.add(job)
    assert taken(q)[0] == MAX_BATCH
    q = Queue()
    q.add(Removal())
    assert taken(q)[0] == 1


def test_what_has_waited_does_not_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LINGER", 0.3)
    q = Queue(patience=2)
    for job in (Removal(), Task(Removal), Removal()):  # a Task is a batch of its own
        q.add(job)
    assert [seconds > 0.25 for _, seconds in (taken(q), taken(q), taken(q))] == [True, False, False]
    q.add(Removal())
    assert taken(q)[1] > 0.25
