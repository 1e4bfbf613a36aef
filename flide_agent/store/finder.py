"""The search for the deepest checkpoint of a trunk, over all tiers."""

from __future__ import annotations

from collections.abc import Callable

from flide_engine.segments import GRID, Tokens

from flide_agent.store.costs import Costs
from flide_agent.store.counters import Counters
from flide_agent.store.errors import MustLoad
from flide_agent.store.host import Host
from flide_agent.store.loader import Loader
from flide_agent.store.nodes import Node, Nodes
from flide_agent.store.reading import Loaded
from flide_agent.store.report import Found, PoolFull, Tier

CONSIDERED = 4
"""Deepest checkpoints on disk that are weighed against computing; the ones before them save even less."""


class Finder:
    """keep_budget: called under the lock when the device tier has grown. closed: everything is a miss."""

    def __init__(
        self, nodes: Nodes, host: Host, loader: Loader, costs: Costs, counters: Counters, keep_budget: Callable[[], None]
    ) -> None:
        self._nodes, self._host, self._loader, self._costs, self._counters = nodes, host, loader, costs, counters
        self._keep_budget = keep_budget
        self.closed = False

    def find(self, keys: list[bytes], tokens: Tokens, wait: bool) -> Found | None:
        """keys: of the grid positions to look at, ascending from 64; used up. See CheckpointStore.find."""
        load = True
        while keys:
            with self._nodes.lock:
                node = None if self.closed else self._deepest(keys, load)
                if node is None:
                    break
                del keys[node.m // GRID :]
                if node.checkpoint is not None:
                    if node.stands_for(tokens):
                        return self._found(node, Loaded())
                    keys.pop()
                    continue
                if not wait:
                    raise MustLoad
                node.pins += 1
            try:
                loaded = self._loader.load(node, tokens, keys)
                with self._nodes.lock:
                    if loaded is not None and node.checkpoint is not None:
                        found = self._found(node, loaded)
                        self._keep_budget()
                        return found
            except PoolFull:
                self._counters.add("load_failed")
                load = False
            finally:
                self._nodes.unpin(node)
            keys.pop()
        self._counters.add("misses")
        return None

    def _deepest(self, keys: list[bytes], load: bool) -> Node | None:
        """The deepest one on the device, or one on disk that is deeper and worth loading. Under the lock."""
        by_key = self._nodes.by_key
        on_disk: list[Node] = []
        near = None
        for key in reversed(keys):
            node = by_key.get(key)
            if node is None:
                continue
            if node.checkpoint is not None:
                near = node
                break
            if load and node.on_disk and len(on_disk) < CONSIDERED:
                on_disk.append(node)
        start = 0 if near is None else near.m
        for node in on_disk:
            files = [(r.span, r.span_bytes) for _, r in self._nodes.path(node) if r.m > start]
            if node.record is not None:
                files.append((node.record.state, node.record.state_bytes))
            size = sum(n for _, n in files)
            host = sum(n for name, n in files if name in self._host)
            if self._costs.worth_loading(size - host, host, node.m - start):
                return node
            self._counters.add("loads_passed_over")
        return near

    def _found(self, node: Node, loaded: Loaded) -> Found:
        checkpoint = node.checkpoint
        assert checkpoint is not None
        tier: Tier = "disk" if loaded.disk else "host" if loaded.host else "device"
        node.pins += 1
        self._nodes.touch(node)
        self._counters.add(f"hits_{tier}")
        self._counters.add("tokens_found", node.m)
        return Found(checkpoint.retain(), node.key, tier, loaded.disk + loaded.host, lambda: self._nodes.unpin(node))
