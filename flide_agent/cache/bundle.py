"""One session as a file: its history, its heads, its checkpoints. A zip archive (stored, not compressed) that is read entry by entry.

    bundle.json        version, identity of model and prompts, the session's id, and the entries in the order they depend on each other
    session            its record; head/ID, block/ID: a row of the index each
    ids/KEY, kv/KEY, state/KEY    token ids of a span, its payload file, the state's payload file

Keys carry the store's secret and the tenant, so an import works all of them out anew from the tokens; heads change with them
unless it goes back into the store it came from, for the same tenant. Every payload is checked before it is kept.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from flide_engine.segments import Tokens

from flide_agent.asks import check_session_id
from flide_agent.cache.shelf import Shelf
from flide_agent.errors import Conflict
from flide_agent.keys import check_tenant
from flide_agent.sessions.history import ID_BYTES, next_id, root_id
from flide_agent.sessions.records import (
    BlockRecord,
    StepRecord,
    checked_block,
    decode_session,
    decode_step,
    encode,
    sealed,
    session_key,
)
from flide_agent.store import identity as ids
from flide_agent.store.errors import StoreError
from flide_agent.store.files import FileSource
from flide_agent.store.index import NodeRecord, Write
from flide_agent.store.nodes import Node, encode_record
from flide_agent.store.payload import PayloadError, decode
from flide_agent.store.payload import encode as encode_payload
from flide_agent.store.recover import Identity
from flide_agent.store.report import Kind

VERSION = 1
MAX_HEADER = 64 << 20


class NodeEntry(msgspec.Struct, frozen=True):
    """A checkpoint of the bundle; keys in hex. state: it has one (else only its K/V go in, for those that build on it)."""

    key: str
    m: int
    since: int
    parent: str
    state: bool
    kind: int


class Header(msgspec.Struct, frozen=True):
    version: int
    identity: Identity
    id: str
    heads: tuple[str, ...]
    blocks: tuple[str, ...]
    nodes: tuple[NodeEntry, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """What went over. left_out: checkpoints of the session that are not in the file: evicted, gone while they were read, or
    damaged, which is counted by itself."""

    session: str
    heads: int
    checkpoints: int
    bytes: int
    left_out: int
    damaged: int = 0


def export(shelf: Shelf, tenant: str, name: str, target: Path) -> Moved:
    """Write a session to a new file. Raises NotFound, StoreError when the file exists or cannot be written."""
    if shelf.identity is None:
        raise StoreError("the store was never used by a model")
    key, _ = shelf.session(tenant, name)
    rows = {db: dict(shelf.index.scan(db, key)) for db in ("head", "block")}
    steps = [step for value in rows["head"].values() if (step := decode_step(value)) is not None]
    wanted = {k for step in steps for _, k in step.checkpoints}
    nodes = shelf.nodes()
    usable = {k for k in wanted if k in nodes and nodes[k].state and nodes[k].identity == shelf.own}
    record = shelf.index.read("session", ids.tenant_id(shelf.share_key(tenant)) + key)
    assert record is not None
    size = 0
    entries: list[NodeEntry] = []
    damaged: set[bytes] = set()
    try:
        with zipfile.ZipFile(target, "x", zipfile.ZIP_STORED) as archive:
            for k in _in_order(usable, nodes):
                node = nodes[k]
                if node.parent and node.parent.hex() not in {e.key for e in entries}:
                    continue
                span = _payload(shelf, k, node, "kv", damaged)
                state = _payload(shelf, k, node, "state", damaged) if k in usable else None
                tokens = shelf.index.read("ids", k)
                if span is None or tokens is None:
                    continue
                parts = {"ids": tokens, "kv": span} | ({} if state is None else {"state": state})
                for kind, data in parts.items():
                    archive.writestr(f"{kind}/{k.hex()}", data)
                    size += len(data)
                entries.append(NodeEntry(k.hex(), node.m, node.since, node.parent.hex(), state is not None, node.kind))
            archive.writestr("session", record)
            for db, found in rows.items():
                for row, value in found.items():
                    archive.writestr(f"{db}/{row[ID_BYTES:].hex()}", value)
            names = {db: tuple(row[ID_BYTES:].hex() for row in found) for db, found in rows.items()}
            header = Header(VERSION, shelf.identity, name, names["head"], names["block"], tuple(entries))
            archive.writestr("bundle.json", msgspec.json.encode(header))
    except FileExistsError:
        raise StoreError(f"{target} exists already; choose another name") from None
    except OSError as error:
        target.unlink(missing_ok=True)
        raise StoreError(f"{target} cannot be written: {error.strerror or error}") from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    carried = sum(e.state for e in entries)
    return Moved(name, len(names["head"]), carried, size, len(wanted) - carried, len(damaged & wanted))


def _in_order(keys: set[bytes], nodes: dict[bytes, NodeRecord]) -> list[bytes]:
    """The keys and all they build on, parents first."""
    out: set[bytes] = set()
    for key in keys:
        while key in nodes and key not in out:
            out.add(key)
            key = nodes[key].parent
    return sorted(out, key=lambda k: nodes[k].m)


def _payload(shelf: Shelf, key: bytes, node: NodeRecord, kind: str, damaged: set[bytes]) -> bytes | None:
    """A payload file's bytes, checked; None when it is gone, or damaged, which is noted."""
    name, since = (node.span, node.since) if kind == "kv" else (node.state, node.m)
    try:
        with shelf.files.get(name) as source:
            decode(source, kind, key, node.m, since)
        return shelf.files.path(name).read_bytes()
    except PayloadError:
        damaged.add(key)
        return None
    except OSError:
        return None


