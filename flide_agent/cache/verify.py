"""Every object of a store read and checked: header, checksum of each tensor, the record and the token ids that go with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch

from flide_agent.cache.shelf import Shelf
from flide_agent.store.index import NodeRecord
from flide_agent.store.payload import PayloadError, decode


@dataclass(slots=True)
class Verdict:
    """files, bytes: read and found good. bad: what is wrong, a line each. orphans: files that no record names; a running server may
    be writing them."""

    files: int = 0
    bytes: int = 0
    bad: list[str] = field(default_factory=list)
    orphans: int = 0


def verify(shelf: Shelf) -> Verdict:
    """Read everything. What a running server removes meanwhile is no fault: a record is read again before it counts as bad."""
    out = Verdict()
    nodes = shelf.nodes()
    if broken := len(shelf.index.scan("node")) - len(nodes):
        out.bad.append(f"{broken} records cannot be read")
    named: set[str] = set()
    for key, record in sorted(nodes.items(), key=lambda item: item[1].m):
        named |= {record.span, record.state}
        for fault in _faults(shelf, key, record, nodes, out):
            if shelf.nodes_of(key) == record:
                out.bad.append(f"{key.hex()[:16]} at {record.m}: {fault}")
    unlinked = {name.decode() for name, _ in shelf.index.scan("gc")}
    now = {name for record in shelf.nodes().values() for name in (record.span, record.state)}
    out.orphans = len(set(shelf.files.listing()) - named - unlinked - now)
    return out


def _faults(shelf: Shelf, key: bytes, record: NodeRecord, nodes: dict[bytes, NodeRecord], out: Verdict) -> list[str]:
    faults: list[str] = []
    parent = nodes.get(record.parent)
    if record.parent and parent is None:
        faults.append("the checkpoint that it builds on is missing")
    elif (0 if parent is None else parent.m) != record.since:
        faults.append("its K/V do not begin where those before them end")
    ids = shelf.index.read("ids", key)
    if ids is None or len(ids) != 4 * (record.m - record.since):
        faults.append("its token ids are missing or of the wrong number")
    for name, kind, since, size in (
        (record.span, "kv", record.since, record.span_bytes),
        (record.state, "state", record.m, record.state_bytes),
    ):
        if not name:
            continue
        try:
            with shelf.files.get(name) as source:
                data = torch.empty(source.size, dtype=torch.uint8)
                decode(source, kind, key, record.m, since, data)
            if f"{hashlib.sha256(data.numpy().data).hexdigest()}.{kind}" != name:
                raise PayloadError("its content is not what it is named after")
        except (OSError, PayloadError) as error:
            faults.append(f"{kind} file: {error}")
        else:
            out.files, out.bytes = out.files + 1, out.bytes + size
    return faults
