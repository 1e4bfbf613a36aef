"""Whose directory it is: what a store takes, and what it refuses with a sentence that helps."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from fake_engine import FakeEngine

from flide_agent.store import CheckpointStore, StoreBusy, StoreError
from flide_agent.store.directory import Ownership, filesystem, refuse_network

Opened = Callable[..., CheckpointStore]


def test_second_process_is_refused_and_a_dead_one_is_not_in_the_way(opened: Opened, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from flide_agent.store.directory import claim\n"
        "claim(Path(sys.argv[1]), False); print('ready', flush=True); time.sleep(60)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")], stdout=subprocess.PIPE, env=env)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(StoreBusy, match=f"process {other.pid}") as busy:
            opened(FakeEngine())
        assert busy.value.pid == other.pid
    finally:
        other.kill()
        other.wait()
    opened(FakeEngine())
    with pytest.raises(StoreBusy, match=str(os.getpid())):
        opened(FakeEngine())


def test_network_file_systems_are_refused_unless_forced(tmp_path: Path) -> None:
    mounts = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\nssh {tmp_path}/in fuse.sshfs rw 0 0\nt {tmp_path}/ok xfs rw 0 0\n"
    assert filesystem(tmp_path / "a", mounts) == "nfs4"
    assert filesystem(Path(str(tmp_path) + "b"), mounts) == "ext4"
    for name in ("a", "in/b"):
        with pytest.raises(StoreError, match="network"):
            refuse_network(tmp_path / name, False, mounts)
        assert "forced" in (refuse_network(tmp_path / name, True, mounts) or "")
    assert refuse_network(tmp_path / "ok" / "b", False, mounts) is None
    assert filesystem(tmp_path) != ""


def test_unknown_schema_is_refused(opened: Opened, tmp_path: Path) -> None:
    store = opened(FakeEngine())
    store.index.commit([("meta", b"schema", b"99")])
    store.close()
    with pytest.raises(StoreError, match="schema 99"):
        opened(FakeEngine())
    with pytest.raises(StoreError, match="schema 99"):  # and it did not keep the lock
        opened(FakeEngine())


def test_a_directory_of_somebody_else_is_refused(opened: Opened, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "objects").mkdir(parents=True)
    (home / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match=r"is no store and not empty \(thesis.tex\)"):
        opened(FakeEngine(), path=home)
    assert sorted(p.name for p in home.iterdir()) == ["objects", "thesis.tex"]
    (home / "thesis.tex").unlink()
    opened(FakeEngine(), path=home).close()
    (home / "notes.txt").write_text("it is a store by now")
    opened(FakeEngine(), path=home).close()
    for left in ([], ["LOCK"], ["LOCK", "objects"], ["lost+found"]):  # a first start that was cut short; a fresh volume
        path = tmp_path / f"{len(left)}{left[:1]}"
        path.mkdir()
        for name in left:
            (path / name).touch() if name == "LOCK" else (path / name).mkdir()
        opened(FakeEngine(), path=path).close()


def test_an_index_of_another_program_is_refused(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "store" / "index").mkdir(parents=True)
    env = lmdb.open(str(tmp_path / "store" / "index"))
    with env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    env.close()
    with pytest.raises(StoreError, match="another program"):
        opened(FakeEngine())
    env = lmdb.open(str(tmp_path / "store" / "index"))
    with env.begin() as txn:
        assert list(txn.cursor()) == [(b"theirs", b"1")]
    env.close()


def test_unusable_directory(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        opened(FakeEngine(), path=tmp_path / "file")
    with pytest.raises(StoreError):
        opened(FakeEngine(), path=tmp_path / "file" / "store")


def test_a_disk_that_is_full_at_the_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        Ownership(tmp_path / "LOCK")
