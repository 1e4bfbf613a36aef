"""What the store is told to keep and to let go of: the half of CheckpointStore that changes things."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from flide_engine.memory import Checkpoint
from flide_engine.segments import Tokens

from flide_agent.store import identity as ids
from flide_agent.store.costs import Costs
from flide_agent.store.counters import Counters
from flide_agent.store.errors import StoreError
from flide_agent.store.eviction import free_device, survivor
from flide_agent.store.index import Index
from flide_agent.store.jobs import Put, Rows, Task
from flide_agent.store.loader import own_copy
from flide_agent.store.nodes import Node, Nodes
from flide_agent.store.removal import Removal, forget_holder
from flide_agent.store.report import Kind, PoolFull
from flide_agent.store.writer import Writer

EXPORT_WAIT = 5.0
"""Seconds that `relieve` waits for a write under way to let go of its checkpoint."""
FORGET_WAIT = 10.0
"""Seconds that a deletion waits for the index."""
REFUSED = "the disk refuses to record the deletion; it is done when it takes writes again"


class Keeping:
    """See CheckpointStore. device_limit: bytes of the device tier, None: only `relieve` bounds it."""

    def __init__(
        self, nodes: Nodes, index: Index, writer: Writer, own: bytes, costs: Costs, counters: Counters, device_limit: int | None
    ) -> None:
        self.index, self.writer, self.costs = index, writer, costs
        self._nodes, self._counters, self._device_limit = nodes, counters, device_limit
        self._chains = ids.Chains(own)
        self._holds = Rows(nodes.hold_rows, nodes.holds_done)
        self._closed = False

    def publish(
        self, share_key: bytes, tokens: Tokens, checkpoint: Checkpoint, session: str | None, kind: Kind = Kind.STEP
    ) -> bytes:
        """Keep a checkpoint; takes over the caller's reference. tokens: its trunk, at least tokens[:checkpoint.m].

        Visible to `find` when this returns, durable when the writer has committed it (`describe`). Publish shallow
        checkpoints of a trunk first: a deeper one then only writes the pages that it adds. session: who holds it, for
        `forget`; None: nobody, it lives until it is evicted. Publishing what is known adds the holder. kind: what it is good
        for; an INNER one stays on the device until something goes on from it. Returns its key.
        """
        m = checkpoint.m
        if not 0 < m <= len(tokens):
            checkpoint.release()
            raise ValueError(f"a checkpoint at {m} cannot be of a trunk of {len(tokens)} tokens")
        keys = self._chains.upto(share_key, tokens, m)
        key, put = keys[-1], None
        with self._nodes.lock:
            if self._closed:
                checkpoint.release()
                return key
            node = self._nodes.by_key.get(key)
            if node is None:
                node = self._nodes.by_key[key] = Node(key, m, tenant=ids.tenant_id(share_key))
                node.up = next((n for k in reversed(keys[:-1]) if (n := self._nodes.by_key.get(k)) is not None), None)
                if node.up is not None:
                    survivor(node.up)  # so that no chain of forgotten nodes hangs on it
            node.kind = max(node.kind, kind)
            if node.checkpoint is None:
                self._nodes.enter_device(node, checkpoint, own_copy(tokens, m))
            else:
                checkpoint.release()
            self._nodes.touch(node)
            if node.kind is not Kind.INNER:
                put = self._wanted(node, keys)
            if session is not None:
                self._nodes.add_holder(node, ids.holder_key(share_key, session))
            self._keep_budget()
        self._counters.add("published")
        self._write(put)
        self._save_holds()
        return key

    def _wanted(self, node: Node, keys: list[bytes]) -> Put | None:
        """Its write, if it needs one. Under the lock."""
        if node.on_disk or node.put is not None or node.checkpoint is None or node.tokens is None:
            return None
        node.put = Put(node, node.checkpoint.retain(), node.tokens, keys)
        return node.put

    def _write(self, put: Put | None) -> None:
        if put is not None and not self.writer.put(put):
            with self._nodes.lock:
                put.cancel()
                self._nodes.discard_if_empty(put.node)
            self._counters.add("writes_dropped")

    def resumed(self, share_key: bytes, tokens: Tokens, m: int, session: str | None) -> bytes:
        """A request went on from the checkpoint at m (`Found.m`) of tokens: one that was only on the device is written, and the
        session holds it from now on. Returns its key."""
        keys = self._chains.upto(share_key, tokens, m)
        with self._nodes.lock:
            node, put = self._nodes.by_key.get(keys[-1]), None
            if node is not None and not self._closed:
                node.kind = max(node.kind, Kind.FORK)
                put = self._wanted(node, keys)
        self._write(put)
        if session is not None:
            self.hold(share_key, keys[-1:], session)
        return keys[-1]

    def rank(self, kinds: Mapping[bytes, Kind]) -> None:
        """What checkpoints are good for now, by key. Prefixes and forks stay what they are; unknown keys are passed over."""
        with self._nodes.lock:
            for key, kind in kinds.items():
                node = self._nodes.by_key.get(key)
                if node is not None and node.kind not in (Kind.PREFIX, Kind.FORK):
                    node.kind = kind

    def hold(self, share_key: bytes, keys: list[bytes], session: str) -> None:
        """Add a holder to checkpoints by key (`Found.key`), as publishing them again would. Unknown keys are passed over."""
        holder = ids.holder_key(share_key, session)
        with self._nodes.lock:
            for key in keys:
                node = self._nodes.by_key.get(key)
                if node is not None:
                    self._nodes.add_holder(node, holder)
        self._save_holds()

    def _save_holds(self) -> None:
        if self._nodes.new_holds:
            self.writer.submit(self._holds)

    def forget(self, share_key: bytes, session: str, timeout: float = FORGET_WAIT) -> int:
        """Remove a holder, and what nobody else holds from both tiers, index and files. Returns how many checkpoints went.

        Waits for the index commit; raises StoreError when it does not happen within timeout (s).
        """
        try:
            return self.forgetting(share_key, session).result(timeout)
        except TimeoutError:
            raise StoreError(REFUSED) from None

    def forgetting(self, share_key: bytes, session: str) -> Future[int]:
        """`forget` for those who wait otherwise: what it returns, once the index has it."""
        holder = ids.holder_key(share_key, session)
        done: Future[int] = Future()
        gone = 0

        def collect() -> Removal:
            nonlocal gone
            removal, gone = forget_holder(self._nodes, self.index, holder)
            return removal

        def applied() -> None:
            if done.set_running_or_notify_cancel():
                done.set_result(gone)

        self.writer.submit(Task(collect, applied))
        return done

    def _keep_budget(self) -> None:
        if self._device_limit is not None and (over := self._nodes.device_bytes - self._device_limit) > 0:
            evicted, _ = free_device(self._nodes, self.costs, None, over)
            self._counters.add("evicted_device", evicted)

    def relieve(self, full: PoolFull) -> bool:
        """Free device memory: evict unpinned checkpoints, those worth least first, until about what `full` asks for is free.

        Checkpoints waiting to be written go last and lose their write. True when something was freed, so that trying again
        makes sense; False when all that is held is in use.
        """
        with self._nodes.lock:
            evicted, lost = free_device(self._nodes, self.costs, full)
            self._counters.add("evicted_device", evicted)
            self._counters.add("writes_dropped", lost)
            if evicted:
                return True
            return self._nodes.exporting > 0 and self._nodes.exported.wait(EXPORT_WAIT)
