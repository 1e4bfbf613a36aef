"""A plan's metadata as one int32 block: filled in pinned memory, fetched by the pass's first kernel, read by every other one.

The block of a shape always has the same layout, and all counts that kernels need are in it, so that a captured graph reads the next
plan of its shape where it read the last.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from flide_engine.cuda.aside import Aside
from flide_engine.cuda.shape import PassShape, by_level
from flide_engine.kernels.attention import Segments
from flide_engine.kernels.fetch import RING, advance, fetch
from flide_engine.plan import CONV_TAPS, Int32, RoundPlan
from flide_engine.segments import Kind

Tensor = torch.Tensor
ALIGNMENT = 32
"""Entries: every array starts on a 128-byte line, so pointer alignment never changes between rounds; a block ends on one."""
FIRST_BLOCK = 1 << 20
"""Entries of the first block."""
PADDING = {
    "row_segment": -1, "kv_dst": -1, "seg_kind": int(Kind.LOCAL), "seg_state_in": -1, "seg_state_out": -1,
    "conv_prev": -1, "save_slot": -1, "trunks": -1, "locals": -1,
}  # fmt: skip
"""What stands behind the entries in use, where it is not 0: no segment, no page, no slot."""
NO_SEGMENTS: Int32 = np.zeros(0, np.int32)


@dataclass(frozen=True)
class DeviceRound:
    """A plan on the device, every array at the capacity of its shape. All int32, as in RoundPlan.

    counts: [2], readouts in use and where the pass' logits go. trunks, locals: segments of each level that has any, -1 behind the
    last. Label ids and page tables share the block's tail, whose length no launch depends on: segments.page_table is [tail, 1], and
    segments.table counts its entries.
    """

    shape: PassShape
    counts: Tensor
    token_ids: Tensor
    positions: Tensor
    row_segment: Tensor
    kv_dst: Tensor
    readout_row: Tensor
    label_ptr: Tensor
    label_ids: Tensor
    conv_prev: Tensor
    seg_state_in: Tensor
    seg_state_out: Tensor
    save_ptr: Tensor
    save_pos: Tensor
    save_slot: Tensor
    segments: Segments
    trunks: tuple[Tensor, ...]
    locals: tuple[Tensor, ...]


class Place(NamedTuple):
    """Where an array lies: its first entry, its entries, its shape, and what stands behind the entries in use (None: the last one)."""

    at: int
    size: int
    dims: tuple[int, ...]
    padding: int | None


@dataclass(frozen=True)
class Layout:
    """Arrays by name, and where the block's tail begins."""

    places: dict[str, Place]
    tail: int


@functools.lru_cache(maxsize=1024)
def layout_of(shape: PassShape) -> Layout:
    """Where each array of a shape lies."""
    s = shape.segments
    arrays: dict[str, tuple[int, ...]] = {
        "counts": (2,),
        **dict.fromkeys(("token_ids", "positions", "row_segment", "kv_dst"), (shape.rows,)),
        **dict.fromkeys(
            ("seg_first_row", "seg_len", "seg_start", "seg_kind", "seg_state_in", "seg_state_out", "seg_hist", "seg_table"),
            (s,),
        ),
        "seg_locals": (s, shape.depth, 2),
        "conv_prev": (s, CONV_TAPS),
        "save_ptr": (s + 1,),
        "save_pos": (shape.saves,),
        "save_slot": (shape.saves,),
        "readout_row": (shape.readouts,),
        "label_ptr": (shape.readouts + 1,),
        **{f"trunks {i}": (shape.trunks,) for i in range(shape.trunk_levels)},
        **{f"locals {i}": (shape.locals,) for i in range(shape.local_levels)},
    }
    places, at = {}, 0
    for name, dims in arrays.items():
        size = math.prod(dims)
        places[name] = Place(at, size, dims, None if name.endswith("_ptr") else PADDING.get(name.split()[0], 0))
        at += _aligned(size)
    return Layout(places, at)


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def block_size(plan: RoundPlan, layout: Layout) -> int:
    """Entries of a plan's block."""
    return layout.tail + _aligned(len(plan.label_ids)) + plan.page_table.size


def fill(host: Int32, plan: RoundPlan, layout: Layout) -> None:
    """Write a plan to a host block of at least block_size entries, padding included. The layout's shape covers the plan's."""
    labels = _aligned(len(plan.label_ids))
    arrays: dict[str, Int32] = {
        "counts": np.array([len(plan.readout_row), 0], np.int32),
        "seg_table": plan.seg_table * np.int32(plan.page_table.shape[1]) + np.int32(labels),
    }
    for kind, name in ((Kind.TRUNK, "trunks"), (Kind.LOCAL, "locals")):
        arrays |= {f"{name} {i}": s for i, s in enumerate(by_level(plan, kind))}
    for name, (at, size, dims, padding) in layout.places.items():
        a = arrays.get(name)
        if a is None:
            a = NO_SEGMENTS if " " in name else getattr(plan, name)  # a level of the shape that this plan does not have
        if len(dims) == 1 or a.shape[1:] == dims[1:]:
            used = at + a.size
            host[at:used] = a if a.ndim == 1 else a.ravel()
            if used < at + size:
                host[used : at + size] = a[-1] if padding is None else padding
        else:
            view = host[at : at + size].reshape(dims)
            view[...] = padding or 0
            view[tuple(slice(n) for n in a.shape)] = a
    tail = host[layout.tail : block_size(plan, layout)]
    tail[: len(plan.label_ids)] = plan.label_ids
    tail[labels:] = plan.page_table.ravel()


