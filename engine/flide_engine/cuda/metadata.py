"""A plan's metadata as one int32 block: filled in pinned memory, copied once a round, read by every kernel.

The block of a shape always has the same layout, and all counts that kernels need are in it, so that a captured graph reads the next
plan of its shape where it read the last.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch

from flide_engine.cuda.shape import PassShape, by_level
from flide_engine.kernels.attention import Segments
from flide_engine.plan import CONV_TAPS, Int32, RoundPlan
from flide_engine.segments import Kind

Tensor = torch.Tensor
ALIGNMENT = 32
"""Entries: every array starts on a 128-byte line, so pointer alignment never changes between rounds."""
STAGES = 4
"""Pinned blocks in turn, so that filling one does not wait for the copy of the one before."""
FIRST_BLOCK = 1 << 20
"""Entries of the first block."""
PADDING = {
    "row_segment": -1, "kv_dst": -1, "seg_kind": int(Kind.LOCAL), "seg_state_in": -1, "seg_state_out": -1,
    "conv_prev": -1, "save_slot": -1, "trunks": -1, "locals": -1,
}  # fmt: skip
"""What stands behind the entries in use, where it is not 0: no segment, no page, no slot."""


@dataclass(frozen=True)
class DeviceRound:
    """A plan on the device, every array at the capacity of its shape. All int32, as in RoundPlan.

    counts: [1] readouts in use. trunks, locals: segments of each level that has any, -1 behind the last.
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


@dataclass(frozen=True)
class Layout:
    """name -> (first entry, array shape) in the block, and the block's entries."""

    places: dict[str, tuple[int, tuple[int, ...]]]
    size: int


@functools.lru_cache(maxsize=1024)
def layout_of(shape: PassShape) -> Layout:
    """Where each array of a shape lies."""
    s = shape.segments
    arrays: dict[str, tuple[int, ...]] = {
        "counts": (1,),
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
        "page_table": (shape.tables, shape.pages),
        "readout_row": (shape.readouts,),
        "label_ptr": (shape.readouts + 1,),
        "label_ids": (shape.labels,),
        **{f"trunks {i}": (n,) for i, n in enumerate(shape.trunks)},
        **{f"locals {i}": (n,) for i, n in enumerate(shape.locals)},
    }
    places, size = {}, 0
    for name, dims in arrays.items():
        places[name] = (size, dims)
        size += -(-int(np.prod(dims)) // ALIGNMENT) * ALIGNMENT
    return Layout(places, size)


def fill(host: Int32, plan: RoundPlan, layout: Layout) -> None:
    """Write a plan to a host block of its shape's layout, padding included."""
    arrays = plan.arrays() | {"counts": np.array([len(plan.readout_row)], np.int32)}
    for kind, name in ((Kind.TRUNK, "trunks"), (Kind.LOCAL, "locals")):
        arrays |= {f"{name} {i}": s for i, s in enumerate(by_level(plan, kind))}
    for name, (at, dims) in layout.places.items():
        a = arrays[name]
        if a.ndim == 1:
            host[at : at + len(a)] = a
            if len(a) < dims[0]:
                host[at + len(a) : at + dims[0]] = a[-1] if name.endswith("_ptr") else PADDING.get(name.split()[0], 0)
        else:
            view = host[at : at + int(np.prod(dims))].reshape(dims)
            view[...] = PADDING.get(name, 0)
            view[tuple(slice(n) for n in a.shape)] = a


def device_round(shape: PassShape, layout: Layout, block: Tensor) -> DeviceRound:
    """Views of a filled block."""
    on = {name: block[at : at + int(np.prod(dims))].view(dims) for name, (at, dims) in layout.places.items()}
    segments = Segments(
        first_row=on["seg_first_row"],
        length=on["seg_len"],
        start=on["seg_start"],
        kind=on["seg_kind"],
        hist=on["seg_hist"],
        table=on["seg_table"],
        locals=on["seg_locals"],
        page_table=on["page_table"],
    )
    plain = ("counts", "token_ids", "positions", "row_segment", "kv_dst", "readout_row", "label_ptr", "label_ids", "conv_prev",
             "seg_state_in", "seg_state_out", "save_ptr", "save_pos", "save_slot")  # fmt: skip
    return DeviceRound(
        shape=shape,
        segments=segments,
        trunks=tuple(on[f"trunks {i}"] for i in range(len(shape.trunks))),
        locals=tuple(on[f"locals {i}"] for i in range(len(shape.locals))),
        **{name: on[name] for name in plain},
    )


class MetadataBlock:
    """Pinned blocks in turn and one block on the device, grown to the largest round seen."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned: list[Tensor | None] = [None] * STAGES
        self._copied: list[torch.cuda.Event | None] = [None] * STAGES
        self._block = torch.empty(0, dtype=torch.int32, device=device)
        self._turn = 0

    def reserve(self, shape: PassShape) -> bool:
        """Make room for a shape. True when the block moved: views and graphs of the old one are void."""
        size = layout_of(shape).size
        if self._block.numel() >= size:
            return False
        self._block = torch.empty(max(2 * size, FIRST_BLOCK), dtype=torch.int32, device=self._device)
        return True

    def upload(self, plan: RoundPlan, shape: PassShape) -> None:
        """One pinned copy, behind the kernels of the round before it on the stream."""
        layout = layout_of(shape)
        pinned = self._stage(layout.size)
        fill(pinned.numpy(), plan, layout)
        self._block[: layout.size].copy_(pinned[: layout.size], non_blocking=True)
        event = self._copied[self._turn] = self._copied[self._turn] or torch.cuda.Event()
        event.record()

    def views(self, shape: PassShape) -> DeviceRound:
        """What was uploaded last, which had this shape; a later upload of the shape shows in the same views."""
        return device_round(shape, layout_of(shape), self._block)

    def _stage(self, size: int) -> Tensor:
        """The next pinned block, once the copy out of it that may still run is done."""
        self._turn = (self._turn + 1) % STAGES
        copied, pinned = self._copied[self._turn], self._pinned[self._turn]
        if copied is not None:
            copied.synchronize()
        if pinned is None or pinned.numel() < size:
            pinned = self._pinned[self._turn] = torch.empty(max(2 * size, FIRST_BLOCK), dtype=torch.int32, pin_memory=True)
        return pinned
