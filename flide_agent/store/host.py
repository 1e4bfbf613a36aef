"""The host tier: files of the disk tier in memory, pinned where there is a CUDA device, since copies to it are faster then.

It has only what the disk tier has, byte for byte and under the same names, so it decides nothing: a name that is not here is read
from disk. Memory comes from few large allocations within the budget (`Arena`).
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from flide_agent.store.costs import Costs
from flide_agent.store.nodes import Node

log = logging.getLogger("flide_agent.store")

SEGMENT = 256 << 20
"""Bytes of one allocation. A power of two, as torch rounds pinned ones up to one; a larger file gets one of its own."""
ALIGN = 4096
PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every context."""


@dataclass(frozen=True, slots=True)
class Block:
    """A byte range of a segment."""

    segment: int
    offset: int
    size: int


def wants_pinned(device: str) -> bool:
    """Whether memory for copies to this engine's device should be pinned."""
    return device.startswith("cuda")


class Arena:
    """First fit in segments that are allocated when they are needed. limit: bytes of all of them. device: the engine's; pinned:
    page-locked memory for it, as long as the system gives any. Not thread-safe."""

    def __init__(self, limit: int, device: str) -> None:
        self.limit, self.device, self.pinned = limit, device, wants_pinned(device)
        self.segments: list[torch.Tensor] = []
        self.used = 0
        self._free: list[list[tuple[int, int]]] = []

    @property
    def allocated(self) -> int:
        return sum(len(s) for s in self.segments)

    def take(self, size: int) -> Block | None:
        """A free range of at least `size` bytes; None when there is none within the limit."""
        size = -(-size // ALIGN) * ALIGN
        for n, free in enumerate(self._free):
            for at, (offset, room) in enumerate(free):
                if room >= size:
                    free[at : at + 1] = [(offset + size, room - size)] if room > size else []
                    self.used += size
                    return Block(n, offset, size)
        left = self.limit - self.allocated
        new = _power_of_two(min(left, max(SEGMENT, 2 * size - 1)))
        if new < size:
            return None
        self.segments.append(self._allocate(new))
        self._free.append([(0, new)])
        return self.take(size)

    def give(self, block: Block) -> None:
        """Make a range free again."""
        free = self._free[block.segment]
        insort(free, (block.offset, block.size))
        self.used -= block.size
        merged = [free[0]]
        for offset, size in free[1:]:
            start, length = merged[-1]
            if start + length == offset:
                merged[-1] = (start, length + size)
            else:
                merged.append((offset, size))
        self._free[block.segment] = merged

    def view(self, block: Block, size: int) -> torch.Tensor:
        """uint8 [size]."""
        return self.segments[block.segment][block.offset : block.offset + size]

    def _allocate(self, size: int) -> torch.Tensor:
        own = np.empty(size, np.uint8)
        data = torch.from_numpy(own)
        if self.pinned:
            own.fill(0)
            try:
                pin(data, self.device)
                weakref.finalize(own, unpin, data.data_ptr(), self.device).atexit = False
            except (RuntimeError, MemoryError) as error:
                self.pinned = False
                log.warning("host memory cannot be pinned (%s): resuming from it is slower", str(error).splitlines()[0])
        return data


def pin(data: torch.Tensor, device: str) -> None:
    """Page-lock memory that was written already. Raises RuntimeError.

    `pin_memory=True` makes the pages as well, and keeps the GIL and the driver's lock meanwhile: 0.12 s for 256 MiB on an H200's host,
    for which steps waited. To write them first takes as long but neither lock; what is left took 0.014 s.
    """
    with torch.cuda.device(device):  # otherwise a thread's first such call opens the first GPU, whichever is in use
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(data.data_ptr(), len(data), PORTABLE))
    if not data.is_pinned():
        raise RuntimeError("the driver does not know it afterwards")


def unpin(address: int, device: str) -> None:
    """Before the memory goes."""
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)


def _power_of_two(n: int) -> int:
    """The largest one not above n; 0 for none."""
    return 1 << (n.bit_length() - 1) if n > 0 else 0


@dataclass(slots=True, eq=False)
class Entry:
    """A file. data: its bytes, uint8. node: the checkpoint that it belongs to. readers: how many use it now. gone: it is no more, and
    its block is free once nobody reads it. seen: monotonic time of last use."""

    node: Node
    block: Block
    data: torch.Tensor
    readers: int = 0
    gone: bool = False
    seen: float = field(default_factory=time.monotonic)


class Host:
    """limit: bytes; 0: there is no such tier. Thread-safe."""

    def __init__(self, limit: int, device: str, costs: Costs) -> None:
        self.limit = limit
        self.evicted = 0
        self._arena, self._costs = Arena(limit, device), costs
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()

    @property
    def pinned(self) -> bool:
        return self._arena.pinned and bool(self.limit)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def report(self) -> dict[str, int]:
        """count: states; bytes: of all files; limit; evicted: files."""
        with self._lock:
            states = sum(name.endswith(".state") for name in self._entries)
            return {
                "host_count": states,
                "host_bytes": self._arena.used,
                "host_limit": self.limit,
                "evicted_host": self.evicted,
            }

    def room(self, size: int) -> tuple[Block, torch.Tensor] | None:
        """Memory for a file of `size` bytes, making room; None when it does not fit beside what is in use. `enter` or `give_back` it."""
        with self._lock:
            if size > self.limit:
                return None
            block = self._arena.take(size)
            if block is None:
                now = time.monotonic()
                for name, entry in sorted(self._entries.items(), key=lambda item: self._value(item[1], now)):
                    if not entry.readers:
                        self._drop(name)
                        self.evicted += 1
                        block = self._arena.take(size)
                        if block is not None:
                            break
            return None if block is None else (block, self._arena.view(block, size))

    def _value(self, entry: Entry, now: float) -> float:
        size = len(entry.data)
        return self._costs.value(entry.node.kind, now - entry.seen, entry.node.m, size, size)

    def give_back(self, block: Block) -> None:
        """It was not filled after all."""
        with self._lock:
            self._arena.give(block)

    def enter(self, name: str, node: Node, block: Block, data: torch.Tensor) -> Entry:
        """`data`, in `block`, is the file from now on; with one reader, who releases it."""
        with self._lock:
            self._drop(name)
            entry = self._entries[name] = Entry(node, block, data, readers=1)
            return entry

    def keep(self, name: str, node: Node, chunks: Iterable[bytes | memoryview], size: int) -> None:
        """Copy a file of `size` bytes that was just written, if there is room."""
        got = self.room(size) if self.limit else None
        if got is None:
            return
        block, data = got
        into, at = data.numpy(), 0
        for chunk in chunks:  # arrays are copied without the GIL, which tens of megabytes would keep from everybody
            into[at : at + len(chunk)] = np.frombuffer(chunk, np.uint8)
            at += len(chunk)
        self.release(self.enter(name, node, block, data))

    def borrow(self, name: str) -> Entry | None:
        """A file whose bytes stay as they are until `release`; None when it is not here."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                entry.readers += 1
                entry.seen = time.monotonic()
            return entry

    def release(self, entry: Entry) -> None:
        """Done with what `borrow` or `enter` gave."""
        with self._lock:
            entry.readers -= 1
            if entry.gone and not entry.readers:
                self._arena.give(entry.block)

    def drop(self, names: Iterable[str]) -> None:
        """These files are no more."""
        with self._lock:
            for name in names:
                self._drop(name)

    def _drop(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry.gone = True
            if not entry.readers:
                self._arena.give(entry.block)
