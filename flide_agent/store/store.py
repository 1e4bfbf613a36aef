"""CheckpointStore: find the deepest checkpoint of a token sequence, keep what was published, forget the least used."""

from __future__ import annotations

import logging
from pathlib import Path

import lmdb
from flide_engine.segments import GRID, Tokens

from flide_agent.store import identity as ids
from flide_agent.store.costs import Costs
from flide_agent.store.counters import Counters
from flide_agent.store.directory import Ownership, claim
from flide_agent.store.disk import Disk
from flide_agent.store.errors import StoreError
from flide_agent.store.files import Files
from flide_agent.store.finder import Finder
from flide_agent.store.host import Host
from flide_agent.store.index import Index, open_index
from flide_agent.store.keep import Keeping
from flide_agent.store.loader import Loader
from flide_agent.store.nodes import Nodes
from flide_agent.store.reading import Reading
from flide_agent.store.recover import Identity, recover
from flide_agent.store.report import CheckpointInfo, Found, StoreStats, Transfers
from flide_agent.store.room import Limits, Room
from flide_agent.store.trails import Trails
from flide_agent.store.writer import Writer

log = logging.getLogger("flide_agent.store")

CLOSE_WAIT = 30.0
GATHERED = 8
"""A store that goes with its process lets writes come together until one in so many of the engine's slots waits for them."""


class CheckpointStore(Keeping):
    """Checkpoints on the engine's device (handles held here), in host memory, and in a directory (LMDB index, payload files).

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
        host_bytes: int,
        limits: Limits,
    ) -> None:
        """See `open`."""
        nodes, costs, counters = Nodes(), Costs(), Counters()
        self._host = Host(host_bytes, engine.info.device, costs)
        self._room = Room(nodes, limits, costs)
        patience = 0 if files.synced else engine.info.slots // GATHERED
        writer = Writer(Disk(nodes, index, files, self._host, engine, own), self._room, counters, patience)
        super().__init__(nodes, index, writer, own, costs, counters, device_bytes)
        loader = Loader(Reading(nodes, index, files, self._host), engine, writer, costs, counters, self.relieve)
        self._finder = Finder(nodes, self._host, loader, costs, counters, self._keep_budget)
        self.engine, self._owner, self._own, self._files = engine, owner, own, files
        self.notes: tuple[str, ...] = ()
        secret = index.read("meta", b"secret")
        if secret is None:
            raise StoreError("the index has lost its secret; remove the store directory")
        self._secret = secret
        self._trails = Trails()

    @classmethod
    def open(
        cls,
        path: Path,
        engine: Transfers,
        *,
        prompts_digest: str,
        device_bytes: int | None = None,
        host_bytes: int = 0,
        disk_bytes: int,
        tenant_bytes: int | None = None,
        session_bytes: int | None = None,
        force: bool = False,
        files: type[Files] = Files,
    ) -> CheckpointStore:
        """Take the directory (made when missing, mode 0700) and start the writer.

        prompts_digest: identity of tokenizer and prompt format. device_bytes: budget of the device tier; None means that
        only `relieve` bounds it. host_bytes: budget of the host tier, 0 for none. disk_bytes: budget of payload files.
        tenant_bytes, session_bytes: of what one tenant keeps and one session holds there (None: no limit of its own; a tenant
        over an equal share is evicted first all the same).
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
                limits = Limits(disk_bytes, tenant_bytes, session_bytes)
                store = cls(owner, index, calls, engine, own, device_bytes, host_bytes, limits)
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
        over = self._room.victims(0)
        if over:
            self.writer.submit(over)

    def share_key(self, tenant: str) -> bytes:
        """The tenant's namespace, 32 bytes: HMAC of the tenant under a secret made with the store. Same after a restart."""
        return ids.tenant_key(self._secret, tenant)

    def key(self, share_key: bytes, tokens: Tokens) -> bytes:
        """The key of the checkpoint at the last grid position of tokens, at least 64 of them, whether there is one or not."""
        return self._chains.upto(share_key, tokens, len(tokens))[-1]

    # --- find ---

    def find(self, share_key: bytes, tokens: Tokens, at_most: int, *, wait: bool = True) -> Found | None:
        """The deepest usable checkpoint with m <= at_most (and <= len(tokens)) whose token ids equal tokens[:m], or None.

        tokens: int32 [n], a trunk from position 0. Device and disk are searched together; from disk it is loaded here, in
        the calling thread, and evicts what is worth least when memory is short. One that takes longer to load than to compute
        from what the device has is passed over. The caller releases it. wait: False raises MustLoad instead of loading.
        """
        return self._finder.find(self._chains.upto(share_key, tokens, at_most), tokens, wait)

    def junction(self, share_key: bytes, tokens: Tokens) -> int:
        """The deepest grid position up to which these tokens agree with a trunk that `trace` was told of; 0 when none does.

        More than `find` gives: there need not be a checkpoint at it.
        """
        return GRID * self._trails.agree(self._chains.upto(share_key, tokens, len(tokens)))

    def trace(self, share_key: bytes, tokens: Tokens) -> None:
        """Remember a trunk that was answered, for `junction`. In memory only, and bounded: older ones are forgotten."""
        self._trails.add(self._chains.upto(share_key, tokens, len(tokens)))

    # --- tell ---

    def describe(self, key: bytes, m: int) -> CheckpointInfo:
        """How a published checkpoint is kept now."""
        return self._nodes.describe(key, m, self._host)

    def stats(self) -> StoreStats:
        """Counters and sizes."""
        with self._nodes.lock:
            sizes = self._nodes.report()
        return StoreStats(
            mode="closed" if self._closed else self.writer.mode,
            device_limit=self._device_limit,
            disk_limit=self._room.limits.disk,
            host_pinned=self._host.pinned,
            queue_depth=self.writer.queue.depth(),
            map_used=0.0 if self._closed else self.index.used(),
            notes=self.notes,
            **sizes,
            **self._host.report(),
            **self._counters.report(),
        )

    def flush(self, timeout: float) -> bool:
        """Wait until everything published before this call is written or given up; False after timeout (s)."""
        return self.writer.queue.flush(timeout)

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
        self._files.close()
        self.index.close()
        self._owner.release()
