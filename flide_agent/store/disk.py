"""The disk tier: writing a checkpoint, loading one, making room. Only `load` is called outside the writer's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from flide_engine.memory import Checkpoint, Exported
from flide_engine.segments import GRID, Tokens

from flide_agent.store.costs import Costs
from flide_agent.store.eviction import disk_order
from flide_agent.store.files import Files
from flide_agent.store.index import Index, NodeRecord, Write
from flide_agent.store.jobs import Put
from flide_agent.store.nodes import Node, Nodes, encode_record
from flide_agent.store.objects import new_name
from flide_agent.store.payload import PayloadError, decode, encode
from flide_agent.store.removal import Removal, remove_bare_spans, remove_state, remove_subtree
from flide_agent.store.report import Transfers

PAGED = ("k", "v")
"""Exported tensors that hold pages, along axis 1; the others are the state. See flide_engine.memory.Exported."""


@dataclass(slots=True)
class Staged:
    """Files written, index not told yet. guard: the node kept from removal so long: the parent, or a tombstone itself."""

    put: Put
    node: Node
    record: NodeRecord
    parent: Node | None
    guard: Node | None
    size: int


@dataclass(slots=True)
class Batch:
    """What one index transaction makes durable."""

    rows: list[Write] = field(default_factory=list)
    staged: dict[bytes, Staged] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes on disk: of all, of what one tenant keeps, of what one session holds. None: no limit of its own."""

    disk: int
    tenant: int | None = None
    session: int | None = None


class NoRoom(Exception):
    """The checkpoint does not fit into the budget beside what is in use."""


class Damaged(Exception):
    """A payload failed its checks. node: whose; whole: its span, not only its state."""

    def __init__(self, node: Node, whole: bool, reason: str) -> None:
        super().__init__(reason)
        self.node, self.whole = node, whole


class Gone(Exception):
    """It was removed while it was read, or could not be read this time: a miss like any other."""


