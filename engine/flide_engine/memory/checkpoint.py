"""Checkpoint: an immutable, reference-counted handle on everything needed to go on from position m."""

from __future__ import annotations

import threading

import numpy as np

from flide_engine.memory.pool import Indices, Memory
from flide_engine.segments import GRID


class Checkpoint:
    """State after m trunk tokens: one slot and m / GRID pages. Pages are shared with other checkpoints by index.

    Made by the engine with one reference, which the receiver owns. `retain` and `release` are thread-safe. A handle that is
    dropped without `release` gives its memory back when it is collected.
    """

    __slots__ = ("__weakref__", "_lock", "_memory", "_refs", "m", "pages", "slot")

    def __init__(self, memory: Memory, m: int, pages: Indices, slot: int) -> None:
        """Takes over one reference on each of `pages` and on `slot`."""
        if m % GRID or len(pages) != m // GRID:
            raise ValueError(f"a checkpoint at {m} cannot have {len(pages)} pages")
        self._memory, self._lock, self._refs = memory, threading.Lock(), 1
        self.m, self.pages, self.slot = m, pages, slot

    @property
    def memory(self) -> Memory:
        return self._memory

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent state and conv windows, which no other checkpoint shares."""
        return self._memory.slot_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of all its pages, shared or not."""
        return len(self.pages) * self._memory.page_bytes

    @property
    def alive(self) -> bool:
        return self._refs > 0

    def retain(self) -> Checkpoint:
        """One more owner. Raises RuntimeError on a checkpoint that was already freed."""
        with self._lock:
            if self._refs <= 0:
                raise RuntimeError("this checkpoint was already freed")
            self._refs += 1
        return self

    def release(self) -> None:
        """One owner less; the last one frees the memory."""
        with self._lock:
            if self._refs <= 0:
                raise RuntimeError("this checkpoint was released more often than it was retained")
            self._refs -= 1
            if self._refs:
                return
        self._memory.release(self.pages, np.array([self.slot], np.int32))

    def __del__(self) -> None:
        if getattr(self, "_refs", 0) > 0:
            self._refs = 0
            self._memory.release(self.pages, np.array([self.slot], np.int32))

    def __repr__(self) -> str:
        return f"Checkpoint(m={self.m}, refs={self._refs})"
