"""The two pools, pages and slots, in place: a step copies nothing, it only takes and gives back indices."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from flide_engine.segments import GRID

Indices = npt.NDArray[np.int32]

_ALIGNMENT = 64


class PoolFull(RuntimeError):
    """Not enough free pages or slots. Nothing was taken; give back at least `pages` and `slots` and ask again."""

    def __init__(self, pages: int, slots: int) -> None:
        super().__init__(f"the engine's memory is full: {pages} more pages and {slots} more state slots are needed")
        self.pages = pages
        self.slots = slots


@dataclass(frozen=True, slots=True)
class MemoryShape:
    """What one page and one slot hold for a model. Bytes follow from the element sizes of the dtypes in use."""

    full_layers: int
    kv_heads: int
    head_dim: int
    linear_layers: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_channels: int
    conv_taps: int

    def page_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of K and V of one page over all full-attention layers."""
        return 2 * self.full_layers * self.kv_heads * GRID * self.head_dim * dtype.itemsize

    def slot_bytes(self, dtype: torch.dtype, state_dtype: torch.dtype) -> int:
        """Bytes of one slot: recurrent states and conv windows of all linear layers."""
        state = self.value_heads * self.key_dim * self.value_dim * state_dtype.itemsize
        return self.linear_layers * (state + self.conv_taps * self.conv_channels * dtype.itemsize)

    def split(self, budget: int, dtype: torch.dtype, state_dtype: torch.dtype) -> tuple[int, int]:
        """(pages, slots) that fit into `budget` bytes when a checkpoint comes every 512 tokens or so."""
        page, slot = self.page_bytes(dtype), self.slot_bytes(dtype, state_dtype)
        if not self.linear_layers:
            return budget // page, 1
        if not self.full_layers:
            return 1, budget // slot
        share = min(0.75, max(0.3, slot / (slot + 8 * page)))
        return int(budget * (1 - share)) // page, int(budget * share) // slot


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU without touching them, so that the operating system gives a page only when it is first written.

    torch.zeros writes every byte: 2 s and the whole budget resident for a pool of 2 GiB.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.zeros(nbytes + _ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    return torch.from_numpy(raw[offset : offset + nbytes]).view(dtype).view(shape)


def _pop(free: list[int], count: int) -> Indices:
    """The last ones, the very last first."""
    if not count:
        return np.zeros(0, np.int32)
    taken = np.array(free[: -count - 1 : -1], np.int32)
    del free[-count:]
    return taken


class Memory:
    """Pools on one device, with reference counts per index. Taking, retaining and releasing are thread-safe.

    k, v: [full_layers, pages, kv_heads, GRID, head_dim] of dtype.
    states: [linear_layers, slots, value_heads, key_dim, value_dim] of state_dtype.
    conv: [linear_layers, slots, conv_taps, conv_channels] of dtype, raw rows before the convolution, oldest first.
    All start as zeros, so that a row nobody has written is finite.
    """

    def __init__(
        self, shape: MemoryShape, pages: int, slots: int, *, device: torch.device, dtype: torch.dtype, state_dtype: torch.dtype
    ) -> None:
        if pages < 1 or slots < 1:
            raise ValueError(f"the memory budget holds {pages} pages and {slots} slots; give the engine more memory")
        self.shape, self.pages, self.slots = shape, pages, slots
        self.device, self.dtype, self.state_dtype = device, dtype, state_dtype
        kv = (shape.full_layers, pages, shape.kv_heads, GRID, shape.head_dim)
        self.k = _zeros(kv, dtype, device)
        self.v = _zeros(kv, dtype, device)
        state = (shape.linear_layers, slots, shape.value_heads, shape.key_dim, shape.value_dim)
        self.states = _zeros(state, state_dtype, device)
        self.conv = _zeros((shape.linear_layers, slots, shape.conv_taps, shape.conv_channels), dtype, device)
        self._lock = threading.Lock()
        self._page_refs = np.zeros(pages, np.int32)
        self._slot_refs = np.zeros(slots, np.int32)
        self._free_pages = list(range(pages - 1, -1, -1))
        self._free_slots = list(range(slots - 1, -1, -1))

    def take(self, pages: int, slots: int) -> tuple[Indices, Indices]:
        """Take free pages and slots, one reference each. Raises PoolFull with what is missing, and takes nothing then."""
        with self._lock:
            missing = (max(0, pages - len(self._free_pages)), max(0, slots - len(self._free_slots)))
            if any(missing):
                raise PoolFull(*missing)
            p, s = _pop(self._free_pages, pages), _pop(self._free_slots, slots)
            self._page_refs[p] = 1
            self._slot_refs[s] = 1
            return p, s

    def retain(self, pages: Indices, slots: Indices) -> None:
        """One more reference to each of these indices, for each time that it is named."""
        with self._lock:
            np.add.at(self._page_refs, pages, 1)
            np.add.at(self._slot_refs, slots, 1)

    def release(self, pages: Indices, slots: Indices) -> None:
        """One reference less to each of these (distinct) indices; what nobody holds any more is free."""
        with self._lock:
            for refs, free, indices in (
                (self._page_refs, self._free_pages, pages),
                (self._slot_refs, self._free_slots, slots),
            ):
                if not len(indices):
                    continue
                refs[indices] = left = refs[indices] - 1
                if left.min() < 0:
                    raise RuntimeError("a page or slot was released more often than it was retained")
                free.extend(indices[left == 0].tolist())

    def free(self) -> tuple[int, int]:
        """(free pages, free slots)."""
        with self._lock:
            return len(self._free_pages), len(self._free_slots)

    @property
    def page_bytes(self) -> int:
        return self.shape.page_bytes(self.dtype)

    @property
    def slot_bytes(self) -> int:
        return self.shape.slot_bytes(self.dtype, self.state_dtype)
