"""Random operations under small budgets against a plain model: right bits, true ledgers, nothing reachable missing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_engine import KEY, FakeEngine, some_tokens
from flide_engine.memory import Checkpoint, PoolFull
from flide_engine.segments import GRID, Tokens

from flide_agent.store import CheckpointStore
from flide_agent.store.nodes import decode_record

Opened = Callable[..., CheckpointStore]


def trunks(rng: random.Random) -> list[Tokens]:
    """Histories that fork from each other off and on the grid."""
    out = [some_tokens(900, 0)]
    for seed in range(1, 9):
        base = rng.choice(out)
        at = rng.randrange(0, 800)
        out.append(np.concatenate([base[:at], some_tokens(900 - at, seed)]))
    return out


def made(store: CheckpointStore, engine: FakeEngine, tokens: Tokens, m: int, parent: Checkpoint | None) -> Checkpoint:
    while True:
        try:
            return engine.make(tokens, m, parent)
        except PoolFull as full:
            if not store.relieve(full):
                raise


def check(store: CheckpointStore, path: Path) -> None:
    """Invariants of a store at rest."""
    nodes = store._nodes
    with nodes.lock:
        on_disk = {p.name: p.stat().st_size for p in path.glob("objects/*/*")}
        named = {}
        children: dict[bytes, int] = {}
        for node in nodes.by_key.values():
            assert node.pins == 0
            assert node.put is None
            assert node.checkpoint is not None or node.record is not None
            assert (node.key in nodes.device) == (node.checkpoint is not None)
            assert (node.key in nodes.disk) == node.on_disk
            if node.record is not None:
                named[node.record.span] = node.record.span_bytes
                if node.record.state:
                    named[node.record.state] = node.record.state_bytes
                assert (node.parent.key if node.parent else b"") == node.record.parent
                assert (node.parent.m if node.parent else 0) == node.record.since
                if node.parent is not None:
                    assert node.parent.record is not None
                    children[node.parent.key] = children.get(node.parent.key, 0) + 1
        for node in nodes.by_key.values():
            assert node.children == children.get(node.key, 0)
            assert node.record is None or node.record.state or node.children
        assert named == on_disk
        assert nodes.disk_bytes == sum(on_disk.values()) <= store.stats().disk_limit
        stored = {k: decode_record(v) for k, v in store.index.scan("node")}
        in_memory = {n.key: n.record for n in nodes.by_key.values() if n.record is not None}
        assert stored.keys() == in_memory.keys() == {k for k, _ in store.index.scan("ids")}
        for key, record in in_memory.items():
            assert (stored[key].span, stored[key].state, stored[key].parent) == (record.span, record.state, record.parent)
        pages = {int(p) for n in nodes.device.values() if n.checkpoint for p in n.checkpoint.pages}
        memory = store.engine.memory
        assert memory.free() == (memory.pages - len(pages), memory.slots - len(nodes.device))
        host = store._host
        assert set(host._entries) <= set(named)
        assert all(e.readers == 0 and len(e.data) == named[name] for name, e in host._entries.items())
        assert host._arena.used == sum(e.block.size for e in host._entries.values()) <= host._arena.allocated <= host.limit
        assert set(nodes.named) == set(named)
        held = {(h, k) for h, keys in nodes.held.items() for k in keys}
        assert held == {(h, n.key) for n in nodes.by_key.values() for h in n.holders}


@pytest.mark.parametrize(
    ("steps", "seed"), [(250, 1), (250, 2), *(pytest.param(4000, s, marks=pytest.mark.bars) for s in (3, 4, 5))]
)
def test_random_operations(opened: Opened, tmp_path: Path, steps: int, seed: int) -> None:
    rng = random.Random(seed)
    histories = trunks(rng)
    engine = FakeEngine(pages=40, slots=5)
    store = opened(engine, host_bytes=32 * 4096, disk_bytes=60 * 4096)
    hits = {"device": 0, "host": 0, "disk": 0}
    for i in range(steps):
        what = rng.random()
        tokens = rng.choice(histories)
        if what < 0.55:
            m = rng.randrange(1, 15) * GRID
            found = store.find(KEY, tokens, m)
            if found is not None:
                hits[found.tier] += 1
                assert found.m <= m
                assert engine.good(found.checkpoint, tokens)
            if found is None or found.m < m:
                checkpoint = made(store, engine, tokens, m, None if found is None else found.checkpoint)
                store.publish(KEY, tokens, checkpoint, rng.choice(["a", "b", None]))
            if found is not None:
                found.release()
        elif what < 0.8:
            with_pin = store.find(KEY, tokens, rng.randrange(1, 900))
            if with_pin is not None:
                hits[with_pin.tier] += 1
                assert engine.good(with_pin.checkpoint, tokens)
                with_pin.release()
        elif what < 0.86:
            store.relieve(PoolFull(rng.randrange(10), rng.randrange(1, 3)))
        elif what < 0.9:
            store.forget(KEY, rng.choice(["a", "b"]))
        elif what < 0.93:
            store.flush(10)
            store.close()
            assert engine.idle()
            engine = FakeEngine(pages=40, slots=5)
            store = opened(engine, host_bytes=32 * 4096, disk_bytes=60 * 4096)
        if i % 5 == 0:
            assert store.flush(10)
            check(store, tmp_path / "store")
    assert hits["device"] > steps / 20
    assert hits["host"] > steps / 100
    assert hits["disk"] > steps / 100
    assert store.stats().corrupt == 0


def test_threads_share_a_store(opened: Opened, tmp_path: Path) -> None:
    """Finders, publishers, evictions and deletions at once, under memory for a few checkpoints."""
    engine = FakeEngine(pages=80, slots=10)
    store = opened(engine, disk_bytes=80 * 4096)
    histories = trunks(random.Random(7))
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(80):
                tokens, m = rng.choice(histories), rng.randrange(1, 10) * GRID
                found = store.find(KEY, tokens, m)
                try:
                    if found is not None:
                        assert engine.good(found.checkpoint, tokens)
                    if found is None or found.m < m:
                        try:
                            checkpoint = made(store, engine, tokens, m, None if found is None else found.checkpoint)
                        except PoolFull:
                            continue  # the other threads have it all pinned
                        store.publish(KEY, tokens, checkpoint, rng.choice(["a", "b", None]))
                finally:
                    if found is not None:
                        found.release()
                if rng.random() < 0.03:
                    store.forget(KEY, "a")
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults
    assert store.flush(10)
    check(store, tmp_path / "store")
    assert store.stats().corrupt == 0
    store.close()
    assert engine.idle()
