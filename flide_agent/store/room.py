"""Room on the disk tier: what has to go so that a write fits into the budgets of the tier, the tenant and the session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flide_agent.store.costs import Costs
from flide_agent.store.eviction import disk_order
from flide_agent.store.nodes import Node, Nodes
from flide_agent.store.removal import Removal, remove_state


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes on disk: of all, of what one tenant keeps, of what one session holds. None: no limit of its own."""

    disk: int
    tenant: int | None = None
    session: int | None = None


class Room:
    """Decides; the writer applies what comes back."""

    def __init__(self, nodes: Nodes, limits: Limits, costs: Costs) -> None:
        self.nodes, self.limits, self.costs = nodes, limits, costs

    def victims(self, need: int, at_least: int = 0, removal: Removal | None = None) -> Removal:
        """Take states of the least value, and spans that nobody needs then, off the disk until `need` bytes more fit.

        A little more goes, so that not every write has to make room. at_least: bytes to free even within the budget. removal: what
        goes already; it is added to and returned.
        """
        nodes = self.nodes
        removal = Removal() if removal is None else removal
        with nodes.lock:
            over = max(nodes.disk_bytes - removal.bytes + need - self.limits.disk, at_least)
            if over > 0:
                self._evict(over + self.limits.disk // 32, lambda n: True, removal)
            return removal

    def quota(self, node: Node, size: int, removal: Removal | None = None) -> tuple[Removal, bool]:
        """Make room for size bytes of a node in the budgets of its tenant and of the sessions that hold it.

        Returns what has to go, and whether it fits then. A session's budget counts what it shares, and takes nothing of others.
        """
        nodes = self.nodes
        removal = Removal() if removal is None else removal
        with nodes.lock:
            limit = self.limits.session
            for holder in tuple(node.holders):
                over = 0 if limit is None else nodes.held_bytes(holder) + size - limit
                if over > 0 and self._evict(over, lambda n, h=holder: n.holders == {h}, removal) < over:  # type: ignore[misc]
                    return removal, False
            if self.limits.tenant is not None:
                over = nodes.tenants[node.tenant] + size - self.limits.tenant
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
