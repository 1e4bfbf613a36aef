"""Writing checkpoints to the disk tier. All of it happens in the writer's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np
from flide_engine.memory import Checkpoint

from flide_agent.store.files import Files
from flide_agent.store.host import Host
from flide_agent.store.index import Index, NodeRecord, Write
from flide_agent.store.jobs import Put
from flide_agent.store.nodes import Node, Nodes, encode_record
from flide_agent.store.payload import encode
from flide_agent.store.removal import Removal, remove_bare_spans, remove_subtree
from flide_agent.store.report import Transfers

Payload = tuple[str, list[bytes | memoryview], int]
"""(kind, chunks, bytes) of a file to be written."""
PAGED = ("k", "v")
"""Exported tensors that hold pages, along axis 1; the others are the state. See flide_engine.memory.Exported."""


@dataclass(slots=True)
class Staged:
    """Files written (`names`), index not told yet. guard: the node kept from removal so long: the parent, or a tombstone itself."""

    put: Put
    node: Node
    record: NodeRecord
    names: list[str]
    parent: Node | None
    guard: Node | None
    size: int


@dataclass(slots=True)
class Batch:
    """What one index transaction makes durable."""

    rows: list[Write] = field(default_factory=list)
    staged: dict[bytes, Staged] = field(default_factory=dict)


class NoRoom(Exception):
    """The checkpoint does not fit into the budget beside what is in use."""


class Disk:
    """own: the engine's identity. bare: spans that failed writes left without a use. stuck: bytes of files that could not be removed;
    the next start does."""

    def __init__(self, nodes: Nodes, index: Index, files: Files, host: Host, engine: Transfers, own: bytes) -> None:
        self.nodes, self.index, self.files, self.host = nodes, index, files, host
        self.engine, self.own = engine, own
        self.bare = Removal()
        self.stuck: dict[str, int] = {}

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
            payloads = self._encoded(put, bare, parent, checkpoint)
            size = sum(n for _, _, n in payloads)
            names = self._write(node, payloads, size, room)
        except BaseException:
            self._give_back(guard, 0, ())
            raise
        record = self._record(node, bare, parent, payloads, names)
        batch.rows.append(("node", node.key, encode_record(record, node)))
        if bare is None:
            ids = np.ascontiguousarray(put.tokens[record.since : node.m], dtype="<u4").tobytes()
            batch.rows.append(("ids", node.key, ids))
        with self.nodes.lock:
            batch.rows += [("hold", holder + node.key, b"") for holder in node.holders]
        batch.staged[node.key] = staged = Staged(put, node, record, names, parent, guard, size)
        return staged

    def _encoded(self, put: Put, bare: NodeRecord | None, parent: Node | None, checkpoint: Checkpoint) -> list[Payload]:
        """What has to be written of a checkpoint, its state last. Gives its reference back once it is on the host."""
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
        payloads: list[Payload] = [("state", *encode("state", node.key, node.m, node.m, exported.manifest, state))]
        if bare is None:
            kv = {name: t for name, t in exported.tensors.items() if name in PAGED}
            payloads.insert(0, ("kv", *encode("kv", node.key, node.m, since, {}, kv)))
        return payloads

    def _record(
        self, node: Node, bare: NodeRecord | None, parent: Node | None, payloads: list[Payload], names: list[str]
    ) -> NodeRecord:
        state, state_bytes = names[-1], payloads[-1][2]
        if bare is not None:
            return msgspec.structs.replace(bare, state=state, state_bytes=state_bytes)
        since, up = (0, b"") if parent is None else (parent.m, parent.key)
        return NodeRecord(
            node.m, since, up, names[0], payloads[0][2], state, state_bytes, node.used, self.own, node.tenant
        )  # fmt: skip

    def _write(self, node: Node, payloads: list[Payload], size: int, room: Callable[[int, OSError | None], bool]) -> list[str]:
        """Returns the names of the files, which are in use from now on."""
        error: OSError | None = None
        for last in (False, True):
            if not room(size, error):
                raise NoRoom
            with self.nodes.lock:
                self.nodes.disk_bytes += size
            names: list[str] = []
            try:
                for kind, chunks, n in payloads:
                    names.append(self.files.put(kind, chunks, n))
                    with self.nodes.lock:
                        self.nodes.name(1, names[-1])
                        self.nodes.disk_bytes -= self.stuck.pop(names[-1], 0)
            except OSError as refused:
                self._give_back(None, size, names)
                if last:
                    raise
                error = refused
            else:
                for name, (_, chunks, n) in zip(names, payloads, strict=True):
                    self.host.keep(name, node, chunks, n)
                return names
        raise AssertionError

    def _parent(self, keys: list[bytes], batch: Batch) -> Node | None:
        """The deepest checkpoint before this one whose span is on disk or in this batch."""
        for key in reversed(keys[:-1]):
            node = self.nodes.by_key.get(key)
            if node is not None and (node.record is not None or key in batch.staged):
                return node
        return None

    def _give_back(self, guard: Node | None, size: int, names: Iterable[str]) -> None:
        with self.nodes.lock:
            self.nodes.disk_bytes -= size
            self.nodes.name(-1, *names)
        self.unlink(names)
        with self.nodes.lock:
            if guard is not None:
                guard.children -= 1
                remove_bare_spans(self.nodes, guard, self.bare)

    def unlink(self, names: Iterable[str]) -> list[str]:
        """Remove files, unless somebody needs them: what was to go may have been written anew. Returns those that would not go."""
        with self.nodes.lock:
            idle = [name for name in names if name not in self.nodes.named]
        self.host.drop(idle)
        return [name for name in idle if not self.files.delete(name)]

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
                nodes.name(-1, *staged.names)  # the record counts them now
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
            self._give_back(staged.guard, staged.size, staged.names)
            self.finish(staged.put)
        batch.staged.clear()
        return count

    def finish(self, put: Put) -> None:
        """The write ended without a record. A node whose write was cancelled may have another one in the queue, which stays."""
        with self.nodes.lock:
            if put.node.put is put:
                put.node.put = None
            self.nodes.discard_if_empty(put.node)
