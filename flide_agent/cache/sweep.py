"""Taking things out of a store that nobody has open: what is of no use (gc), and all of a session or tenant (forget)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flide_agent.cache.shelf import Shelf
from flide_agent.errors import NotFound
from flide_agent.sessions.records import load_blocks
from flide_agent.store import identity as ids
from flide_agent.store.errors import StoreError
from flide_agent.store.index import Write
from flide_agent.store.nodes import Nodes
from flide_agent.store.recover import Recovered, recover
from flide_agent.store.removal import Removal, forget_holder, remove_state, rows

SHORTEST = 8
"""Bytes of a trace that is searched for: shorter ones occur by chance."""


@dataclass(frozen=True, slots=True)
class Swept:
    """checkpoints, files, bytes: taken away. index_bytes: the index shrank by so much. notes: what was found, as sentences."""

    checkpoints: int
    files: int
    bytes: int
    index_bytes: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """sessions, checkpoints, files: taken away. kept: checkpoints that other sessions hold too, which stay theirs.
    left: where something of it was found after all; empty when the proof holds. searched: bytes of the directory looked through."""

    sessions: int
    checkpoints: int
    files: int
    kept: int
    searched: int
    left: tuple[str, ...]


def collect(shelf: Shelf) -> Swept:
    """Remove what the last used model cannot use, what lacks a part, what nobody names; then give back the index's free pages."""
    if shelf.identity is None:
        raise StoreError("the store was never used by a model; there is nothing to collect")
    nodes, found = _picture(shelf)
    before = shelf.index.path.joinpath("data.mdb").stat().st_size
    files, size = _apply(shelf, nodes, found.removal, found.rows)
    after = _compact(shelf)
    return Swept(found.collected + found.dropped, files, size, before - after, tuple(found.notes))


def forget(shelf: Shelf, tenant: str, session: str | None) -> Forgotten:
    """Remove a session of a tenant, or all of a tenant, with what only that holds; then look for traces. Raises NotFound.

    The proof: no record under its keys in the index, none of its files, and in no byte of the directory its id, its session key or
    the token ids of a message that no other session has.
    """
    share_key = shelf.share_key(tenant)
    place = ids.tenant_id(share_key)
    if session is None:
        doomed = {p[16:]: r.id for p, r in shelf.sessions(place).items()}
        if not doomed:
            raise NotFound(f"tenant {tenant!r} has no session in {shelf.path}")
    else:
        doomed = {shelf.session(tenant, session)[0]: session}
    traces = _traces(shelf, doomed)
    nodes, found = _picture(shelf)
    removal, gone = found.removal, 0
    held: set[bytes] = set()
    more: list[Write] = list(found.rows)
    for key in doomed:
        holder = ids.holder_key(share_key, key.hex())
        held |= nodes.held.get(holder, set())
        one, count = forget_holder(nodes, shelf.index, holder)
        _merge(removal, one)
        gone += count
        more += [(db, row, None) for db in ("head", "block") for row, _ in shelf.index.scan(db, key)]
        more.append(("session", place + key, None))
    if session is None:  # what was published outside sessions is held by nobody
        for node in [n for n in nodes.by_key.values() if n.tenant == place and not n.holders and n.on_disk]:
            gone += 1
            remove_state(nodes, node, removal)
    kept = sum(nodes.by_key[key].on_disk for key in held if key in nodes.by_key)
    names = [name for name, _ in removal.files]
    files, _ = _apply(shelf, nodes, removal, more)
    _compact(shelf)
    left = [f"file {name}" for name in names if shelf.files.path(name).exists()]
    left += [f"{db} rows" for key in doomed for db in ("head", "block") if shelf.index.scan(db, key)]
    left += [f"session row of {name!r}" for key, name in doomed.items() if shelf.index.read("session", place + key)]
    searched, seen = _search(shelf.path, traces)
    return Forgotten(len(doomed), gone, files, kept, searched, tuple(left + seen))


def _picture(shelf: Shelf) -> tuple[Nodes, Recovered]:
    if shelf.identity is None:
        raise StoreError("the store was never used by a model; there is nothing in it")
    nodes = Nodes()
    return nodes, recover(nodes, shelf.index, shelf.files, shelf.own, shelf.identity)


def _merge(into: Removal, other: Removal) -> None:
    into.dirty |= other.dirty
    into.holds |= other.holds
    into.files += other.files


def _apply(shelf: Shelf, nodes: Nodes, removal: Removal, more: Sequence[Write]) -> tuple[int, int]:
    """Index first, then the files, then what the index says of having to. Returns (files, bytes) that went."""
    with nodes.lock:
        out = rows(nodes, removal)
    shelf.index.commit([*out, *more])
    gone = [(name, size) for name, size in dict(removal.files).items() if shelf.files.delete(name)]
    shelf.index.commit([("gc", name.encode(), None) for name, _ in gone])
    return len(gone), sum(size for _, size in gone)


def _compact(shelf: Shelf) -> int:
    """Replace the index by one of the same rows, without the free pages that still hold deleted ones. Returns its size."""
    path = shelf.index.path
    aside = path.with_name("index.compact")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700)
    shelf.index.rewrite(aside)
    shelf.index.replace(aside / "data.mdb")
    shutil.rmtree(aside)
    return (path / "data.mdb").stat().st_size


def _traces(shelf: Shelf, doomed: dict[bytes, str]) -> dict[str, bytes]:
    """What to look for afterwards, by name: keys, ids, and tokens of messages that no session that stays has."""
    staying: set[bytes] = set()
    names = ""
    for place, record in shelf.sessions().items():
        if place[16:] not in doomed:
            names += "\n" + record.id
            staying |= {b.tokens.tobytes() for b in load_blocks(shelf.index, place[16:]).values()}
    out: dict[str, bytes] = {}
    for key, name in doomed.items():
        out[f"session key {key.hex()}"] = key
        if len(name.encode()) >= SHORTEST and name not in names:
            out[f"session id {name!r}"] = name.encode()
        for n, block in enumerate(load_blocks(shelf.index, key).values()):
            tokens = block.tokens.tobytes()
            if len(tokens) >= 16 * SHORTEST and tokens not in staying:
                out[f"tokens of message {n} of {name!r}"] = tokens
    return out


def _search(path: Path, traces: dict[str, bytes]) -> tuple[int, list[str]]:
    """Look for the traces in every file. Returns how many bytes were read and what was found where."""
    searched, seen = 0, []
    longest = max((len(t) for t in traces.values()), default=1)
    for file in sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink()):
        tail = b""
        with file.open("rb") as f:
            while chunk := f.read(8 << 20):
                searched += len(chunk)
                data = tail + chunk
                seen += [f"{name} in {file.relative_to(path)}" for name, trace in traces.items() if trace in data]
                tail = data[-longest:]
    return searched, sorted(set(seen))
