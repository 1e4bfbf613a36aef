"""Objects are named by their content: put twice is put once, and what is put again while it is being removed stays."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import KEY, FakeEngine, FakeInfo, some_tokens
from test_store_model import check

from flide_agent.store import CheckpointStore
from flide_agent.store.files import Files
from flide_agent.store.removal import Removal, remove_state

Opened = Callable[..., CheckpointStore]
TOKENS = some_tokens(128)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.glob("objects/*/*"))


def put(store: CheckpointStore, engine: FakeEngine) -> bytes:
    return store.publish(KEY, TOKENS, engine.make(TOKENS, 128), "s")


def evict(store: CheckpointStore, key: bytes) -> Removal:
    """Off the device, and off the disk as soon as the writer gets the removal."""
    removal = Removal()
    with store._nodes.lock:
        node = store._nodes.by_key[key]
        remove_state(store._nodes, node, removal)
        store._nodes.leave_device(node)
    return removal


def test_names_are_hashes_and_the_same_content_has_the_same(opened: Opened, tmp_path: Path) -> None:
    engine = FakeEngine()
    store = opened(engine)
    key = put(store, engine)
    store.flush(10)
    first = names(tmp_path / "store")
    assert len(first) == 2
    for path in (tmp_path / "store").glob("objects/*/*"):
        assert path.name == f"{hashlib.sha256(path.read_bytes()).hexdigest()}{path.suffix}"
        assert path.parent.name == path.name[:2]
    store.writer.submit(evict(store, key))
    store.flush(10)
    assert names(tmp_path / "store") == []
    put(store, engine)
    store.flush(10)
    assert names(tmp_path / "store") == first
    files = store.index.files
    chunks, size = [b"x" * 10, b"y"], 11
    assert files.put("kv", chunks, size) == files.put("kv", chunks, size)
    assert files.delete(f"{hashlib.sha256(b'x' * 10 + b'y').hexdigest()}.kv")


class Gated(Files):
    """The writer waits before its first call until it is let go."""

    gate = threading.Event()

    def point(self, name: str) -> None:
        if threading.current_thread().name == "store-writer":
            Gated.gate.wait(10)


@pytest.mark.parametrize("order", ["put first", "removal first", "removal, put and removal again"])
@pytest.mark.parametrize("batch", [1, 128])
def test_put_again_while_it_is_being_removed(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, batch: int
) -> None:
    from flide_agent.store import queue

    monkeypatch.setattr(queue, "MAX_BATCH", batch)
    Gated.gate.set()
    engine = FakeEngine()
    store = opened(engine, files=Gated, host_bytes=1 << 20)
    key = put(store, engine)
    store.flush(10)
    before = names(tmp_path / "store")
    Gated.gate.clear()
    store.writer.submit(Removal(dirty={b"none"}))  # the writer waits in this one
    removal = evict(store, key)
    if order == "put first":
        put(store, engine)
        store.writer.submit(removal)
    else:
        store.writer.submit(removal)
        put(store, engine)
    Gated.gate.set()
    assert store.flush(10)
    if order.endswith("again"):
        store.writer.submit(evict(store, key))
        assert store.flush(10)
        assert names(tmp_path / "store") == []
        assert store.stats().host_bytes == 0
    else:
        assert names(tmp_path / "store") == before
        assert store.describe(key, 128).durable
    check(store, tmp_path / "store")
    store.close()
    engine = FakeEngine()
    store = opened(engine)
    assert (store.stats().corrupt, store.stats().orphans_swept, store.index.scan("gc")) == (0, 0, [])
    found = store.find(KEY, TOKENS, 128)
    assert (found is None) == order.endswith("again")
    if found is not None:
        assert engine.good(found.checkpoint, TOKENS)
        found.release()


def test_a_record_wins_over_a_removal_that_was_not_finished(opened: Opened, tmp_path: Path) -> None:
    """A process died after it had written an object anew, before it took back that it was to go."""
    engine = FakeEngine()
    store = opened(engine)
    key = put(store, engine)
    store.flush(10)
    before = names(tmp_path / "store")
    store.index.commit([("gc", name.encode(), b"") for name in before])
    store.close()
    for _ in range(2):
        engine = FakeEngine()
        store = opened(engine)
        assert store.flush(10)
        assert names(tmp_path / "store") == before
        assert store.index.scan("gc") == []
        with store.find(KEY, TOKENS, 128) as found:
            assert engine.good(found.checkpoint, TOKENS)
        assert store.describe(key, 128).durable
        store.close()


def test_what_is_to_go_for_two_reasons_is_counted_once(opened: Opened, tmp_path: Path) -> None:
    store = opened(FakeEngine())
    put(store, FakeEngine())
    store.flush(10)
    store.index.commit([("gc", name.encode(), b"") for name in names(tmp_path / "store")])
    store.close()
    store = opened(FakeEngine(info=FakeInfo(weights_digest="cd" * 32)))
    assert store.flush(10)
    assert names(tmp_path / "store") == []
    assert store.stats().disk_bytes == 0
    assert store.stats().collected == 1


def test_a_damaged_object_is_healed_by_putting_it_again(opened: Opened, tmp_path: Path) -> None:
    engine = FakeEngine()
    store = opened(engine)
    put(store, engine)
    store.flush(10)
    store.close()
    engine = FakeEngine()
    store = opened(engine)
    victim = next((tmp_path / "store").glob("objects/*/*.state"))
    data = bytearray(victim.read_bytes())
    data[4100] ^= 1
    victim.write_bytes(data)
    assert store.find(KEY, TOKENS, 128) is None
    put(store, engine)  # perhaps before the damaged one was removed
    store.flush(10)
    store.close()
    engine = FakeEngine()
    store = opened(engine)
    with store.find(KEY, TOKENS, 128) as found:
        assert engine.good(found.checkpoint, TOKENS)
    assert store.stats().corrupt == 0


def test_an_object_that_could_not_be_removed_is_not_counted_twice(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    store = opened(engine)
    key = put(store, engine)
    store.flush(10)
    used = store.stats().disk_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Files, "delete", lambda self, name: False)
        store.writer.submit(evict(store, key))
        store.flush(10)
    assert store.stats().disk_bytes == used == sum(p.stat().st_size for p in (tmp_path / "store").glob("objects/*/*"))
    put(store, engine)
    store.flush(10)
    assert store.stats().disk_bytes == used
    check(store, tmp_path / "store")
