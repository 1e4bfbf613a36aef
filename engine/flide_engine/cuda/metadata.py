"""A plan's metadata as one int32 block: filled in pinned memory, copied once a round, read by every kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from flide_engine.cuda.capacity import row_capacity
from flide_engine.kernels.attention import Segments
from flide_engine.plan import Int32, RoundPlan
from flide_engine.segments import Kind

Tensor = torch.Tensor
ALIGNMENT = 32
"""Entries: every array starts on a 128-byte line, so pointer alignment never changes between rounds."""
STAGES = 4
"""Pinned blocks in turn, so that filling one does not wait for the copy of the one before."""
PADDING = {"token_ids": 0, "positions": 0, "row_segment": -1, "kv_dst": -1, "readout_row": 0}
"""What rows beyond the stream hold: an embedding that exists, no segment, no page."""


@dataclass(frozen=True)
class DeviceRound:
    """A plan on the device. T and R are capacities; rows, readouts, labels the counts in use. All arrays int32, as in RoundPlan.

    trunks[l], locals[l]: segments of level l by kind, in order; levels without any are left out.
    """

    rows: int
    readouts: int
    labels: int
    most_labels: int
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

    @property
    def row_capacity(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def readout_capacity(self) -> int:
        return int(self.readout_row.shape[0])


def padded_arrays(plan: RoundPlan) -> dict[str, Int32]:
    """The plan's arrays, per-row ones padded to their capacity, and the segment lists by level and kind."""
    arrays = {name: a for name, a in plan.arrays().items() if name not in ("seg_parent", "seg_level", "seg_kind")}
    arrays["seg_kind"] = plan.seg_kind
    for name, value in PADDING.items():
        a = arrays[name]
        if name == "readout_row" and not len(a):
            continue
        padded = np.full(row_capacity(len(a)), value, np.int32)
        padded[: len(a)] = a
        arrays[name] = padded
    for level in range(plan.levels):
        for kind in Kind:
            chosen = np.flatnonzero((plan.seg_level == level) & (plan.seg_kind == kind)).astype(np.int32)
            if len(chosen):
                arrays[f"{kind.name} {level}"] = chosen
    return arrays


def offsets_of(arrays: dict[str, Int32]) -> tuple[dict[str, int], int]:
    """Where each array starts in the block, and the block's size."""
    offsets, size = {}, 0
    for name, a in arrays.items():
        offsets[name] = size
        size += -(-a.size // ALIGNMENT) * ALIGNMENT
    return offsets, size


def fill(host: Int32, arrays: dict[str, Int32], offsets: dict[str, int]) -> None:
    """Copy the arrays to their places in a host block."""
    for name, a in arrays.items():
        host[offsets[name] : offsets[name] + a.size] = a.reshape(-1)


def device_round(plan: RoundPlan, arrays: dict[str, Int32], offsets: dict[str, int], block: Tensor) -> DeviceRound:
    """Views of a filled block."""
    on = {name: block[offsets[name] : offsets[name] + a.size].view(a.shape) for name, a in arrays.items()}
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
    plain = ("token_ids", "positions", "row_segment", "kv_dst", "readout_row", "label_ptr", "label_ids", "conv_prev",
             "seg_state_in", "seg_state_out", "save_ptr", "save_pos", "save_slot")  # fmt: skip
    return DeviceRound(
        rows=plan.rows,
        readouts=len(plan.readout_row),
        labels=len(plan.label_ids),
        most_labels=int(np.diff(plan.label_ptr).max(initial=0)),
        segments=segments,
        trunks=tuple(on[n] for n in on if n.startswith(Kind.TRUNK.name)),
        locals=tuple(on[n] for n in on if n.startswith(Kind.LOCAL.name)),
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

    def upload(self, plan: RoundPlan) -> DeviceRound:
        """One pinned copy. The views belong to this round until the next upload, which the stream runs behind its kernels."""
        arrays = padded_arrays(plan)
        offsets, size = offsets_of(arrays)
        if self._block.numel() < size:
            self._block = torch.empty(2 * size, dtype=torch.int32, device=self._device)
        pinned = self._stage(size)
        fill(pinned.numpy(), arrays, offsets)
        self._block[:size].copy_(pinned[:size], non_blocking=True)
        event = self._copied[self._turn] = self._copied[self._turn] or torch.cuda.Event()
        event.record()
        return device_round(plan, arrays, offsets, self._block)

    def _stage(self, size: int) -> Tensor:
        """The next pinned block, once the copy out of it that may still run is done."""
        self._turn = (self._turn + 1) % STAGES
        copied, pinned = self._copied[self._turn], self._pinned[self._turn]
        if copied is not None:
            copied.synchronize()
        if pinned is None or pinned.numel() < size:
            pinned = self._pinned[self._turn] = torch.empty(2 * size, dtype=torch.int32, pin_memory=True)
        return pinned
