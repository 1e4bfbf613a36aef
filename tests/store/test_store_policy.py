"""What is kept when there is no room for all, what is written, and what is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_engine import KEY, FakeEngine, some_tokens
from flide_engine.memory import PoolFull

from flide_agent.store import CheckpointStore, Kind
from flide_agent.store.costs import Costs

Opened = Callable[..., CheckpointStore]
OTHER = b"o" * 32


def put(
    store: CheckpointStore, engine: FakeEngine, seed: int, m: int, kind: Kind, session: str = "s", key: bytes = KEY
) -> bytes:
    tokens = some_tokens(m, seed)
    return store.publish(key, tokens, engine.make(tokens, m), session, kind)


def on_device(store: CheckpointStore, key: bytes) -> bool:
    return "device" in store.describe(key, 0).tiers


def on_disk(store: CheckpointStore, key: bytes) -> bool:
    return "disk" in store.describe(key, 0).tiers


def test_value_is_time_saved_per_byte() -> None:
    costs = Costs()
    costs.computed(1000, 1.0)

    def value(kind: Kind = Kind.STEP, idle: float = 0.0, tokens: int = 640, reload: int = 0, freed: int = 1000) -> float:
        return costs.value(kind, idle, tokens, reload, freed)

    assert value() == pytest.approx(4 * 0.64 / 1000)
    assert value(freed=2000) == pytest.approx(value() / 2)
    assert value(tokens=1280) == pytest.approx(2 * value())
    assert value(idle=60) == pytest.approx(value() / 2)
    kinds = [value(kind) for kind in sorted(Kind)]
    assert kinds == sorted(kinds)
    assert len(set(kinds)) == len(Kind)
    # a copy that can be had again from below is worth its load, or what computing costs when that is less
    costs.loaded(1_000_000, 0, 1.0)
    assert value(reload=100_000) == pytest.approx(4 * 0.1 / 1000)
    assert value(reload=10_000_000) == pytest.approx(value())
    # the speed follows what is measured
    for _ in range(100):
        costs.computed(1000, 0.1)
    assert costs.compute_seconds(1000) == pytest.approx(0.1, rel=0.01)
    costs.computed(8, 100.0)
    assert costs.compute_seconds(1000) == pytest.approx(0.1, rel=0.01)


def test_the_device_gives_up_what_is_worth_least(opened: Opened) -> None:
    engine = FakeEngine(slots=8)
    store = opened(engine)
    store.writer.put = lambda put: False  # type: ignore[method-assign]  # nothing below
    order = [Kind.PREFIX, Kind.STEP, Kind.FORK, Kind.RUNG, Kind.OLD, Kind.INNER]
    keys = {kind: put(store, engine, seed, 128, kind) for seed, kind in enumerate(order)}
    for gone in range(1, len(order) + 1):
        assert store.relieve(PoolFull(0, 1))
        assert [kind for kind in order if on_device(store, keys[kind])] == order[: len(order) - gone]


def test_time_saved_counts_by_the_bytes_really_freed(opened: Opened) -> None:
    engine = FakeEngine(slots=8)
    store = opened(engine)
    store.writer.put = lambda put: False  # type: ignore[method-assign]
    tokens = some_tokens(1024, 0)
    parent, keys = None, {}
    for m in (512, 576, 1024):
        made = engine.make(tokens, m, parent)
        parent = made
        keys[m] = store.publish(KEY, tokens, made, "s", Kind.OLD)
    short = put(store, engine, 9, 64, Kind.OLD)
    # The short one saves as little as 576 does, and dropping it frees a page besides; 512 saves most and frees no page.
    assert store.relieve(PoolFull(0, 1))
    assert not on_device(store, short)
    assert store.relieve(PoolFull(0, 2))
    assert [m for m in keys if on_device(store, keys[m])] == [512]


def test_what_is_used_is_kept_before_its_like(opened: Opened) -> None:
    engine = FakeEngine(slots=4)
    store = opened(engine)
    store.writer.put = lambda put: False  # type: ignore[method-assign]
    keys = [put(store, engine, seed, 128, Kind.OLD) for seed in range(4)]
    store.find(KEY, some_tokens(128, 0), 128).release()
    assert store.relieve(PoolFull(0, 1))
    assert [on_device(store, k) for k in keys] == [True, False, True, True]


def test_inner_boundaries_are_written_once_something_goes_on_from_them(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine)
    key = put(store, engine, 0, 128, Kind.INNER)
    assert store.flush(10)
    assert store.describe(key, 128).tiers == ("device",)
    assert not store.index.scan("hold")
    with store.find(KEY, some_tokens(128, 0), 128) as found:
        assert store.resumed(KEY, some_tokens(128, 0), found.m, "s") == key
    assert store.flush(10)
    assert store.describe(key, 128).tiers == ("device", "disk")
    assert len(store.index.scan("hold")) == 1
    store.close()
    store = opened(FakeEngine())
    assert store._nodes.by_key[key].kind is Kind.FORK
    assert store.forget(KEY, "s") == 1


def test_ranks_change_and_last_over_a_restart(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine)
    step, prefix = put(store, engine, 0, 128, Kind.STEP), put(store, engine, 1, 128, Kind.PREFIX)
    store.rank({step: Kind.OLD, prefix: Kind.OLD, b"unknown": Kind.STEP})
    store.flush(10)
    store.find(KEY, some_tokens(128, 0), 128).release()
    store.close()
    store = opened(FakeEngine())
    assert [store._nodes.by_key[k].kind for k in (step, prefix)] == [Kind.OLD, Kind.PREFIX]


def test_a_session_over_its_budget_gives_up_its_own(opened: Opened) -> None:
    engine = FakeEngine()
    one = 0
    store = opened(engine, session_bytes=100_000)
    mine = put(store, engine, 99, 64, Kind.OLD, "other")
    for seed in range(12):
        put(store, engine, seed, 64, Kind.STEP, "greedy")
        assert store.flush(10)
        one = one or store.stats().disk_bytes // 2
        holder = store._nodes
        used = [holder.held_bytes(h) for h in holder.held]
        assert max(used) <= 100_000
    assert store.stats().evicted_disk > 0
    assert on_disk(store, mine)
    assert store.stats().disk_bytes > one


def test_a_tenant_over_its_budget_gives_up_its_own(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine, tenant_bytes=100_000)
    small = put(store, engine, 99, 64, Kind.OLD, "other", OTHER)
    for seed in range(12):
        put(store, engine, seed, 64, Kind.STEP, f"s{seed}")
        assert store.flush(10)
    assert max(store._nodes.tenants.values()) <= 100_000
    assert sum(store._nodes.tenants.values()) == store.stats().disk_bytes
    assert on_disk(store, small)
    store.close()
    engine = FakeEngine()
    store = opened(engine, tenant_bytes=100_000)
    assert sum(store._nodes.tenants.values()) == store.stats().disk_bytes
    for seed in range(20, 32):
        put(store, engine, seed, 64, Kind.STEP, f"s{seed}")
        assert store.flush(10)
    assert max(store._nodes.tenants.values()) <= 100_000


def test_a_tenant_over_an_equal_share_goes_first(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine, disk_bytes=300_000)
    small = put(store, engine, 99, 64, Kind.OLD, "other", OTHER)
    for seed in range(30):
        put(store, engine, seed, 64, Kind.OLD, f"s{seed}")
        assert store.flush(10)
    assert store.stats().evicted_disk > 0
    assert on_disk(store, small), "the one that was used least recently, of a tenant that keeps little"


def test_loading_that_takes_longer_than_computing_is_passed_over(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine)
    tokens = some_tokens(640, 0)
    first = engine.make(tokens, 256)
    store.publish(KEY, tokens, first, "s")
    store.publish(KEY, tokens, engine.make(tokens, 640, first), "s")
    store.flush(10)
    store.close()
    store = opened(FakeEngine())
    store.costs.computed(1_000_000, 1.0)  # 384 tokens in 0.4 ms
    for _ in range(8):
        store.costs.loaded(1000, 0, 1.0)
    assert store.find(KEY, tokens, 640) is None
    assert store.stats().loads_passed_over == 2
    for _ in range(200):
        store.costs.loaded(1_000_000_000, 0, 1.0)
    with store.find(KEY, tokens, 640) as found:
        assert (found.m, found.tier) == (640, "disk")


def test_junctions_are_where_trunks_parted(opened: Opened) -> None:
    store = opened(FakeEngine())
    a = some_tokens(1000, 0)
    b = np.concatenate([a[:700], some_tokens(300, 1)])
    assert store.junction(KEY, a) == 0
    store.trace(KEY, a)
    assert store.junction(KEY, b) == 640
    assert store.junction(KEY, a) == 960
    assert store.junction(OTHER, b) == 0
    start = time.perf_counter()
    store.trace(KEY, some_tokens(30_000, 3))
    assert time.perf_counter() - start < 0.1


def test_trails_forget_the_oldest_ends_first() -> None:
    from flide_agent.store.trails import Trails

    trails = Trails(limit=10)
    keys = [bytes([i]) * 32 for i in range(8)]
    trails.add(keys)
    trails.add([bytes([100 + i]) * 32 for i in range(5)])
    assert trails.agree(keys) == 5


def test_no_chain_of_forgotten_nodes_stays(opened: Opened, tmp_path: Path) -> None:
    """A session of many steps under memory for two: what is gone is let go of."""
    engine = FakeEngine(pages=400, slots=3)
    store = opened(engine, disk_bytes=4096)  # nothing fits on disk
    trunk = some_tokens(64, 0)
    for i in range(1, 120):
        found = store.find(KEY, trunk, len(trunk))
        parent = None if found is None else found.checkpoint
        while True:
            try:
                made = engine.make(trunk, len(trunk), parent)
                break
            except PoolFull as full:
                if not store.relieve(full):
                    raise
        store.publish(KEY, trunk, made, "s")
        if found is not None:
            found.release()
        trunk = np.concatenate([trunk, some_tokens(64, i)])
    store.flush(10)
    length, node = 0, next(reversed(store._nodes.device.values())).up
    while node is not None:
        length, node = length + 1, node.up
    assert length < 8
