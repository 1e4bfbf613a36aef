"""Who goes first when a tier is full: of the least recently used, those of the least value; a tenant over its share sooner."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from operator import itemgetter

from flide_engine.memory import PoolFull

from flide_agent.store.costs import Costs
from flide_agent.store.nodes import Node, Nodes

WINDOW = 64
"""Least recently used nodes that are weighed against each other at a time, so that a full tier of any size costs the same."""


def free_device(nodes: Nodes, costs: Costs, full: PoolFull | None, over: int = 0) -> tuple[int, int]:
    """Evict device nodes until slots and pages for `full` and `over` bytes are free. Under the lock.

    Pinned ones stay. First those without a waiting write, then the others, which lose it. Returns (evicted, writes lost).
    """
    slots, pages = (full.slots, full.pages) if full is not None else (0, 0)
    goal = nodes.device_bytes - over
    evicted = lost = 0
    for cancel in (False, True):
        for node in _device_order(nodes, costs, cancel):
            if slots <= 0 and pages <= 0 and nodes.device_bytes <= goal:
                return evicted, lost
            waiting = node.put
            if waiting is not None and not waiting.cancel():
                continue
            lost += waiting is not None
            pages -= nodes.leave_device(node)
            slots -= 1
            evicted += 1
        if full is None:  # a budget is no emergency: waiting writes go on and the tier is over it for that long
            break
    return evicted, lost


def _device_order(nodes: Nodes, costs: Costs, waiting: bool) -> Iterator[Node]:
    """waiting: with those that wait to be written."""
    now = time.monotonic()

    def value(node: Node, freed: int) -> float:
        record = node.record
        reload = record.state_bytes + record.span_bytes if record is not None and record.state else 0
        return costs.value(node.kind, now - node.seen, node.m - survivor(node), reload, freed) * _share(nodes, node)

    def values(window: list[Node]) -> list[float]:
        # Pages of the whole window at once: one by one they took most of an eviction, which the engine waits for.
        freed = nodes.sole_bytes_of([n.checkpoint for n in window if n.checkpoint is not None])
        return [value(node, size) for node, size in zip(window, freed, strict=True)]

    return _windows(nodes.device, lambda n: not n.pins and (waiting or n.put is None), values)


def disk_order(nodes: Nodes, costs: Costs, allowed: Callable[[Node], bool]) -> Iterator[Node]:
    """Unpinned nodes of the disk tier in the order to evict them. Under the lock; the caller evicts while it iterates."""
    now = time.monotonic()

    def value(node: Node) -> float:
        record = node.record
        assert record is not None
        freed = record.state_bytes + (0 if node.children else record.span_bytes)
        return costs.value(node.kind, now - node.seen, node.m - survivor(node), 0, freed) * _share(nodes, node)

    return _windows(nodes.disk, lambda n: not n.pins and allowed(n), lambda window: [value(n) for n in window])


def _windows(
    tier: OrderedDict[bytes, Node], allowed: Callable[[Node], bool], values: Callable[[list[Node]], list[float]]
) -> Iterator[Node]:
    done: set[bytes] = set()
    while window := list(islice((n for key, n in tier.items() if key not in done and allowed(n)), WINDOW)):
        # Sorting is stable: equal values go by last use.
        for _, node in sorted(zip(values(window), window, strict=True), key=itemgetter(0)):
            done.add(node.key)
            yield node


def survivor(node: Node) -> int:
    """Position of the nearest ancestor that is kept on some tier, 0 without one."""
    up = node.up
    while up is not None and up.checkpoint is None and not up.on_disk:
        up = up.up
    node.up = up  # shortens the way, and lets go of what is gone
    return 0 if up is None else up.m


def _share(nodes: Nodes, node: Node) -> float:
    """1 while its tenant keeps no more than an equal share of the disk tier, less the further it is above."""
    if len(nodes.tenants) < 2:
        return 1.0
    tenants = sum(size > 0 for size in nodes.tenants.values())
    used = nodes.tenants.get(node.tenant, 0)
    if tenants < 2 or used <= 0:
        return 1.0
    return min(1.0, nodes.disk_bytes / tenants / used)
