"""A process that looks into the index and does not let go, or dies there: answers go on, and the index does not grow for ever."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from fake_engine import KEY, FakeEngine, some_tokens

import flide_agent.store.index as module
from flide_agent.store import CheckpointStore
from flide_agent.store.files import Files
from flide_agent.store.index import Index

Opened = Callable[..., CheckpointStore]
HOLD = """
import sys, time, lmdb
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=16, max_readers=512)
with env.begin() as txn:
    print("ready", flush=True)
    time.sleep(3000)
"""


@contextmanager
def reader(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process in the middle of reading the index."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path / "index")], stdout=subprocess.PIPE, env=env)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        yield other
    finally:
        other.kill()
        other.wait()


def commits(index: Index, count: int) -> None:
    for i in range(count):
        index.commit([("ids", b"key", i.to_bytes(4, "big") * 500)])


def answered(store: CheckpointStore, engine: FakeEngine, seed: int) -> None:
    """A step goes on from what was kept, and its checkpoint is kept."""
    tokens = some_tokens(192, seed)
    store.publish(KEY, tokens, engine.make(tokens, 128), "s")
    with store.find(KEY, tokens, 192) as found:
        assert found.m == 128
        assert engine.good(found.checkpoint, tokens)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.bars)])
def test_a_reader_held_open(opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int) -> None:
    engine = FakeEngine()
    store = opened(engine)
    data = tmp_path / "store" / "index" / "data.mdb"
    with reader(tmp_path / "store") as other:
        for part in range(10):
            commits(store.index, count // 10)
            answered(store, engine, part)
            assert store.flush(20)
        held = data.stat().st_size
        assert held > count * 4096, "it does keep pages, or this shows nothing"
        assert store.stats().mode == "rw"
        assert 0 < store.stats().map_used <= 1
        other.kill()
        other.wait()
    index = store.index
    index._grow()  # as the next full map does
    assert "1 processes died while they read the index" in caplog.text
    commits(index, count)
    assert data.stat().st_size <= held + (1 << 20), "pages are used again"
    assert sum("map grows" in r.message for r in caplog.records) <= 4
    store.close()
    store = opened(FakeEngine())
    assert store.stats().corrupt == 0
    for part in range(10):
        assert store.find(KEY, some_tokens(192, part), 192).m == 128


def test_at_the_end_of_the_map_the_disk_refuses_and_answers_go_on(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    store = opened(FakeEngine())
    store.close()
    monkeypatch.setattr(module, "MAP_LIMIT", 1 << 20)
    monkeypatch.setattr(Index.__init__, "__kwdefaults__", {"map_bytes": 1 << 20, "readonly": False})
    engine = FakeEngine()
    store = opened(engine)
    with reader(tmp_path / "store"):
        with pytest.raises(lmdb.MapFullError, match="at its limit"):
            commits(store.index, 10_000)
        for seed in range(30):
            answered(store, engine, seed)
            store.flush(0.02)
        assert store.stats().mode == "ro"
        assert store.stats().commit_failures > 0
    assert sum("the disk refuses writes" in r.message for r in caplog.records) <= 3
    answered(store, engine, 99)
    deadline = time.monotonic() + 60
    while store.stats().mode == "ro":
        assert time.monotonic() < deadline
        answered(store, engine, 99)
        time.sleep(0.05)
    assert "the disk takes writes again" in caplog.text


def test_map_grows_under_readers(tmp_path: Path) -> None:
    index = Index(tmp_path / "index", Files(tmp_path), map_bytes=1 << 17)
    stop, faults = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                for key, value in index.scan("ids", limit=20):
                    assert value == key * 100
            except Exception as error:
                faults.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(100):
        index.commit([("ids", (100 * i + j).to_bytes(4, "big"), (100 * i + j).to_bytes(4, "big") * 100) for j in range(100)])
    stop.set()
    for reader in readers:
        reader.join()
    assert not faults
    assert len(index.scan("ids")) == 10000
    assert index._env.info()["map_size"] > 1 << 22
    index.close()


def test_a_reader_does_not_stop_pages_from_being_reused(tmp_path: Path) -> None:
    index = Index(tmp_path / "index", Files(tmp_path))
    for i in range(500):
        index.commit([("ids", b"key", bytes([i % 256]) * 10000)])
        index.read("ids", b"key")
    assert (tmp_path / "index" / "data.mdb").stat().st_size < 1 << 20
    index.close()
