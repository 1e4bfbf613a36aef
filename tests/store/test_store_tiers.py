"""Publishing, finding, sharing and evicting on both tiers, with states made up from tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_engine import KEY, FakeEngine, FakeInfo, some_tokens
from flide_engine.memory import PoolFull
from flide_engine.segments import GRID

from flide_agent.store import CheckpointStore, MustLoad
from flide_agent.store.identity import chain, framed, identity

Opened = Callable[..., CheckpointStore]


def grow(
    store: CheckpointStore, engine: FakeEngine, tokens: np.ndarray, ends: list[int], session: str | None = None
) -> list[bytes]:
    """Steps of one history: each goes on from what the store finds."""
    keys = []
    for m in ends:
        found = store.find(KEY, tokens, m)
        checkpoint = engine.make(tokens, m, None if found is None else found.checkpoint)
        keys.append(store.publish(KEY, tokens, checkpoint, session))
        if found is not None:
            found.release()
    return keys


def files(store_path: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in store_path.glob("objects/*/*")}


def test_published_is_found_at_once_and_deepest_first(engine: FakeEngine, opened: Opened) -> None:
    store = opened(engine)
    tokens = some_tokens(1000)
    grow(store, engine, tokens, [128, 512])
    for at_most, m in ((1000, 512), (512, 512), (511, 128), (128, 128), (127, None), (0, None)):
        found = store.find(KEY, tokens, at_most)
        assert (found and found.m) == m
        if found:
            assert found.tier == "device"
            assert engine.good(found.checkpoint, tokens)
            found.release()
            found.release()
    other = tokens.copy()
    other[300] += 1
    with store.find(KEY, other, 1000) as found:
        assert found.m == 128
    other[0] += 1
    assert store.find(KEY, other, 1000) is None


def test_nothing_leaks(engine: FakeEngine, opened: Opened) -> None:
    store = opened(engine)
    tokens = some_tokens(1000)
    grow(store, engine, tokens, [64, 128, 512, 960])
    assert not engine.idle()
    store.close()
    assert engine.idle()
    store = opened(engine)
    store.find(KEY, tokens, 1000).release()
    store.close()
    assert engine.idle()


def test_tenants_do_not_meet(engine: FakeEngine, opened: Opened) -> None:
    store = opened(engine)
    tokens = some_tokens(200)
    a, b = store.share_key("a"), store.share_key("b")
    store.publish(a, tokens, engine.make(tokens, 128), None)
    assert store.find(b, tokens, 200) is None
    store.find(a, tokens, 200).release()
    store.flush(10)
    store.close()
    store = opened(engine)
    assert (store.share_key("a"), store.share_key("b")) == (a, b)
    assert store.find(b, tokens, 200) is None
    store.find(a, tokens, 200).release()


def test_restart_finds_the_same_bits(engine: FakeEngine, opened: Opened) -> None:
    store = opened(engine)
    tokens = some_tokens(2000)
    keys = grow(store, engine, tokens, [64, 320, 640, 1984])
    assert store.flush(10)
    assert all(store.describe(k, 0).durable for k in keys)
    store.close()
    again = FakeEngine()
    store = opened(again)
    for at_most, m in ((2000, 1984), (1983, 640), (639, 320), (319, 64)):
        with store.find(KEY, tokens, at_most) as found:
            assert (found.m, found.tier) == (m, "disk")
            assert again.good(found.checkpoint, tokens)
    with store.find(KEY, tokens, 2000) as found:
        assert found.tier == "device"
        other = tokens.copy()
        assert not again.good(found.checkpoint, np.concatenate([other[:10] + 1, other[10:]]).astype(np.int32))


def test_who_may_not_wait_is_told_that_it_must_be_loaded(engine: FakeEngine, opened: Opened) -> None:
    store = opened(engine)
    tokens = some_tokens(200)
    grow(store, engine, tokens, [128])
    with store.find(KEY, tokens, 200, wait=False) as found:
        assert (found.m, found.tier) == (128, "device")
    assert store.find(KEY, some_tokens(200) + 1, 200, wait=False) is None
    store.flush(10)
    store.close()
    store = opened(FakeEngine())
    with pytest.raises(MustLoad):
        store.find(KEY, tokens, 200, wait=False)
    with store.find(KEY, tokens, 200) as found:
        assert found.tier == "disk"


def test_loading_shares_pages_with_what_the_device_has(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine)
    tokens = some_tokens(1024)
    grow(store, engine, tokens, [128, 640, 1024])
    store.flush(10)
    store.close()
    engine = FakeEngine()
    store = opened(engine)
    store.find(KEY, tokens, 300).release()
    store.find(KEY, tokens, 1024).release()
    # the middle one is inside a span that the device has already
    store.find(KEY, tokens, 700).release()
    free, _ = engine.memory.free()
    assert engine.memory.pages - free == (1024 + 512) // GRID
    with store.find(KEY, tokens, 700) as found:
        assert engine.good(found.checkpoint, tokens)


def test_a_next_checkpoint_costs_its_state_and_new_pages(engine: FakeEngine, opened: Opened, tmp_path: Path) -> None:
    store = opened(engine)
    tokens = some_tokens(4096)
    grow(store, engine, tokens, [2048])
    store.flush(10)
    before = files(tmp_path / "store")
    grow(store, engine, tokens, [2048 + 128])
    store.flush(10)
    new = {n: s for n, s in files(tmp_path / "store").items() if n not in before}
    kv = next(s for n, s in new.items() if n.endswith(".kv"))
    assert len(new) == 2
    assert kv <= 2 * engine.memory.page_bytes + 3 * 4096  # header and two tensors, each padded to 4096
    assert kv < 34 * engine.memory.page_bytes / 4


def test_publishing_twice_keeps_one(engine: FakeEngine, opened: Opened, tmp_path: Path) -> None:
    store = opened(engine)
    tokens = some_tokens(200)
    for _ in range(3):
        store.publish(KEY, tokens, engine.make(tokens, 192), "s")
        store.flush(10)
    assert len(files(tmp_path / "store")) == 2
    assert engine.memory.free() == (engine.memory.pages - 3, engine.memory.slots - 1)


def test_relieve_frees_least_recently_used_and_spares_the_pinned(opened: Opened) -> None:
    engine = FakeEngine(pages=64, slots=4)
    store = opened(engine)
    trunks = [some_tokens(128, seed) for seed in range(4)]
    for tokens in trunks:
        store.publish(KEY, tokens, engine.make(tokens, 128), None)
    store.flush(10)
    pinned = store.find(KEY, trunks[0], 128)
    with pytest.raises(PoolFull) as full:
        engine.make(some_tokens(64, 9), 64)
    assert store.relieve(full.value)
    assert engine.memory.free()[1] == 1
    tiers = []
    for tokens in trunks:
        key = chain(identity(engine.info, "p"), KEY, tokens)[-1]
        tiers.append(store.describe(key, 128).tiers)
    assert tiers == [("device", "disk"), ("disk",), ("device", "disk"), ("device", "disk")]
    assert store.relieve(PoolFull(0, 3))
    assert not store.relieve(PoolFull(0, 1))
    assert engine.good(pinned.checkpoint, trunks[0])
    pinned.release()
    assert store.relieve(PoolFull(0, 1))
    assert engine.idle()
    # what was evicted comes back from disk, and makes room for itself
    for tokens in trunks * 2:
        with store.find(KEY, tokens, 128) as found:
            assert engine.good(found.checkpoint, tokens)


def test_relieve_takes_waiting_writes_last(opened: Opened) -> None:
    engine = FakeEngine(pages=64, slots=2)
    store = opened(engine)
    store.writer.put = lambda put: True  # type: ignore[method-assign]  # queued for ever
    for seed in range(2):
        tokens = some_tokens(64, seed)
        store.publish(KEY, tokens, engine.make(tokens, 64), None)
    assert store.relieve(PoolFull(0, 1))
    assert store.stats().writes_dropped == 1
    assert engine.memory.free()[1] == 1
    assert store.find(KEY, some_tokens(64, 0), 64) is None
    store.find(KEY, some_tokens(64, 1), 64).release()


def test_device_budget(opened: Opened) -> None:
    engine = FakeEngine()
    one = engine.memory.slot_bytes + 2 * engine.memory.page_bytes
    store = opened(engine, device_bytes=3 * one)
    for seed in range(8):
        tokens = some_tokens(128, seed)
        store.publish(KEY, tokens, engine.make(tokens, 128), None)
        store.flush(10)
    stats = store.stats()
    assert stats.device_count == 3
    assert stats.device_bytes == 3 * one
    assert stats.evicted_device == 5
    for seed in range(8):
        with store.find(KEY, some_tokens(128, seed), 128) as found:
            assert engine.good(found.checkpoint, some_tokens(128, seed))


def test_disk_budget_evicts_least_recently_used_and_ledger_is_true(opened: Opened, tmp_path: Path) -> None:
    engine = FakeEngine()
    budget = 40 * 4096
    store = opened(engine, disk_bytes=budget)
    for seed in range(20):
        tokens = some_tokens(64, seed)
        store.publish(KEY, tokens, engine.make(tokens, 64), None)
        store.flush(10)
        assert store.stats().disk_bytes == sum(files(tmp_path / "store").values()) <= budget
    assert store.stats().evicted_disk > 0
    store.close()
    store = opened(FakeEngine(), disk_bytes=budget)
    assert store.stats().disk_bytes == sum(files(tmp_path / "store").values())
    assert store.find(KEY, some_tokens(64, 0), 64) is None
    store.find(KEY, some_tokens(64, 19), 64).release()


def test_a_checkpoint_larger_than_the_budget_stays_on_the_device(opened: Opened, tmp_path: Path) -> None:
    engine = FakeEngine()
    store = opened(engine, disk_bytes=4096)
    tokens = some_tokens(64)
    key = store.publish(KEY, tokens, engine.make(tokens, 64), None)
    store.flush(10)
    assert store.describe(key, 64).tiers == ("device",)
    assert not store.describe(key, 64).durable
    assert store.stats().writes_dropped == 1
    assert not files(tmp_path / "store")


def test_middle_node_gives_its_state_and_keeps_its_span(opened: Opened, tmp_path: Path) -> None:
    engine = FakeEngine()
    store = opened(engine)
    tokens = some_tokens(512)
    grow(store, engine, tokens, [128, 256, 512])
    store.flush(10)
    from flide_agent.store.removal import Removal, remove_state

    keys = chain(identity(engine.info, "p"), KEY, tokens)
    removal = Removal()
    with store._nodes.lock:
        remove_state(store._nodes, store._nodes.by_key[keys[3]], removal)
    store.writer.submit(removal)
    store.flush(10)
    assert sorted(n.split(".")[1] for n in files(tmp_path / "store")) == ["kv", "kv", "kv", "state", "state"]
    store.close()
    engine = FakeEngine()
    store = opened(engine)
    with store.find(KEY, tokens, 300) as found:
        assert found.m == 128
    with store.find(KEY, tokens, 512) as found:
        assert found.m == 512
        assert engine.good(found.checkpoint, tokens)
    # publishing the middle again writes only its state
    grow(store, engine, tokens, [256])
    store.flush(10)
    assert sorted(n.split(".")[1] for n in files(tmp_path / "store")) == ["kv", "kv", "kv", "state", "state", "state"]
    # and when the leaf goes, its span goes too, then the middle's
    removal = Removal()
    with store._nodes.lock:
        for i in (3, 7):
            remove_state(store._nodes, store._nodes.by_key[keys[i]], removal)
    store.writer.submit(removal)
    store.flush(10)
    assert sorted(n.split(".")[1] for n in files(tmp_path / "store")) == ["kv", "state"]
    assert store.stats().disk_bytes == sum(files(tmp_path / "store").values())


def test_forget_takes_what_only_that_session_holds(engine: FakeEngine, opened: Opened, tmp_path: Path) -> None:
    store = opened(engine)
    tokens = some_tokens(512)
    other = tokens.copy()
    other[200:] += 1
    grow(store, engine, tokens, [128, 512], "a")
    with store.find(KEY, other, 512) as found:
        assert found.m == 128
        store.hold(KEY, [found.key], "b")
    grow(store, engine, other, [512], "b")
    store.flush(10)
    assert store.forget(KEY, "a") == 1
    assert store.find(KEY, tokens, 512).m == 128
    assert len(files(tmp_path / "store")) == 4
    assert store.forget(KEY, "a") == 0
    assert store.forget(KEY, "b") == 2
    assert files(tmp_path / "store") == {}
    assert store.find(KEY, other, 512) is None
    assert store.stats().disk_bytes == 0


def test_other_model_is_unreachable_and_collected(engine: FakeEngine, opened: Opened, tmp_path: Path) -> None:
    store = opened(engine)
    tokens = some_tokens(200)
    grow(store, engine, tokens, [128, 192])
    store.flush(10)
    store.close()
    for change in ({"weights_digest": "cd" * 32}, {"numerics": "fake-2"}, {"dtype": "float32"}):
        assert identity(FakeInfo(**change), "p") != identity(FakeInfo(), "p")
    other = FakeEngine(info=FakeInfo(model="other", weights_digest="cd" * 32))
    store = opened(other)
    assert store.find(KEY, tokens, 200) is None
    assert store.flush(10)
    assert any("2 checkpoints written by fake" in note and "other" in note for note in store.notes)
    assert store.stats().collected == 2
    assert files(tmp_path / "store") == {}
    assert store.stats().disk_bytes == 0
    store.close()
    assert opened(FakeEngine()).find(KEY, tokens, 200) is None


def test_framing_separates_fields() -> None:
    cases = [("a", "bc"), ("ab", "c"), ("abc",), ("abc", None), ("abc", ""), (b"abc",), (1,), ("1",)]
    assert len({framed(*c) for c in cases}) == len(cases)


def test_find_is_fast_for_12k_tokens(engine: FakeEngine, opened: Opened) -> None:
    store = opened(engine)
    tokens = some_tokens(12000)
    grow(store, engine, tokens, [128])
    times = []
    for _ in range(50):
        start = time.perf_counter()
        found = store.find(KEY, tokens, len(tokens))
        times.append(time.perf_counter() - start)
        found.release()
    assert sorted(times)[len(times) // 2] < 0.5e-3
