"""What the store hands out: found checkpoints, how they are kept, and its counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from types import TracebackType
from typing import Any, Literal, Protocol

from flide_engine.memory import Checkpoint, Exported, PoolFull

Tier = Literal["device", "host", "disk"]
Mode = Literal["rw", "ro", "closed"]

__all__ = ["CheckpointInfo", "Found", "Kind", "Mode", "PoolFull", "StoreStats", "Tier", "Transfers"]


class Kind(IntEnum):
    """What a checkpoint is good for; the higher, the likelier it is that a later history goes on from it.

    INNER: a message boundary before a step's end, or a state outside sessions that was seen once; device only, until something goes
    on from it. OLD: the end of an earlier step.
    RUNG: of the ladder of doubling distances behind the end. FORK: where histories parted or are expected to. STEP: the end of
    one of the last two steps. PREFIX: the end of tools and system messages, which other sessions share.
    """

    INNER = 0
    OLD = 1
    RUNG = 2
    FORK = 3
    STEP = 4
    PREFIX = 5


class Transfers(Protocol):
    """What the store needs of an engine: `info` for the identity, export and import, both thread-safe."""

    @property
    def info(self) -> Any: ...

    def export(self, checkpoint: Checkpoint, since: int = 0) -> Exported: ...

    def import_(self, exported: Exported, parent: Checkpoint | None) -> Checkpoint: ...


class Found:
    """A checkpoint to go on from. The finder owns one reference of `checkpoint`, and it cannot be evicted before `release`.

    m: tokens it stands for, a multiple of 64. tier: the lowest one that a part of it came from for this find.
    key: its 32-byte identity. loaded_bytes: brought to the device for it, 0 for a device hit.
    Use it as a context manager, or call `release` once when the request that starts from it is done; a second call does
    nothing. Whoever hands the checkpoint to something that releases it too (the dispatcher) retains it first.
    """

    __slots__ = ("_unpin", "checkpoint", "key", "loaded_bytes", "m", "tier")

    def __init__(self, checkpoint: Checkpoint, key: bytes, tier: Tier, loaded_bytes: int, unpin: Callable[[], None]) -> None:
        self.checkpoint, self.key, self.tier, self.loaded_bytes = checkpoint, key, tier, loaded_bytes
        self.m: int = checkpoint.m
        self._unpin: Callable[[], None] | None = unpin

    def release(self) -> None:
        """Give the reference back and allow eviction again."""
        unpin, self._unpin = self._unpin, None
        if unpin is not None:
            self.checkpoint.release()
            unpin()

    def __enter__(self) -> Found:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint as a session lists it.

    tiers: where it is now; empty when it was evicted (the next step computes it again).
    bytes: on disk when durable, else on the device: its state and the K/V pages that only it added.
    durable: payloads and index entry are on stable storage. Once listed so, it survives kill -9 (eviction under the byte
        budget, which `tiers` shows, can still remove it).
    """

    m: int
    tiers: tuple[Tier, ...]
    bytes: int
    durable: bool


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters since the start, and sizes now. Bytes are bytes, ratios 0..1.

    mode: "ro" while the disk refuses writes; requests go on, new checkpoints stay on the device only.
    writes_dropped: checkpoints that were not written because the queue was full, the disk read-only, or memory was needed;
        or later steps had made them superfluous (in a store that goes with its process). writes_failed: a write was tried and
        failed. corrupt: payloads that failed a check and were dropped, never served.
    loads_passed_over: deeper checkpoints on disk that would have taken longer to load than to compute.
    host_*: copies in host memory of what is on disk; evicted_host counts files.
    tokens_found: sum of m over all finds. map_used: fraction of the index map in use.
    """

    mode: Mode
    device_count: int
    device_bytes: int
    device_limit: int | None
    host_count: int
    host_bytes: int
    host_limit: int
    host_pinned: bool
    disk_count: int
    disk_bytes: int
    disk_limit: int
    queue_depth: int
    map_used: float
    hits_device: int = 0
    hits_host: int = 0
    hits_disk: int = 0
    misses: int = 0
    tokens_found: int = 0
    published: int = 0
    writes: int = 0
    writes_dropped: int = 0
    writes_failed: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    bytes_from_host: int = 0
    corrupt: int = 0
    load_failed: int = 0
    loads_passed_over: int = 0
    evicted_device: int = 0
    evicted_host: int = 0
    evicted_disk: int = 0
    orphans_swept: int = 0
    collected: int = 0
    commit_failures: int = 0
    notes: tuple[str, ...] = field(default=())
