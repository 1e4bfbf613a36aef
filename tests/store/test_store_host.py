"""The host tier: copies of the disk's files in memory, within a budget, in place until nobody reads them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fake_engine import KEY, FakeEngine, some_tokens
from flide_engine.memory import PoolFull
from test_store_model import check
from test_store_tiers import grow

import flide_agent.store.host as module
from flide_agent.store import CheckpointStore
from flide_agent.store.host import ALIGN, Arena, Block, wants_pinned

Opened = Callable[..., CheckpointStore]
EVERYTHING = PoolFull(1 << 20, 1 << 20)


def test_what_was_written_is_resumed_from_the_host(opened: Opened, tmp_path: Path) -> None:
    engine = FakeEngine()
    store = opened(engine, host_bytes=1 << 20)
    tokens = some_tokens(1024)
    keys = grow(store, engine, tokens, [128, 640, 1024], "s")
    assert store.flush(10)
    assert store.describe(keys[1], 640).tiers == ("device", "host", "disk")
    stats = store.stats()
    assert (stats.host_count, stats.host_bytes, stats.host_limit) == (3, stats.disk_bytes, 1 << 20)
    assert store.relieve(EVERYTHING)
    for path in (tmp_path / "store").glob("objects/*/*"):
        path.write_bytes(b"nobody reads this")
    for at_most, m in ((1024, 1024), (700, 640), (200, 128)):
        with store.find(KEY, tokens, at_most) as found:
            assert (found.m, found.tier) == (m, "host")
            assert found.loaded_bytes > 0
            assert engine.good(found.checkpoint, tokens)
    stats = store.stats()
    assert (stats.hits_host, stats.bytes_read, stats.corrupt) == (3, 0, 0)
    assert stats.bytes_from_host > 0


def test_after_a_restart_it_is_filled_by_what_is_loaded(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine, host_bytes=1 << 20)
    tokens = some_tokens(1024)
    grow(store, engine, tokens, [128, 1024])
    store.flush(10)
    store.close()
    engine = FakeEngine()
    store = opened(engine, host_bytes=1 << 20)
    assert store.stats().host_bytes == 0
    for tier in ("disk", "host"):
        with store.find(KEY, tokens, 1024) as found:
            assert (found.m, found.tier) == (1024, tier)
            assert engine.good(found.checkpoint, tokens)
        store.relieve(EVERYTHING)
    with store.find(KEY, tokens, 200) as found:  # its K/V were read for the deeper one, its state was not
        assert (found.m, found.tier) == (128, "disk")


def test_the_budget_holds_and_what_is_worth_least_goes_first(opened: Opened, tmp_path: Path) -> None:
    engine = FakeEngine()
    store = opened(engine, host_bytes=64 * ALIGN)
    trunks = [some_tokens(128, seed) for seed in range(20)]
    for tokens in trunks:
        store.publish(KEY, tokens, engine.make(tokens, 128), "s")
        assert store.flush(10)
        check(store, tmp_path / "store")
    stats = store.stats()
    assert 0 < stats.host_bytes <= 64 * ALIGN
    assert stats.evicted_host > 0
    store.relieve(EVERYTHING)
    assert store.find(KEY, trunks[0], 128).tier == "disk"
    assert store.find(KEY, trunks[19], 128).tier == "host"


def test_what_is_forgotten_leaves_the_host_too(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine, host_bytes=1 << 20)
    tokens = some_tokens(512)
    grow(store, engine, tokens, [128, 512], "s")
    assert store.flush(10)
    assert store.stats().host_bytes > 0
    store.forget(KEY, "s")
    assert store.flush(10)
    assert store.stats().host_bytes == 0


def test_what_is_read_stays_in_place_though_it_is_gone(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine, host_bytes=16 * ALIGN)
    store.publish(KEY, some_tokens(128), engine.make(some_tokens(128), 128), "s")
    store.flush(10)
    host = store._host
    name = next(n for n in host._entries if n.endswith(".state"))
    entry = host.borrow(name)
    assert entry is not None
    before = entry.data.clone()
    host.drop([name])
    assert host.borrow(name) is None
    for seed in range(1, 12):
        store.publish(KEY, some_tokens(64, seed), engine.make(some_tokens(64, seed), 64), "s")
        store.flush(10)
    assert torch.equal(entry.data, before)
    used = host._arena.used
    host.release(entry)
    assert host._arena.used == used - entry.block.size


def test_no_host_tier_is_the_default(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine)
    grow(store, engine, some_tokens(256), [128, 256])
    store.flush(10)
    stats = store.stats()
    assert (stats.host_bytes, stats.host_count, stats.host_pinned) == (0, 0, False)


def test_memory_is_pinned_for_cuda_alone_and_goes_without_when_it_cannot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert [wants_pinned(d) for d in ("cpu", "cuda", "cuda:1")] == [False, True, True]
    pinned: dict[int, int] = {}
    undone: list[int] = []

    def pin(data: torch.Tensor, device: str) -> None:
        assert device == "cuda:1"
        if pinned:
            raise RuntimeError("CUDA error: out of memory\nmore of it")
        pinned[data.data_ptr()] = len(data)

    monkeypatch.setattr(module, "pin", pin)
    monkeypatch.setattr(module, "unpin", lambda address, device: undone.append(address))
    monkeypatch.setattr(module, "SEGMENT", 1 << 16)
    arena = Arena(1 << 18, "cuda:1")
    assert arena.take(1 << 16) == Block(0, 0, 1 << 16)
    assert arena.pinned
    assert arena.take(1 << 16) is not None
    assert arena.take(1 << 16) is not None
    assert list(pinned.values()) == [1 << 16]
    assert not arena.pinned
    assert [r.message for r in caplog.records] == [
        "host memory cannot be pinned (CUDA error: out of memory): resuming from it is slower"
    ]
    view = arena.view(Block(0, 64, 128), 128)
    del arena
    assert not undone, "somebody still reads it"
    del view
    assert undone == list(pinned), "the first segment alone, before its memory goes"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_blocks_never_overlap_and_all_come_back(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(module, "SEGMENT", 64 * ALIGN)
    rng = random.Random(seed)
    arena = Arena(300 * ALIGN, "cpu")
    held: list[Block] = []
    for _ in range(2000):
        if rng.random() < 0.55:
            block = arena.take(rng.randrange(1, 40 * ALIGN))
            if block is not None:
                assert all(
                    b.segment != block.segment or b.offset + b.size <= block.offset or block.offset + block.size <= b.offset
                    for b in held
                )
                assert len(arena.view(block, block.size)) == block.size
                held.append(block)
        elif held:
            arena.give(held.pop(rng.randrange(len(held))))
        assert arena.used == sum(b.size for b in held) <= arena.allocated <= arena.limit
    for block in held:
        arena.give(block)
    assert arena._free == [[(0, len(s))] for s in arena.segments]
    assert arena.take(arena.limit + 1) is None
