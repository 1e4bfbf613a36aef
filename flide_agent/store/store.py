"""CheckpointStore: find the deepest checkpoint of a token sequence, keep what was published, forget the least used."""

from __future__ import annotations

from pathlib import Path

from flide_engine.memory import Checkpoint
from flide_engine.segments import Tokens

from flide_agent.store.report import CheckpointInfo, Found, PoolFull, StoreStats, Transfers


class CheckpointStore:
    """Checkpoints on two tiers: the engine's device (handles held here) and a directory (LMDB index, payload files).

    All methods are thread-safe. `find`, `publish` and `relieve` never raise for a full or broken disk: a checkpoint that
    cannot be had is a miss. Disk writes happen in one writer thread behind the answers.
    """

    notes: tuple[str, ...]
    """What `open` found and did, as sentences for the log: entries of another model collected, orphans swept, ..."""

    @classmethod
    def open(
        cls,
        path: Path,
        engine: Transfers,
        *,
        prompts_digest: str,
        device_bytes: int | None = None,
        disk_bytes: int,
        force: bool = False,
    ) -> CheckpointStore:
        """Take the directory (made when missing, mode 0700) and start the writer.

        prompts_digest: identity of tokenizer and prompt format. device_bytes: budget of the device tier; None means that
        only `relieve` bounds it. disk_bytes: budget of payload files. force: use a network file system all the same.
        Raises StoreBusy when another process owns it, StoreError for an unknown schema version, a network file system or
        a directory that cannot be written. Entries of another model, dtype, layout, numerics or prompt version cannot be
        reached by identity; they are removed, and `notes` says so.
        """
        raise NotImplementedError

    def share_key(self, tenant: str) -> bytes:
        """The tenant's namespace, 32 bytes: HMAC of the tenant under a secret made with the store. Same after a restart."""
        raise NotImplementedError

    def find(self, share_key: bytes, tokens: Tokens, at_most: int) -> Found | None:
        """The deepest usable checkpoint with m <= at_most (and <= len(tokens)) whose token ids equal tokens[:m], or None.

        tokens: int32 [n], a trunk from position 0. Device and disk are searched together; from disk it is loaded here, in
        the calling thread, and evicts the least used device checkpoints when memory is short. The caller releases it.
        """
        raise NotImplementedError

    def publish(self, share_key: bytes, tokens: Tokens, checkpoint: Checkpoint, session: str | None) -> bytes:
        """Keep a checkpoint; takes over the caller's reference. tokens: its trunk, at least tokens[:checkpoint.m].

        Visible to `find` when this returns, durable when the writer has committed it (`describe`). Publish shallow
        checkpoints of a trunk first: a deeper one then only writes the pages that it adds. session: who holds it, for
        `forget`; None: nobody, it lives until it is evicted. Publishing what is known adds the holder. Returns its key.
        """
        raise NotImplementedError

    def hold(self, share_key: bytes, keys: list[bytes], session: str) -> None:
        """Add a holder to checkpoints by key (`Found.key`), as publishing them again would. Unknown keys are passed over."""
        raise NotImplementedError

    def forget(self, share_key: bytes, session: str, timeout: float = 10.0) -> int:
        """Remove a holder, and what nobody else holds from both tiers, index and files. Returns how many checkpoints went.

        Waits for the index commit; raises StoreError when it does not happen within timeout (s).
        """
        raise NotImplementedError

    def describe(self, key: bytes, m: int) -> CheckpointInfo:
        """How a published checkpoint is kept now."""
        raise NotImplementedError

    def relieve(self, full: PoolFull) -> bool:
        """Free device memory: evict least recently used, unpinned checkpoints until about what `full` asks for is free.

        Checkpoints waiting to be written go last and lose their write. True when something was freed, so that trying again
        makes sense; False when all that is held is in use.
        """
        raise NotImplementedError

    def stats(self) -> StoreStats:
        """Counters and sizes."""
        raise NotImplementedError

    def flush(self, timeout: float) -> bool:
        """Wait until everything published before this call is written or given up; False after timeout (s)."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is queued (at most 30 s), drop the device tier, release the directory. A second call does nothing."""
        raise NotImplementedError