def device_round(shape: PassShape, layout: Layout, block: Tensor) -> DeviceRound:
    """Views of a filled block."""
    on = {name: block[p.at : p.at + p.size].view(p.dims) for name, p in layout.places.items()}
    tail = block[layout.tail :]
    segments = Segments(
        first_row=on["seg_first_row"],
        length=on["seg_len"],
        start=on["seg_start"],
        kind=on["seg_kind"],
        hist=on["seg_hist"],
        table=on["seg_table"],
        locals=on["seg_locals"],
        page_table=tail.view(-1, 1),
    )
    plain = ("counts", "token_ids", "positions", "row_segment", "kv_dst", "readout_row", "label_ptr", "conv_prev", "seg_state_in",
             "seg_state_out", "save_ptr", "save_pos", "save_slot")  # fmt: skip
    return DeviceRound(
        shape=shape,
        segments=segments,
        trunks=tuple(on[f"trunks {i}"] for i in range(shape.trunk_levels)),
        locals=tuple(on[f"locals {i}"] for i in range(shape.local_levels)),
        label_ids=tail,
        **{name: on[name] for name in plain},
    )


@dataclass(eq=False)
class Staged:
    """A plan in a pinned block, ready to be fetched. shape: that it is laid out for, which covers the plan's own, `wanted`. size: entries
    in use, aligned. numbers, address: of the block, found out here since the GPU may stand idle when it is posted."""

    plan: RoundPlan
    shape: PassShape
    wanted: PassShape
    pinned: Tensor
    size: int
    numbers: Int32
    address: int


class MetadataBlock:
    """Pinned blocks to stage plans in, a mailbox that says which of them the next pass reads, and one block on the device, grown to the
    largest round seen. Used by one thread; fewer than RING passes may be posted and not yet done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self._block = torch.empty(0, dtype=torch.int32, device=device)
        self._pin = device.type == "cuda"
        self._mailbox = torch.zeros((RING, 2), dtype=torch.int64, pin_memory=self._pin)
        self._letters = self._mailbox.numpy()
        self._turn = torch.zeros(1, dtype=torch.int32, device=device)
        self._posted = 0

    def stage(self, plan: RoundPlan, shape: PassShape, wanted: PassShape | None = None) -> Staged:
        """Write a plan where it can be fetched from, laid out for a shape that covers its own. wanted: its own where that is another.
        Give it to post or to drop."""
        layout = layout_of(shape)
        pinned = self._pinned(size := _aligned(block_size(plan, layout)))
        fill(numbers := pinned.numpy(), plan, layout)
        return Staged(plan, shape, wanted or shape, pinned, size, numbers, pinned.data_ptr())

    def drop(self, staged: Staged) -> None:
        """It will not be posted."""
        self._free.appendleft((staged.pinned, None))

    def holds(self, shape: PassShape) -> bool:
        """Whether the arrays of a shape, and a plan of no rows, lie within the block as it is."""
        return layout_of(shape).tail + ALIGNMENT <= self._block.numel()

    def reserve(self, staged: Staged) -> bool:
        """Make room. True when the block moved: views and graphs of the old one are void."""
        if self._block.numel() >= staged.size:
            return False
        self._block = torch.empty(max(2 * staged.size, FIRST_BLOCK), dtype=torch.int32, device=self._device)
        return True

    def post(self, staged: Staged, logits_at: int) -> None:
        """The pass enqueued next reads this plan. logits_at: where its logits go."""
        staged.numbers[1] = logits_at
        turn = self._posted % RING
        self._letters[turn, 0], self._letters[turn, 1] = staged.address, staged.size
        self._posted += 1

    def fetch(self, shape: PassShape, aside: Aside) -> None:
        """Enqueue the fetch of the plan posted next, behind the kernels of the pass before it; part of the pass's graph."""
        fetch(self._mailbox, self._turn, self._block, layout_of(shape).tail)
        with aside:
            advance(self._turn)

    def sent(self, staged: Staged, done: torch.cuda.Event | None) -> None:
        """The pass of a posted plan is enqueued, with this event behind it."""
        self._free.append((staged.pinned, done))

    def failed(self) -> None:
        """A pass was posted and perhaps not enqueued: wait for the device, and go on from the turn that it is at."""
        if self._pin:
            torch.cuda.synchronize(self._device)
        self._posted = int(self._turn)

    def views(self, shape: PassShape) -> DeviceRound:
        """What was fetched last, which had this shape; a later fetch of the shape shows in the same views."""
        return device_round(shape, layout_of(shape), self._block)

    def _pinned(self, size: int) -> Tensor:
        """A pinned block that no pass reads any more."""
        if self._free and ((event := self._free[0][1]) is None or event.query()):
            pinned, _ = self._free.popleft()
            if pinned.numel() >= size:
                return pinned
        return torch.empty(max(2 * size, FIRST_BLOCK), dtype=torch.int32, pin_memory=self._pin)
