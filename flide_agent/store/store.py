"""CheckpointStore: find the deepest checkpoint of a token sequence, keep what was published, forget the least used."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import lmdb
from flide_engine.memory import Checkpoint
from flide_engine.segments import GRID, Tokens

from flide_agent.store import identity as ids
from flide_agent.store.costs import Costs
from flide_agent.store.counters import Counters
from flide_agent.store.directory import Ownership, claim
from flide_agent.store.disk import Disk, Limits
from flide_agent.store.errors import StoreError
from flide_agent.store.eviction import free_device, survivor
from flide_agent.store.files import Files
from flide_agent.store.finder import Finder
from flide_agent.store.index import Index, open_index
from flide_agent.store.jobs import Put, Rows, Task
from flide_agent.store.loader import Loader, own_copy
from flide_agent.store.nodes import Node, Nodes
from flide_agent.store.recover import Identity, recover
from flide_agent.store.removal import Removal, forget_holder
from flide_agent.store.report import CheckpointInfo, Found, Kind, PoolFull, StoreStats, Transfers
from flide_agent.store.trails import Trails
from flide_agent.store.writer import Writer

log = logging.getLogger("flide_agent.store")

EXPORT_WAIT = 5.0
"""Seconds that `relieve` waits for a write under way to let go of its checkpoint."""
CLOSE_WAIT = 30.0


class CheckpointStore:
    """Checkpoints on two tiers: the engine's device (handles held here) and a directory (LMDB index, payload files).

    All methods are thread-safe. `find`, `publish` and `relieve` never raise for a full or broken disk: a checkpoint that
    cannot be had is a miss. Disk writes happen in one writer thread behind the answers. What goes first is in `eviction`.

    notes: what `open` found and did, as sentences for the log: entries of another model collected, orphans swept, ...
    index, writer: for the sessions, which keep their records there. costs: what computing and loading take; whoever runs the
    engine tells it (`costs.computed`).
    """

    def __init__(
        self,
        owner: Ownership,
        index: Index,
        files: Files,
        engine: Transfers,
        own: bytes,
        device_bytes: int | None,
        limits: Limits,
    ) -> None:
        """See `open`."""
        self.index, self.engine = index, engine
        self.notes: tuple[str, ...] = ()
        self._owner, self._own, self._device_limit = owner, own, device_bytes
        self._nodes = Nodes()
        self._holds = Rows(self._nodes.hold_rows, self._nodes.holds_done)
        self._counters = Counters()
        self.costs = Costs()
        self._disk = Disk(self._nodes, index, files, engine, own, limits, self.costs)
        self.writer = Writer(self._disk, self._counters)
        loader = Loader(self._disk, engine, self.writer, self._counters, self.relieve)
        self._finder = Finder(self._nodes, loader, self.costs, self._counters, self._keep_budget)
        self._closed = False
        secret = index.read("meta", b"secret")
        if secret is None:
            raise StoreError("the index has lost its secret; remove the store directory")
        self._secret = secret
        self._chains = ids.Chains(own)
        self._trails = Trails()

    @classmethod
    def open(
        cls,
        path: Path,
        engine: Transfers,
        *,
        prompts_digest: str,
        device_bytes: int | None = None,
        disk_bytes: int,
        tenant_bytes: int | None = None,
        session_bytes: int | None = None,
        force: bool = False,
        files: type[Files] = Files,
    ) -> CheckpointStore:
        """Take the directory (made when missing, mode 0700) and start the writer.

        prompts_digest: identity of tokenizer and prompt format. device_bytes: budget of the device tier; None means that
        only `relieve` bounds it. disk_bytes: budget of payload files. tenant_bytes, session_bytes: of what one tenant keeps
        and one session holds there (None: no limit of its own; a tenant over an equal share is evicted first all the same).
        force: use a network file system all the same. files: the file-system calls, for tests. Raises StoreBusy when another
        process owns it, StoreError for an unknown schema version, a network file system or a directory that cannot be
        written. Entries of another model, dtype, layout, numerics or prompt version cannot be reached by identity; they are
        removed, and `notes` says so.
        """
        owner, notes = claim(path, force)
        try:
            calls = files(path / "objects")
            try:
                calls.prepare()
                index, more = open_index(path / "index", calls)
            except OSError as error:
                raise StoreError(f"cannot use the store directory {path}: {error}") from error
            own = ids.identity(engine.info, prompts_digest)
            try:
                store = cls(owner, index, calls, engine, own, device_bytes, Limits(disk_bytes, tenant_bytes, session_bytes))
                store._recover(calls, Identity.of(engine.info, prompts_digest), [*notes, *more])
            except lmdb.Error as error:
                index.close()
                raise StoreError(f"the index in {path} cannot be read ({error}); move the directory away") from error
            except BaseException:
                index.close()
                raise
        except BaseException:
            owner.release()
            raise
        return store

    def _recover(self, files: Files, now: Identity, notes: list[str]) -> None:
        found = recover(self._nodes, self.index, files, self._own, now)
        try:
            self.index.commit(found.rows)
        except (lmdb.Error, OSError) as error:
            notes.append(f"the disk refuses writes ({error}); checkpoints stay on the device")
        self._counters.add("corrupt", found.missing)
        self._counters.add("collected", found.collected)
        self._counters.add("orphans_swept", found.orphans)
        self.notes = (*notes, *found.notes)
        for note in self.notes:
            log.warning("%s", note)
        self.writer.start()
        if found.removal:
            self.writer.submit(found.removal)
        over = self._disk.victims(0)
        if over:
            self.writer.submit(over)

    def share_key(self, tenant: str) -> bytes:
        """The tenant's namespace, 32 bytes: HMAC of the tenant under a secret made with the store. Same after a restart."""
        return ids.tenant_key(self._secret, tenant)

    def key(self, share_key: bytes, tokens: Tokens) -> bytes:
        """The key of the checkpoint at the last grid position of tokens, at least 64 of them, whether there is one or not."""
        return self._keys(share_key, tokens, len(tokens))[-1]

    def _keys(self, share_key: bytes, tokens: Tokens, n: int) -> list[bytes]:
        """Keys of the grid positions of tokens[:n]; the last trunks are remembered, since a step asks several times."""
        return self._chains(share_key, tokens)[: max(0, min(n, len(tokens))) // GRID]

    # --- find ---

    def find(self, share_key: bytes, tokens: Tokens, at_most: int) -> Found | None:
        """The deepest usable checkpoint with m <= at_most (and <= len(tokens)) whose token ids equal tokens[:m], or None.

        tokens: int32 [n], a trunk from position 0. Device and disk are searched together; from disk it is loaded here, in
        the calling thread, and evicts what is worth least when memory is short. One that takes longer to load than to compute
        from what the device has is passed over. The caller releases it.
        """
        return self._finder.find(self._keys(share_key, tokens, at_most), tokens)

    def junction(self, share_key: bytes, tokens: Tokens) -> int:
        """The deepest grid position up to which these tokens agree with a trunk that `trace` was told of; 0 when none does.

        More than `find` gives: there need not be a checkpoint at it.
        """
        return GRID * self._trails.agree(self._keys(share_key, tokens, len(tokens)))

    def trace(self, share_key: bytes, tokens: Tokens) -> None:
        """Remember a trunk that was answered, for `junction`. In memory only, and bounded: older ones are forgotten."""
        self._trails.add(self._keys(share_key, tokens, len(tokens)))

    # --- keep ---

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
        keys = self._keys(share_key, tokens, m)
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

    def resumed(self, share_key: bytes, tokens: Tokens, m: int, session: str) -> bytes:
        """A step of the session went on from the checkpoint at m (`Found.m`) of tokens: the session holds it from now on, and one
        that was only on the device is written. Returns its key."""
        keys = self._keys(share_key, tokens, m)
        with self._nodes.lock:
            node, put = self._nodes.by_key.get(keys[-1]), None
            if node is not None and not self._closed:
                node.kind = max(node.kind, Kind.FORK)
                put = self._wanted(node, keys)
        self._write(put)
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

    def forget(self, share_key: bytes, session: str, timeout: float = 10.0) -> int:
        """Remove a holder, and what nobody else holds from both tiers, index and files. Returns how many checkpoints went.

        Waits for the index commit; raises StoreError when it does not happen within timeout (s).
        """
        holder = ids.holder_key(share_key, session)
        gone = 0

        def collect() -> Removal:
            nonlocal gone
            removal, gone = forget_holder(self._nodes, self.index, holder)
            return removal

        task = Task(collect)
        self.writer.submit(task)
        if not task.done.wait(timeout):
            raise StoreError("the disk refuses to record the deletion; it is done when it takes writes again")
        return gone

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

    # --- tell ---

    def describe(self, key: bytes, m: int) -> CheckpointInfo:
        """How a published checkpoint is kept now."""
        return self._nodes.describe(key, m)

    def stats(self) -> StoreStats:
        """Counters and sizes."""
        with self._nodes.lock:
            sizes = self._nodes.report()
        return StoreStats(
            mode="closed" if self._closed else self.writer.mode,
            device_limit=self._device_limit,
            disk_limit=self._disk.limit,
            queue_depth=self.writer.depth(),
            map_used=0.0 if self._closed else self.index.used(),
            notes=self.notes,
            **sizes,
            **self._counters.report(),
        )

    def flush(self, timeout: float) -> bool:
        """Wait until everything published before this call is written or given up; False after timeout (s)."""
        return self.writer.flush(timeout)

    def close(self) -> None:
        """Write what is queued (at most 30 s), drop the device tier, release the directory. A second call does nothing."""
        with self._nodes.lock:
            if self._closed:
                return
        self.writer.close(CLOSE_WAIT)
        with self._nodes.lock:
            self._closed = self._finder.closed = True
            for node in list(self._nodes.device.values()):
                self._nodes.leave_device(node)
        self.index.close()
        self._owner.release()
