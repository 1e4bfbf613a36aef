"""The picture in memory: every checkpoint of all tiers, the tree of K/V spans, who holds what, what was used last.

Plain bookkeeping without I/O. All of it under one lock, held for microseconds.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from flide_engine.memory import Checkpoint
from flide_engine.segments import Tokens

from flide_agent.store.index import NodeRecord, Write
from flide_agent.store.report import CheckpointInfo, Kind, Tier

if TYPE_CHECKING:
    from flide_agent.store.jobs import Put


@dataclass(slots=True, eq=False)
class Node:
    """A checkpoint. tokens: its m ids, while it is on the device. record: what the index says of it, None when nothing.

    children: nodes on disk (or being written) whose span follows its span. pins: finders that use it now.
    put: its write, from the queue to the commit. used: order of last use. kind: what it is good for.
    seen: monotonic time of last use, that of the start for those of an earlier process. up: the checkpoint of the same trunk before
    it, as far as was known when it came; it may be gone. tenant: whose it is.
    """

    key: bytes
    m: int
    checkpoint: Checkpoint | None = None
    tokens: Tokens | None = None
    record: NodeRecord | None = None
    parent: Node | None = None
    children: int = 0
    pins: int = 0
    put: Put | None = None
    used: int = 0
    kind: Kind = Kind.INNER
    seen: float = 0.0
    up: Node | None = None
    tenant: bytes = b""
    holders: set[bytes] = field(default_factory=set)

    @property
    def on_disk(self) -> bool:
        """Its state and all its K/V are in files."""
        return self.record is not None and self.record.state != ""

    def stands_for(self, tokens: Tokens) -> bool:
        """It is on the device, and its ids are the first m of tokens."""
        return self.checkpoint is not None and self.tokens is not None and np.array_equal(self.tokens, tokens[: self.m])


class Nodes:
    """by_key: all nodes. device, disk: those of a tier, least recently used first (disk: those with a state there).

    held: holder -> keys. disk_bytes: the ledger of payload files, reservations included. tenants: bytes of records by tenant.
    named: names of files and how many records and writes under way need them.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_key: dict[bytes, Node] = {}
        self.device: OrderedDict[bytes, Node] = OrderedDict()
        self.disk: OrderedDict[bytes, Node] = OrderedDict()
        self.held: defaultdict[bytes, set[bytes]] = defaultdict(set)
        self.new_holds: set[bytes] = set()
        self.touched: dict[bytes, Node] = {}
        self.tenants: Counter[bytes] = Counter()
        self.named: dict[str, int] = {}
        self.clock = 0
        self.disk_bytes = 0
        self.state_bytes = 0
        self.page_bytes = 0
        self.exporting = 0
        self.exported = threading.Condition(self.lock)
        self._page_uses = np.zeros(0, np.int32)

    # --- use ---

    def touch(self, node: Node) -> None:
        """It was used now."""
        self.clock += 1
        node.used, node.seen = self.clock, time.monotonic()
        if node.key in self.device:
            self.device.move_to_end(node.key)
        if node.key in self.disk:
            self.disk.move_to_end(node.key)
            self.touched[node.key] = node

    def take_touched(self) -> list[Node]:
        """Nodes used since the last call, for the index, in order of use."""
        out = list(self.touched.values())
        self.touched.clear()
        return out

    def unpin(self, node: Node) -> None:
        with self.lock:
            node.pins -= 1
            self.discard_if_empty(node)

    # --- holders ---

    def add_holder(self, node: Node, holder: bytes) -> None:
        """The index needs a row for it now (`hold_rows`), unless the node is not on disk: then it gets them when it is written."""
        if holder not in node.holders:
            node.holders.add(holder)
            self.held[holder].add(node.key)
            if node.record is not None or node.put is not None:
                self.new_holds.add(holder + node.key)

    def hold_rows(self) -> list[Write]:
        """Rows of new holders, for the index."""
        with self.lock:
            self.new_holds = {h for h in self.new_holds if h[16:] in self.held.get(h[:16], ())}
            return [("hold", hold, b"") for hold in self.new_holds]

    def holds_done(self, rows: Sequence[Write], ok: bool) -> None:
        """ok: the index has these."""
        if ok:
            with self.lock:
                self.new_holds.difference_update(hold for _, hold, _ in rows)

    def drop_holder(self, node: Node, holder: bytes) -> None:
        node.holders.discard(holder)
        keys = self.held.get(holder)
        if keys is not None:
            keys.discard(node.key)
            if not keys:
                del self.held[holder]

    # --- device tier ---

    @property
    def device_bytes(self) -> int:
        """Bytes of the states held and of the pages that they use, each page once."""
        return self.state_bytes + self.page_bytes

    def enter_device(self, node: Node, checkpoint: Checkpoint, tokens: Tokens) -> None:
        """Takes over one reference. tokens: exactly m ids that nobody changes."""
        node.checkpoint, node.tokens = checkpoint, tokens
        self.device[node.key] = node
        self.state_bytes += checkpoint.state_bytes
        if len(checkpoint.pages):
            top = int(checkpoint.pages.max()) + 1
            if top > len(self._page_uses):
                self._page_uses = np.concatenate([self._page_uses, np.zeros(2 * top - len(self._page_uses), np.int32)])
            self._page_uses[checkpoint.pages] += 1
            self.page_bytes += self._sole_pages(checkpoint) * self._bytes_of_page(checkpoint)

    def leave_device(self, node: Node) -> int:
        """Release the tier's reference. Returns how many pages nobody here uses any more."""
        checkpoint, node.checkpoint, node.tokens = node.checkpoint, None, None
        del self.device[node.key]
        assert checkpoint is not None
        sole = self._sole_pages(checkpoint)
        self.state_bytes -= checkpoint.state_bytes
        self.page_bytes -= sole * self._bytes_of_page(checkpoint)
        if len(checkpoint.pages):
            self._page_uses[checkpoint.pages] -= 1
        checkpoint.release()
        self.discard_if_empty(node)
        return sole

    def sole_bytes(self, checkpoint: Checkpoint) -> int:
        """Bytes that only this checkpoint of the tier keeps."""
        return checkpoint.state_bytes + self._sole_pages(checkpoint) * self._bytes_of_page(checkpoint)

    def sole_bytes_of(self, checkpoints: Sequence[Checkpoint]) -> list[int]:
        """`sole_bytes` of each of them, at least one, all of one engine."""
        ends = np.cumsum([len(c.pages) for c in checkpoints])
        sole = np.cumsum(self._page_uses[np.concatenate([c.pages for c in checkpoints])] == 1)
        upto = np.concatenate([_ZERO, sole])[ends]
        page = next((self._bytes_of_page(c) for c in checkpoints if len(c.pages)), 0)
        found: list[int] = (checkpoints[0].state_bytes + np.diff(upto, prepend=0) * page).tolist()
        return found

    def _sole_pages(self, checkpoint: Checkpoint) -> int:
        return int(np.count_nonzero(self._page_uses[checkpoint.pages] == 1)) if len(checkpoint.pages) else 0

    @staticmethod
    def _bytes_of_page(checkpoint: Checkpoint) -> int:
        return checkpoint.page_bytes // max(1, len(checkpoint.pages))

    # --- disk tier ---

    def set_record(self, node: Node, record: NodeRecord | None) -> None:
        """What the index says of it from now on."""
        for sign, it in ((-1, node.record), (1, record)):
            if it is not None:
                self.tenants[node.tenant] += sign * (it.span_bytes + it.state_bytes)
                self.name(sign, it.span, it.state)
        if not self.tenants[node.tenant]:
            del self.tenants[node.tenant]
        node.record = record

    def name(self, sign: int, *names: str) -> None:
        """These files are needed by one more (1) or one less (-1)."""
        for name in filter(None, names):
            uses = self.named.get(name, 0) + sign
            if uses:
                self.named[name] = uses
            else:
                del self.named[name]

    def held_bytes(self, holder: bytes) -> int:
        """Bytes on disk of all that a holder holds, shared or not."""
        records = (self.by_key[key].record for key in self.held.get(holder, ()))
        return sum(r.span_bytes + r.state_bytes for r in records if r is not None)

    def path(self, node: Node) -> list[tuple[Node, NodeRecord]]:
        """The nodes whose spans make up its K/V, with their records, from position 0. Empty when one was removed."""
        out = []
        at: Node | None = node
        while at is not None:
            if at.record is None:
                return []
            out.append((at, at.record))
            at = at.parent
        return out[::-1]

    def discard_if_empty(self, node: Node) -> None:
        """Forget a node that is on no tier and waits for none."""
        if node.checkpoint is None and node.record is None and node.put is None and not node.pins:
            if self.by_key.get(node.key) is node:
                del self.by_key[node.key]
            for holder in list(node.holders):
                self.drop_holder(node, holder)

    def describe(self, key: bytes, m: int, host: Container[str]) -> CheckpointInfo:
        """How a checkpoint is kept now. host: names of files that the host tier has."""
        with self.lock:
            node = self.by_key.get(key)
            if node is None:
                return CheckpointInfo(m, (), 0, False)
            in_host = node.record is not None and node.on_disk and node.record.state in host and node.record.span in host
            on: list[tuple[Tier, bool]] = [("device", node.checkpoint is not None), ("host", in_host), ("disk", node.on_disk)]
            size = 0
            if node.record is not None and node.on_disk:
                size = node.record.span_bytes + node.record.state_bytes
            elif node.checkpoint is not None:
                size = self.sole_bytes(node.checkpoint)
            return CheckpointInfo(node.m, tuple(tier for tier, there in on if there), size, node.on_disk)

    def report(self) -> dict[str, Any]:
        return {
            "device_count": len(self.device), "device_bytes": self.device_bytes,
            "disk_count": len(self.disk), "disk_bytes": self.disk_bytes,
        }  # fmt: skip


def encode_record(record: NodeRecord, node: Node) -> bytes:
    return _encoder.encode(msgspec.structs.replace(record, used=node.used, kind=int(node.kind)))


def decode_record(value: bytes) -> NodeRecord:
    """Raises msgspec.MsgspecError."""
    return _decoder.decode(value)


_ZERO = np.zeros(1, np.int64)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(NodeRecord)