class Disk:
    """limits: budgets of payload bytes. own: the engine's identity. bare: spans that failed writes left without a use."""

    def __init__(
        self, nodes: Nodes, index: Index, files: Files, engine: Transfers, own: bytes, limits: Limits, costs: Costs
    ) -> None:
        self.nodes, self.index, self.files, self.engine = nodes, index, files, engine
        self.own, self.costs = own, costs
        self.limit, self.tenant_limit, self.session_limit = limits.disk, limits.tenant, limits.session
        self.bare = Removal()

    # --- writing ---

    def stage(self, put: Put, batch: Batch, room: Callable[[int, OSError | None], bool]) -> Staged | None:
        """Write the payload files of a checkpoint. None when there is nothing to write any more.

        room(size, error): makes room for size bytes, more of it when `error` says that the disk is full; False when it cannot.
        Raises NoRoom then, OSError when the disk refuses twice; the reference is given back and nothing is left behind.
        """
        node = put.node
        with self.nodes.lock:
            checkpoint = put.claim()
            if checkpoint is None:
                return None
            if node.on_disk:
                checkpoint.release()
                return None
            bare = node.record
            parent = self._parent(put.keys, batch) if bare is None else None
            guard = node if bare is not None else parent
            if guard is not None:
                guard.children += 1
            self.nodes.exporting += 1
        try:
            record, files = self._encoded(put, bare, parent, checkpoint)
            size = sum(n for _, _, n in files)
            self._write(files, size, room)
        except BaseException:
            self._give_back(guard, 0, ())
            raise
        batch.rows.append(("node", node.key, encode_record(record, node)))
        if bare is None:
            ids = np.ascontiguousarray(put.tokens[record.since : node.m], dtype="<u4").tobytes()
            batch.rows.append(("ids", node.key, ids))
        with self.nodes.lock:
            batch.rows += [("hold", holder + node.key, b"") for holder in node.holders]
        batch.staged[node.key] = staged = Staged(put, node, record, parent, guard, size)
        return staged

    def _encoded(
        self, put: Put, bare: NodeRecord | None, parent: Node | None, checkpoint: Checkpoint
    ) -> tuple[NodeRecord, list[tuple[str, list[bytes | memoryview], int]]]:
        """The record and the files (name, chunks, bytes) of a checkpoint. Gives its reference back once it is on the host."""
        node = put.node
        since = 0 if parent is None else parent.m
        try:
            exported = self.engine.export(checkpoint, node.m if bare is not None else since)
        finally:
            with self.nodes.lock:
                checkpoint.release()
                self.nodes.exporting -= 1
                self.nodes.exported.notify_all()
        state = {name: t for name, t in exported.tensors.items() if name not in PAGED}
        body, state_bytes = encode("state", node.key, node.m, node.m, exported.manifest, state)
        files = [(new_name("state", node.key, node.m, node.m), body, state_bytes)]
        if bare is not None:
            return msgspec.structs.replace(bare, state=files[0][0], state_bytes=state_bytes), files
        kv = {name: t for name, t in exported.tensors.items() if name in PAGED}
        span, span_bytes = encode("kv", node.key, node.m, since, {}, kv)
        files.insert(0, (new_name("kv", node.key, node.m, since), span, span_bytes))
        up = b"" if parent is None else parent.key
        record = NodeRecord(
            node.m, since, up, files[0][0], span_bytes, files[1][0], state_bytes, node.used, self.own, node.tenant
        )  # fmt: skip
        return record, files

    def _write(
        self, files: list[tuple[str, list[bytes | memoryview], int]], size: int, room: Callable[[int, OSError | None], bool]
    ) -> None:
        error: OSError | None = None
        for last in (False, True):
            if not room(size, error):
                raise NoRoom
            with self.nodes.lock:
                self.nodes.disk_bytes += size
            try:
                for name, chunks, n in files:
                    self.files.put(name, chunks, n)
            except OSError as refused:
                self._give_back(None, size, [name for name, _, _ in files])
                if last:
                    raise
                error = refused
            else:
                return

    def _parent(self, keys: list[bytes], batch: Batch) -> Node | None:
        """The deepest checkpoint before this one whose span is on disk or in this batch."""
        for key in reversed(keys[:-1]):
            node = self.nodes.by_key.get(key)
            if node is not None and (node.record is not None or key in batch.staged):
                return node
        return None

    def _give_back(self, guard: Node | None, size: int, names: Iterable[str]) -> None:
        for name in names:
            if name:
                self.files.delete(name)
        with self.nodes.lock:
            self.nodes.disk_bytes -= size
            if guard is not None:
                guard.children -= 1
                remove_bare_spans(self.nodes, guard, self.bare)

    def committed(self, batch: Batch) -> Removal:
        """The index has the batch: what was staged is on disk. Returns what has to go since it lost its parent meanwhile."""
        lost = Removal()
        nodes = self.nodes
        with nodes.lock:
            for staged in batch.staged.values():
                node, record = staged.node, staged.record
                if staged.guard is node:
                    node.children -= 1
                    orphan = node.record is None
                    if orphan:  # its span was removed, and taken off the ledger, while the state was written
                        record = msgspec.structs.replace(record, span_bytes=0)
                else:
                    node.parent = staged.parent
                    orphan = staged.parent is not None and staged.parent.record is None
                nodes.set_record(node, record)
                nodes.disk[node.key] = node
                if node.put is staged.put:
                    node.put = None
                if orphan:
                    remove_subtree(nodes, node, lost)
            batch.staged.clear()
        return lost

    def undo(self, batch: Batch) -> int:
        """The index does not have the batch: remove the files. Returns how many checkpoints are not on disk now."""
        count = len(batch.staged)
        for staged in reversed(batch.staged.values()):
            old = staged.node.record
            kept = old.span if old is not None else ""
            self._give_back(staged.guard, staged.size, [n for n in (staged.record.span, staged.record.state) if n != kept])
            self.finish(staged.put)
        batch.staged.clear()
        return count

    def finish(self, put: Put) -> None:
        """The write ended without a record. A node whose write was cancelled may have another one in the queue, which stays."""
        with self.nodes.lock:
            if put.node.put is put:
                put.node.put = None
            self.nodes.discard_if_empty(put.node)

    def victims(self, need: int, at_least: int = 0, removal: Removal | None = None) -> Removal:
        """Take states of the least value, and spans that nobody needs then, off the disk until `need` bytes more fit.

        A little more goes, so that not every write has to make room. at_least: bytes to free even within the budget. removal: what
        goes already; it is added to and returned.
        """
        nodes = self.nodes
        removal = Removal() if removal is None else removal
        with nodes.lock:
            over = max(nodes.disk_bytes - removal.bytes + need - self.limit, at_least)
            if over > 0:
                self._evict(over + self.limit // 32, lambda n: True, removal)
            return removal

    def quota(self, node: Node, size: int) -> tuple[Removal, bool]:
        """Make room for size bytes of a node in the budgets of its tenant and of the sessions that hold it.

        Returns what has to go, and whether it fits then. A session's budget counts what it shares, and takes nothing of others.
        """
        nodes, removal = self.nodes, Removal()
        with nodes.lock:
            limit = self.session_limit
            for holder in tuple(node.holders):
                over = 0 if limit is None else nodes.held_bytes(holder) + size - limit
                if over > 0 and self._evict(over, lambda n, h=holder: n.holders == {h}, removal) < over:  # type: ignore[misc]
                    return removal, False
            if self.tenant_limit is not None:
                over = nodes.tenants[node.tenant] + size - self.tenant_limit
                if over > 0 and self._evict(over, lambda n: n.tenant == node.tenant, removal) < over:
                    return removal, False
        return removal, True

    def _evict(self, goal: int, allowed: Callable[[Node], bool], removal: Removal) -> int:
        """Bytes that go, at least `goal` when there is so much. Under the lock."""
        got = 0
        for node in disk_order(self.nodes, self.costs, allowed):
            if got >= goal:
                break
            before = len(removal.files)
            remove_state(self.nodes, node, removal)
            got += sum(n for _, n in removal.files[before:])
        return got

    # --- loading ---

    def read(self, node: Node, tokens: Tokens, base: int) -> tuple[Exported, int]:
        """A checkpoint's state and K/V of [base, m), and the bytes read. base: a multiple of 64 below m.

        Raises Damaged or Gone.
        """
        with self.nodes.lock:
            path = self.nodes.path(node)
        if not path or not path[-1][1].state:
            raise Gone
        ids = self.index.read_many("ids", [n.key for n, _ in path])
        for (n, r), stored in zip(path, ids, strict=True):
            if stored is None or not np.array_equal(np.frombuffer(stored, "<u4"), tokens[r.since : r.m]):
                self._check(n, r.span, stored is None, "its token ids are not those asked for")
        record = path[-1][1]
        manifest, tensors = self._file(node, record.state, "state", record.m, record.m)
        total = record.state_bytes
        parts: list[dict[str, torch.Tensor]] = []
        for n, r in path:
            if r.m > base:
                _, kv = self._file(n, r.span, "kv", r.m, r.since)
                total += r.span_bytes
                skip = max(0, base - r.since) // GRID
                parts.append({name: t[:, skip:] if skip else t for name, t in kv.items()})
        for name in parts[0]:
            same = [p[name] for p in parts]
            tensors[name] = same[0].contiguous() if len(same) == 1 else torch.cat(same, dim=1)
        shapes = {name: list(t.shape) for name, t in tensors.items()}
        return Exported({**manifest, "since": base, "shapes": shapes}, tensors), total

    def _file(self, node: Node, name: str, kind: str, m: int, since: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        try:
            with self.files.get(name) as source:
                return decode(source, kind, node.key, m, since)
        except (PayloadError, OSError) as error:
            transient = isinstance(error, OSError) and error.errno in TRANSIENT
            self._check(node, name, transient, f"{kind}: {error}")
            raise AssertionError from error

    def _check(self, node: Node, name: str, transient: bool, reason: str) -> None:
        """Raise Damaged when the record still names the file, else Gone: then it was removed while it was read."""
        with self.nodes.lock:
            record = node.record
            if transient or record is None or name not in (record.state, record.span):
                raise Gone(reason)
            raise Damaged(node, name == record.span, reason)

    def drop(self, damaged: Damaged) -> tuple[Removal, int]:
        """Take what is damaged off the tier. Returns the removal for the writer and how many checkpoints it costs."""
        removal = Removal()
        with self.nodes.lock:
            if damaged.whole:
                return removal, remove_subtree(self.nodes, damaged.node, removal)
            lost = int(damaged.node.on_disk)
            remove_state(self.nodes, damaged.node, removal)
            return removal, lost


TRANSIENT = frozenset({12, 23, 24})
"""ENOMEM, ENFILE, EMFILE: the file may well be sound."""
