"""Taking checkpoints off the disk tier: at once in memory, then in the index, last the files.

A Removal is collected under the lock by any thread and applied by the writer. Its index rows are worked out when it is
applied, from what is true then, so that the order in which removals and writes reach the index does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from flide_agent.store.index import Index, Write
from flide_agent.store.nodes import Node, Nodes, encode_record


@dataclass(slots=True)
class Removal:
    """dirty: keys whose records changed. holds: rows of holders that are gone. files: (name, bytes) to unlink.

    applied: called when the index has it.
    """

    dirty: set[bytes] = field(default_factory=set)
    holds: set[bytes] = field(default_factory=set)
    files: list[tuple[str, int]] = field(default_factory=list)
    applied: Callable[[], None] | None = None

    @property
    def bytes(self) -> int:
        return sum(n for _, n in self.files)

    def __bool__(self) -> bool:
        return bool(self.dirty or self.holds or self.files)


def remove_state(nodes: Nodes, node: Node, removal: Removal) -> None:
    """Take a node's state off the disk; its span stays while others build on it. Under the lock."""
    record = node.record
    if record is None:
        return
    if record.state:
        removal.files.append((record.state, record.state_bytes))
        del nodes.disk[node.key]
        nodes.touched.pop(node.key, None)
    nodes.set_record(node, msgspec.structs.replace(record, state="", state_bytes=0))
    removal.dirty.add(node.key)
    remove_bare_spans(nodes, node, removal)


def remove_bare_spans(nodes: Nodes, node: Node | None, removal: Removal) -> None:
    """Take the span of a node off the disk when it has no state and nobody builds on it, then its parent's likewise."""
    while node is not None and node.record is not None and not node.record.state and not node.children:
        node = _remove_span(nodes, node, removal)


def remove_subtree(nodes: Nodes, root: Node, removal: Removal) -> int:
    """Take a node and all that builds on its span off the disk. Returns how many checkpoints could be found before."""
    doomed = {root}
    order = [root]
    for node in sorted((n for n in nodes.by_key.values() if n.record is not None), key=lambda n: n.m):
        if node.parent in doomed:
            doomed.add(node)
            order.append(node)
    gone = 0
    for node in reversed(order):
        gone += node.on_disk
        if node.on_disk:
            node.children += 1  # keeps remove_state from removing the span, which is done here
            remove_state(nodes, node, removal)
            node.children -= 1
        if node.record is not None:
            _remove_span(nodes, node, removal)
    return gone


def forget_holder(nodes: Nodes, index: Index, holder: bytes) -> tuple[Removal, int]:
    """Take a holder away, and what nobody else holds off both tiers. Returns how many checkpoints went."""
    removal = Removal(holds={key for key, _ in index.scan("hold", holder)})
    gone = 0
    with nodes.lock:
        for node in [nodes.by_key[key] for key in nodes.held.get(holder, ())]:
            nodes.drop_holder(node, holder)
            if node.holders:
                continue
            gone += 1
            if node.put is not None:
                node.put.cancel()
            remove_state(nodes, node, removal)
            if node.checkpoint is not None:
                nodes.leave_device(node)
            nodes.discard_if_empty(node)
    return removal, gone


def _remove_span(nodes: Nodes, node: Node, removal: Removal) -> Node | None:
    record, parent = node.record, node.parent
    assert record is not None
    removal.files.append((record.span, record.span_bytes))
    removal.dirty.add(node.key)
    removal.holds.update(holder + node.key for holder in node.holders)
    nodes.set_record(node, None)
    node.parent = None
    if parent is not None:
        parent.children -= 1
    nodes.discard_if_empty(node)
    return parent


def rows(nodes: Nodes, removal: Removal) -> list[Write]:
    """What the index has to be told now. Under the lock."""
    out: list[Write] = []
    for key in removal.dirty:
        node = nodes.by_key.get(key)
        if node is not None and node.record is not None:
            out.append(("node", key, encode_record(node.record, node)))
        else:
            out += [("node", key, None), ("ids", key, None)]
    for hold in removal.holds:
        holder, key = hold[:16], hold[16:]
        if key not in nodes.held.get(holder, ()):
            out.append(("hold", hold, None))
    out += [("gc", name.encode(), b"") for name, _ in removal.files]
    return out
