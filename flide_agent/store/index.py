"""The LMDB index: which checkpoints and sessions exist. Small records only; payloads are files.

One Environment for the process. Writes come from one thread (`commit`); reads are short and copy what they return. The map
grows when it is full; no reader is inside while it does.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from flide_agent.store.errors import StoreError
from flide_agent.store.files import Files

log = logging.getLogger("flide_agent.store")

SCHEMA = b"2"
MAP_LIMIT = 64 << 30
"""Bytes that the index may grow to; it is sparse, so this is no budget but an end."""
DBS = ("meta", "node", "ids", "hold", "gc", "session", "head", "block")
"""meta: schema, secret, identity. node: key -> NodeRecord. ids: key -> token ids of its span. hold: holder + key -> "".
gc: names of files to unlink. session, head, block: the sessions' (see flide_agent/sessions/records.py)."""

Write = tuple[str, bytes, bytes | None]
"""(database, key, value); None deletes."""


class NodeRecord(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint on disk: its K/V span [since, m) in file `span`, after the span of `parent` (b"" at 0), its state in file
    `state` ("": evicted, the span stays for those that build on it). used: order of last use. identity: of the engine.
    tenant: whose it is. kind: a Kind."""

    m: int
    since: int
    parent: bytes
    span: str
    span_bytes: int
    state: str
    state_bytes: int
    used: int
    identity: bytes
    tenant: bytes = b""
    kind: int = 1


class Index:
    """Reads are thread-safe. `commit` and `close` belong to one thread at a time."""

    def __init__(self, path: Path, files: Files, *, map_bytes: int = 64 << 20, readonly: bool = False) -> None:
        """Open or make the environment in directory `path`. Raises lmdb.Error or DamagedIndex when it cannot be trusted.

        readonly: only look, beside a process that writes; raises StoreError when there is no index.
        """
        self.files = files
        if readonly and not (path / "data.mdb").exists():
            raise StoreError(f"there is no store in {path.parent}")
        path.mkdir(mode=0o700, exist_ok=True)
        data = path / "data.mdb"
        size = data.stat().st_size if data.exists() else 0
        if size:
            check_length(data, size)
        self.path = path
        self._gate = threading.Lock()
        self._open(max(map_bytes, 2 * size), readonly)
        found = self.read("meta", b"schema")
        if found is None:
            self.commit([("meta", b"schema", SCHEMA), ("meta", b"secret", os.urandom(32))])
        elif found != SCHEMA:
            self._env.close()
            raise StoreError(
                f"{path.parent} has store schema {found.decode('ascii', 'replace')}, this version reads {SCHEMA.decode()}; "
                "use the version that wrote it, or another directory"
            )

    def _open(self, map_size: int, readonly: bool) -> None:
        # sync and no writemap: a commit is on stable storage, and a full disk is an error instead of SIGBUS.
        self._env: Any = lmdb.open(
            str(self.path), map_size=map_size, max_dbs=len(DBS), subdir=True, sync=self.files.synced, metasync=self.files.synced,
            writemap=False, readahead=False, max_readers=512, mode=0o600, readonly=readonly,
        )  # fmt: skip
        self._env.reader_check()
        with self._env.begin() as txn, txn.cursor() as cursor:
            ours = all(bytes(key).decode("ascii", "replace") in DBS for key in islice(cursor.iternext(values=False), 16))
        if not ours:
            self._env.close()
            raise StoreError(f"{self.path} is an LMDB index of another program; choose another store directory")
        self._dbs = {name: self._env.open_db(name.encode(), create=not readonly) for name in DBS}

    def read(self, db: str, key: bytes) -> bytes | None:
        with self._gate, self._env.begin(db=self._dbs[db]) as txn:
            value: bytes | None = txn.get(key)
            return value

    def read_many(self, db: str, keys: list[bytes]) -> list[bytes | None]:
        with self._gate, self._env.begin(db=self._dbs[db]) as txn:
            return [txn.get(key) for key in keys]

    def scan(
        self, db: str, prefix: bytes = b"", *, after: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """(key, value) of keys that start with prefix, ascending, those beyond `after` only, at most `limit`."""
        out: list[tuple[bytes, bytes]] = []
        with self._gate, self._env.begin(db=self._dbs[db]) as txn, txn.cursor() as cursor:
            more = cursor.set_range(after if after is not None else prefix) if after or prefix else cursor.first()
            while more and (limit is None or len(out) < limit):
                key, value = cursor.item()
                if not key.startswith(prefix):
                    break
                if after is None or key > after:
                    out.append((key, value))
                more = cursor.next()
        return out

    def commit(self, writes: Iterable[Write]) -> None:
        """Make the writes durable, all or none. Raises lmdb.Error or OSError when the disk refuses; nothing is changed then."""
        rows = list(writes)
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for db, key, value in rows:
                        if value is None:
                            txn.delete(key, db=self._dbs[db])
                        else:
                            txn.put(key, value, db=self._dbs[db])
                    self.files.point("commit")
            except lmdb.MapFullError:
                self._grow()
            else:
                self.files.point("committed")
                return

    def _grow(self) -> None:
        """Find room: what readers that died have kept is free again, else the map becomes larger. Raises lmdb.MapFullError at MAP_LIMIT."""
        # py-lmdb invalidates open read transactions when the map is resized: the gate keeps readers out.
        with self._gate:
            if dead := self._env.reader_check():
                log.warning("%d processes died while they read the index; what they kept is free again", dead)
                return
            size = 2 * self._env.info()["map_size"]
            if size > MAP_LIMIT:
                raise lmdb.MapFullError(
                    f"the index is at its limit of {MAP_LIMIT >> 20} MiB; a process that reads it may keep old pages"
                )
            self._env.set_mapsize(size)
        log.warning("the index's map grows to %d MiB", size >> 20)

    def rewrite(self, into: Path) -> None:
        """Write all rows anew to an index in the empty directory `into`.

        Its pages hold nothing but these rows: LMDB's own compacting copy keeps deleted keys where they part the branches of a tree.
        """
        env = lmdb.open(str(into), map_size=self._env.info()["map_size"], max_dbs=len(DBS), subdir=True, mode=0o600)
        try:
            with self._gate, self._env.begin() as txn:
                for name, db in self._dbs.items():
                    new = env.open_db(name.encode())
                    with env.begin(write=True, db=new) as out, txn.cursor(db=db) as cursor:
                        for key, value in cursor:
                            out.put(key, value, append=True)
            env.sync(True)
        finally:
            env.close()

    def replace(self, data: Path) -> None:
        """Put a file made by `rewrite` in the place of this index's, and go on with it. For an index nobody else has open."""
        with self._gate:
            size = self._env.info()["map_size"]
            self._env.close()
            os.rename(data, self.path / "data.mdb")
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self._open(size, readonly=False)

    def used(self) -> float:
        """Fraction of the map in use."""
        with self._gate:
            info = self._env.info()
            return float((info["last_pgno"] + 1) * self._env.stat()["psize"] / info["map_size"])

    def close(self) -> None:
        with self._gate:
            self._env.close()


class DamagedIndex(Exception):
    """The index file is shorter than its own meta page says; opening it would end in SIGBUS."""


def check_length(data: Path, size: int) -> None:
    """Raise DamagedIndex when the newer of the two meta pages (LMDB 0.9 format) names pages beyond the end of the file."""
    # struct MDB_meta after a 16-byte page header: magic, version, address, map size, two MDB_db of 48 bytes (the first
    # starts with the page size), last page, transaction id.
    with data.open("rb") as f:
        head = f.read(4096 * 16)
    newest, last, psize = -1, 0, 0
    for at in (0, int.from_bytes(head[40:44], "little")):
        if len(head) < at + 152 or struct.unpack_from("<I", head, at + 16)[0] != 0xBEEFC0DE:
            raise DamagedIndex(f"{data} is no LMDB file")
        psize = struct.unpack_from("<I", head, at + 40)[0]
        page, txn = struct.unpack_from("<QQ", head, at + 40 + 96)
        if txn > newest:
            newest, last = txn, page
    if (last + 1) * psize > size:
        raise DamagedIndex(f"{data} ends at byte {size}, before its page {last}")


def open_index(path: Path, files: Files) -> tuple[Index, list[str]]:
    """The index in `path`; a damaged one is moved aside and an empty one made. Returns it and notes. Raises StoreError."""
    try:
        return Index(path, files), []
    except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, DamagedIndex) as error:
        reason = str(error)
    except lmdb.Error as error:
        raise StoreError(f"cannot open the index in {path}: {error}") from error
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    os.rename(path, aside)
    note = f"the index was damaged ({reason}) and moved to {aside.name}; the store starts empty"
    try:
        return Index(path, files), [note]
    except (lmdb.Error, OSError) as error:
        raise StoreError(f"cannot make an index in {path}: {error}") from error
