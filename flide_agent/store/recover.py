"""What a start does with what the last process left: the picture in memory, and what has to go."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from flide_agent.store.files import Files
from flide_agent.store.index import Index, NodeRecord, Write
from flide_agent.store.nodes import Node, Nodes, decode_record
from flide_agent.store.removal import Removal, remove_bare_spans
from flide_agent.store.report import Kind

KINDS = frozenset(Kind)


class Identity(msgspec.Struct, frozen=True):
    """What a store was last used with, for people."""

    model: str
    weights_digest: str
    dtype: str
    layout_version: int
    numerics: str
    prompts_digest: str

    @classmethod
    def of(cls, info: Any, prompts_digest: str) -> Identity:
        return cls(info.model, info.weights_digest, info.dtype, int(info.layout_version), info.numerics, prompts_digest)

    def __str__(self) -> str:
        return f"{self.model} ({self.dtype}, weights {self.weights_digest[:12]}, prompts {self.prompts_digest[:12]})"


@dataclass(slots=True)
class Recovered:
    """removal: for the writer. rows: to commit now. missing: payloads that the index names and that are not there."""

    removal: Removal = field(default_factory=Removal)
    rows: list[Write] = field(default_factory=list)
    missing: int = 0
    dropped: int = 0
    collected: int = 0
    orphans: int = 0
    notes: list[str] = field(default_factory=list)


def recover(nodes: Nodes, index: Index, files: Files, own: bytes, now: Identity) -> Recovered:
    """Fill `nodes` from the index. Usage is what the index says, whatever any process counted before.

    Checkpoints of another identity, or whose files or ancestors are missing, are left out and removed; so are files that
    nobody names (a crash between rename and commit) and those that the gc table names (a crash between commit and unlink).
    """
    out = Recovered()
    start = time.monotonic()
    listing = files.listing()
    named: set[str] = set()
    for key, record in _records(index, out):
        named.update((record.span, record.state))
        if record.identity != own:
            out.collected += 1
            _leave_out(nodes, out, key, record)
            continue
        parent = nodes.by_key.get(record.parent)
        if (parent is None and record.parent) or record.span not in listing:
            out.missing += record.span not in listing
            out.dropped += record.state != ""
            _leave_out(nodes, out, key, record)
            continue
        if record.state and record.state not in listing:
            out.missing += 1
            out.dropped += 1
            out.removal.dirty.add(key)
            record = msgspec.structs.replace(record, state="", state_bytes=0)
        kind = Kind(record.kind) if record.kind in KINDS else Kind.OLD
        node = Node(key, record.m, parent=parent, used=record.used, kind=kind, seen=start, up=parent, tenant=record.tenant)
        nodes.set_record(node, record)
        if parent is not None:
            parent.children += 1
        nodes.by_key[key] = node
        nodes.disk_bytes += record.span_bytes + record.state_bytes
    for node in sorted(nodes.by_key.values(), key=lambda n: -n.m):
        if node.record is not None and not node.record.state:
            remove_bare_spans(nodes, node, out.removal)
    for node in sorted(nodes.by_key.values(), key=lambda n: n.used):
        if node.on_disk:
            nodes.disk[node.key] = node
    nodes.clock = max((n.used for n in nodes.by_key.values()), default=0)
    for hold, _ in index.scan("hold"):
        holder = nodes.by_key.get(hold[16:])
        if holder is None:
            out.rows.append(("hold", hold, None))
        else:
            nodes.add_holder(holder, hold[:16])
    nodes.new_holds.clear()
    unlinked = {name.decode() for name, _ in index.scan("gc")}
    out.rows += [("gc", name.encode(), None) for name in unlinked if name in nodes.named]  # written anew since
    unlinked.difference_update(nodes.named, (name for name, _ in out.removal.files))
    orphans = [name for name in listing if name not in named and name not in unlinked]
    out.orphans = len(orphans)
    out.removal.files += [(name, 0) for name in (*orphans, *sorted(unlinked))]
    _identity(index, out, now)
    if out.dropped:
        out.notes.append(
            f"{out.missing} payload files or records are missing or damaged; {out.dropped} checkpoints were dropped"
        )
    if out.orphans:
        out.notes.append(f"{out.orphans} files that no checkpoint names are removed")
    return out


def _records(index: Index, out: Recovered) -> list[tuple[bytes, NodeRecord]]:
    records = []
    for key, value in index.scan("node"):
        try:
            records.append((key, decode_record(value)))
        except msgspec.MsgspecError:
            out.missing += 1
            out.dropped += 1
            out.removal.dirty.add(key)
    return sorted(records, key=lambda r: r[1].m)


def _leave_out(nodes: Nodes, out: Recovered, key: bytes, record: NodeRecord) -> None:
    out.removal.dirty.add(key)
    for name, size in ((record.span, record.span_bytes), (record.state, record.state_bytes)):
        if name:
            out.removal.files.append((name, size))
            nodes.disk_bytes += size


def _identity(index: Index, out: Recovered, now: Identity) -> None:
    raw = index.read("meta", b"identity")
    try:
        before = None if raw is None else msgspec.json.decode(raw, type=Identity)
    except msgspec.MsgspecError:
        before = None
    if before != now:
        out.rows.append(("meta", b"identity", msgspec.json.encode(now)))
    if out.collected:
        by = f"by {before}" if before is not None and before != now else "by another model or version"
        out.notes.append(f"{out.collected} checkpoints written {by} cannot be used by {now} and are removed")