def import_(shelf: Shelf, tenant: str, source: Path, name: str | None) -> Moved:
    """Bring a session into a store, under its own id or another. All or nothing.

    Raises Conflict when the store has a session of that id, InvalidRequest for an id or tenant that no request could name, StoreError
    when the file is none, is damaged, or was written by another model, dtype, numerics or prompt version than the store was last
    used with.
    """
    check_tenant(tenant)
    if name is not None:
        check_session_id(name)
    try:
        with zipfile.ZipFile(source) as archive:
            if archive.getinfo("bundle.json").file_size > MAX_HEADER:
                raise StoreError(f"{source} has a header larger than any session's")
            header = msgspec.json.decode(archive.read("bundle.json"), type=Header)
            if header.version != VERSION:
                raise StoreError(f"{source} has version {header.version}, this program reads {VERSION}")
            if shelf.identity is not None and header.identity != shelf.identity:
                raise StoreError(f"{source} was written by {header.identity}, the store is of {shelf.identity}")
            return _Import(shelf, tenant, header, archive.read, header.id if name is None else name).run()
    except (OSError, KeyError, zipfile.BadZipFile, msgspec.MsgspecError, PayloadError, ValueError) as error:
        raise StoreError(f"{source} cannot be imported: {error}") from error


class _Import:
    """One import on its way. keys: old node key -> new one. tokens: by new key, from position 0."""

    def __init__(self, shelf: Shelf, tenant: str, header: Header, read: Callable[[str], bytes], name: str) -> None:
        self.shelf, self.header, self.read, self.name = shelf, header, read, name
        self.share_key = shelf.share_key(tenant)
        self.own = ids.identity(header.identity, header.identity.prompts_digest)
        self.session = session_key(self.share_key, name)
        self.place = ids.tenant_id(self.share_key) + self.session
        self.keys: dict[bytes, bytes] = {}
        self.tokens: dict[bytes, Tokens] = {b"": np.zeros(0, np.int32)}
        self.rows: list[Write] = []
        self.written: list[str] = []
        self.size = 0

    def run(self) -> Moved:
        if self.shelf.index.read("session", self.place) is not None:
            raise Conflict(f"the store has a session {self.name!r}; delete it first or import under another id with --as")
        record = decode_session(self.read("session"))
        if record is None:
            raise ValueError("its session record is damaged")
        try:
            carried = sum([self._node(entry) for entry in self.header.nodes])
            blocks = self._blocks(record.tools)
            heads = self._heads(blocks)
            head = blocks.get(record.head, b"")
            new = msgspec.structs.replace(record, id=self.name, head=head)
            self.rows.append(("session", self.place, encode(new)))
            if self.shelf.identity is None:
                self.rows.append(("meta", b"identity", msgspec.json.encode(self.header.identity)))
            self.shelf.index.commit(self.rows)
        except BaseException:
            for file in self.written:
                self.shelf.files.delete(file)
            raise
        return Moved(self.name, heads, carried, self.size, 0)

    def _node(self, entry: NodeEntry) -> bool:
        """Bring a checkpoint in; True when it has a state. What the store has already is kept as it is."""
        old, up = bytes.fromhex(entry.key), self.keys[bytes.fromhex(entry.parent)] if entry.parent else b""
        own_ids = np.frombuffer(self.read(f"ids/{entry.key}"), "<u4").astype(np.int32)
        tokens = np.concatenate([self.tokens[up], own_ids])
        if len(tokens) != entry.m or len(self.tokens[up]) != entry.since or not entry.m or entry.m % 64:
            raise ValueError("the token ids of a checkpoint are not as many as it stands for")
        key = self.keys[old] = ids.chain(self.own, self.share_key, tokens)[-1]
        self.tokens[key] = tokens
        had = self.shelf.nodes_of(key)
        if had is None:
            span, span_bytes = self._file("kv", old, key, entry)
            state, state_bytes = self._file("state", old, key, entry) if entry.state else ("", 0)
            tenant = ids.tenant_id(self.share_key)
            record = NodeRecord(
                entry.m, entry.since, up, span, span_bytes, state, state_bytes, 0, self.own, tenant, entry.kind
            )  # fmt: skip
            self.rows.append(("ids", key, own_ids.astype("<u4").tobytes()))
        elif entry.state and not had.state:
            state, state_bytes = self._file("state", old, key, entry)
            record = msgspec.structs.replace(had, state=state, state_bytes=state_bytes)
        else:
            record = had
        if record is not had:
            kind = Kind(entry.kind) if entry.kind in set(Kind) else Kind.OLD
            self.rows.append(("node", key, encode_record(record, Node(key, entry.m, kind=kind, used=record.used))))
        return entry.state

    def _file(self, kind: str, old: bytes, key: bytes, entry: NodeEntry) -> tuple[str, int]:
        """Write a payload under its new key. Returns name and bytes."""
        since = entry.since if kind == "kv" else entry.m
        manifest, tensors = self._decoded(kind, old, entry.m, since)
        chunks, size = encode_payload(kind, key, entry.m, since, manifest, tensors)
        name = self.shelf.files.put(kind, chunks, size)
        self.written.append(name)
        self.size += size
        return name, size

    def _decoded(self, kind: str, old: bytes, m: int, since: int) -> tuple[dict[str, Any], dict[str, Any]]:
        with tempfile.TemporaryFile(dir=self.shelf.path) as file:
            file.write(self.read(f"{kind}/{old.hex()}"))
            file.flush()
            with FileSource(os.dup(file.fileno())) as source:
                return decode(source, kind, old, m, since)

    def _blocks(self, tools: bytes) -> dict[bytes, bytes]:
        """Rows of all blocks. Returns old id -> new id."""
        records: dict[bytes, BlockRecord] = {}
        for name in self.header.blocks:
            own = bytes.fromhex(name)
            record = checked_block(own, self.read(f"block/{name}"))
            if record is None:
                raise ValueError("a message's record is damaged")
            records[own] = record
        new: dict[bytes, bytes] = {}
        waiting = dict(records)
        while waiting:
            ready = [own for own, r in waiting.items() if not r.parent or r.parent in new]
            if not ready:
                raise ValueError("a message's record lacks the one before it")
            for own in ready:
                r = waiting.pop(own)
                new[own] = next_id(new[r.parent], r.digest) if r.parent else root_id(self.share_key, r.tools)
                moved = msgspec.structs.replace(r, parent=new[r.parent] if r.parent else b"")
                self.rows.append(("block", self.session + new[own], sealed(moved)))
        return new

    def _heads(self, blocks: dict[bytes, bytes]) -> int:
        holder = ids.holder_key(self.share_key, self.session.hex())
        held: set[bytes] = set()
        for name in self.header.heads:
            step: StepRecord | None = decode_step(self.read(f"head/{name}"))
            if step is None:
                raise ValueError("a step's record is damaged")
            kept = tuple((m, self.keys[k]) for m, k in step.checkpoints if k in self.keys)
            held |= {k for _, k in kept}
            step = msgspec.structs.replace(step, follows=blocks.get(step.follows, b""), checkpoints=kept)
            self.rows.append(("head", self.session + blocks[bytes.fromhex(name)], encode(step)))
        self.rows += [("hold", holder + k, b"") for k in held]
        return len(self.header.heads)
