"""Damaged files, refused calls, full disks, foreign directories: a miss, counted, never wrong, never an exception in a request."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_engine import KEY, FakeEngine, some_tokens

from flide_agent.store import CheckpointStore
from flide_agent.store.files import Files
from flide_agent.store.index import Index

Opened = Callable[..., CheckpointStore]
ENDS = (128, 256, 512)


def publish(store: CheckpointStore, engine: FakeEngine, tokens: np.ndarray, ends: tuple[int, ...] = ENDS) -> list[bytes]:
    keys = []
    for m in ends:
        found = store.find(KEY, tokens, m)
        if found is not None:
            assert engine.good(found.checkpoint, tokens)
        keys.append(store.publish(KEY, tokens, engine.make(tokens, m, None if found is None else found.checkpoint), "s"))
        if found is not None:
            found.release()
        store.flush(5)
    return keys


def usage(path: Path) -> int:
    return sum(p.stat().st_size for p in path.glob("objects/*/*"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def link(path: Path) -> None:
    aside = path.with_name("aside")
    path.rename(aside)
    path.symlink_to(aside)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "first byte": lambda p: flip(p, 0),
    "header length": lambda p: flip(p, 9),
    "header": lambda p: flip(p, 40),
    "first tensor": lambda p: flip(p, 4096),
    "truncated": truncate,
    "empty": lambda p: os.truncate(p, 0),
    "zeros": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "missing": lambda p: p.unlink(),
    "longer": lambda p: p.write_bytes(p.read_bytes() + bytes(4096)),
    "link": link,
    "directory": directory,
}


@pytest.mark.parametrize("kind", ["state", "kv"])
@pytest.mark.parametrize(
    ("damage", "running"), [*((d, True) for d in DAMAGE), *((d, False) for d in ("missing", "truncated", "link"))]
)
def test_damaged_payload_is_a_miss(opened: Opened, tmp_path: Path, damage: str, kind: str, running: bool) -> None:
    engine = FakeEngine()
    store = opened(engine)
    tokens = some_tokens(600)
    key = publish(store, engine, tokens)[1]
    store.close()
    engine = FakeEngine()
    if running:
        store = opened(engine)
        record = store._nodes.by_key[key].record
    else:
        index = Index(tmp_path / "store" / "index", Files(tmp_path))
        from flide_agent.store.nodes import decode_record

        record = decode_record(index.read("node", key) or b"")
        index.close()
    assert record is not None
    name = record.state if kind == "state" else record.span
    DAMAGE[damage](tmp_path / "store" / "objects" / name[:2] / name)
    if not running:
        store = opened(engine)
    # the middle of three: its state only takes itself, its K/V all that builds on it
    for at_most, m in ((600, 512 if kind == "state" else 128), (300, 128)):
        with store.find(KEY, tokens, at_most) as found:
            assert found.m == m
            assert engine.good(found.checkpoint, tokens)
    store.flush(5)
    assert store.stats().corrupt == 1
    assert store.stats().mode == "rw"
    publish(store, engine, tokens)
    store.close()
    engine = FakeEngine()
    store = opened(engine)
    for m in ENDS:
        with store.find(KEY, tokens, m) as found:
            assert (found.m, engine.good(found.checkpoint, tokens)) == (m, True)
    if damage not in ("link", "directory"):
        assert store.stats().disk_bytes == usage(tmp_path / "store")


def test_swapped_payloads_are_noticed(opened: Opened, tmp_path: Path) -> None:
    engine = FakeEngine()
    store = opened(engine)
    tokens = [some_tokens(128, seed) for seed in range(2)]
    keys = [publish(store, engine, t, (128,))[0] for t in tokens]
    records = [store._nodes.by_key[k].record for k in keys]
    store.close()
    for kind in ("state", "span"):
        a, b = (tmp_path / "store/objects" / getattr(r, kind)[:2] / getattr(r, kind) for r in records)
        a.rename(tmp_path / "x")
        b.rename(a)
        (tmp_path / "x").rename(b)
    store = opened(FakeEngine())
    assert [store.find(KEY, t, 128) for t in tokens] == [None, None]
    assert store.stats().corrupt == 2


def test_damaged_token_ids_are_noticed(opened: Opened) -> None:
    engine = FakeEngine()
    store = opened(engine)
    tokens = some_tokens(600)
    keys = publish(store, engine, tokens)
    stored = bytearray(store.index.read("ids", keys[1]) or b"")
    stored[3] ^= 1
    store.close()
    engine = FakeEngine()
    store = opened(engine)
    store.index.commit([("ids", keys[1], bytes(stored))])
    assert store.find(KEY, tokens, 600).m == 128


class Refusing(Files):
    """Fails the n-th call of the process with an error, or all calls from the n-th on."""

    at, calls, error, for_ever = -1, 0, errno.ENOSPC, False
    lock = threading.Lock()

    def point(self, name: str) -> None:
        if name == "committed":
            return
        with Refusing.lock:
            n = Refusing.calls
            Refusing.calls += 1
        if n == Refusing.at or (Refusing.for_ever and n >= Refusing.at >= 0):
            raise OSError(Refusing.error, f"refused {name}")


@pytest.mark.parametrize(("error", "for_ever"), [(errno.ENOSPC, False), (errno.EIO, False), (errno.ENOSPC, True)])
@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.bars)])
def test_refused_calls(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, for_ever: bool, stride: int
) -> None:
    """A call that fails, for every one of them (every ninth in the short form): requests go on, the store recovers, the ledger holds."""
    monkeypatch.setattr(Refusing, "error", error)
    monkeypatch.setattr(Refusing, "for_ever", for_ever)
    tokens = some_tokens(600)

    def run(at: int, path: Path) -> int:
        Refusing.at, Refusing.calls = -1, 0
        engine = FakeEngine()
        store = opened(engine, path=path, files=Refusing, disk_bytes=24 * 4096)  # evicts in between
        Refusing.at, Refusing.calls = at, 0
        for n in range(2):
            for m in ENDS[: 2 if for_ever else 3]:
                t = np.concatenate([tokens[:64], some_tokens(600, n)])
                found = store.find(KEY, t, m)
                assert found is None or engine.good(found.checkpoint, t)
                store.publish(KEY, t, engine.make(t, m, None if found is None else found.checkpoint), "s")
                if found is not None:
                    found.release()
                store.flush(0.02 if for_ever else 5)
                with store.find(KEY, t, m) as found:
                    assert found.m == m
        calls = Refusing.calls
        if for_ever and at >= 0 and calls > at + 3:
            deadline = time.monotonic() + 10
            while store.stats().mode != "ro":
                assert time.monotonic() < deadline
                time.sleep(0.01)
        Refusing.at = -1
        # the disk takes writes again: so does the store
        deadline = time.monotonic() + 20
        t = some_tokens(128, 77)
        key = store.publish(KEY, t, engine.make(t, 128), "s")
        while not store.describe(key, 128).durable:
            assert time.monotonic() < deadline
            time.sleep(0.02)
            store.publish(KEY, t, engine.make(t, 128), "s")
        store.flush(5)
        assert store.stats().mode == "rw"
        store.close()
        assert store.stats().queue_depth == 0
        engine = FakeEngine()
        store = opened(engine, path=path, disk_bytes=24 * 4096)
        store.flush(5)
        assert store.stats().disk_bytes == usage(path)
        for n in range(2):
            t = np.concatenate([tokens[:64], some_tokens(600, n)])
            with store.find(KEY, t, 600) or engine_none() as found:
                assert found is None or engine.good(found.checkpoint, t)
        assert store.stats().corrupt == 0
        with store.find(KEY, some_tokens(128, 77), 128) as found:
            assert found.m == 128
        store.close()
        return calls

    calls = run(-1, tmp_path / "none")
    assert calls > 40
    for at in range(0, calls, stride):
        run(at, tmp_path / str(at))


class engine_none:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        pass


def test_full_disk_by_reserve_is_no_error(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "free", lambda self: 1000)
    engine = FakeEngine()
    store = opened(engine)
    tokens = some_tokens(200)
    publish(store, engine, tokens, (128,))
    assert store.stats().mode == "ro"
    assert store.stats().writes_failed == 1
    assert store.find(KEY, tokens, 200).m == 128
    publish(store, engine, some_tokens(200, 2), (128,))
    assert store.stats().writes_dropped == 1


def test_full_queue_drops_the_write_and_keeps_the_checkpoint(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    from flide_agent.store import queue

    monkeypatch.setattr(queue, "MAX_PUTS", 2)
    engine = FakeEngine()
    gate = threading.Event()
    real = engine.export
    engine.export = lambda c, since=0: (gate.wait(10), real(c, since))[1]  # type: ignore[method-assign]
    store = opened(engine)
    for seed in range(6):
        tokens = some_tokens(64, seed)
        store.publish(KEY, tokens, engine.make(tokens, 64), None)
    gate.set()
    store.flush(10)
    assert store.stats().writes_dropped >= 2  # the writer holds one or two, the queue two
    assert all(store.find(KEY, some_tokens(64, seed), 64) is not None for seed in range(6))
    # seen again, it is written after all
    for seed in range(6):
        key = store.publish(KEY, some_tokens(64, seed), engine.make(some_tokens(64, seed), 64), None)
        store.flush(10)
        assert store.describe(key, 64).durable


@pytest.mark.parametrize("damage", ["half", "garbage", "one page"])
def test_damaged_index_is_moved_aside(opened: Opened, tmp_path: Path, damage: str) -> None:
    engine = FakeEngine()
    store = opened(engine)
    publish(store, engine, some_tokens(600))
    store.close()
    data = tmp_path / "store" / "index" / "data.mdb"
    size = data.stat().st_size
    if damage == "garbage":
        data.write_bytes(os.urandom(size))
    else:
        os.truncate(data, size // 2 if damage == "half" else 4096)
    engine = FakeEngine()
    store = opened(engine)
    assert any("damaged" in note for note in store.notes)
    assert store.find(KEY, some_tokens(600), 600) is None
    publish(store, engine, some_tokens(600))
    assert store.stats().disk_bytes == usage(tmp_path / "store")
    assert list((tmp_path / "store").glob("index.damaged-*"))
