"""Gated DeltaNet of branches: state by index from the parent's slot.

Branches are short and many, so a program owns a whole head of one branch, and asks for its first chunk before its state.
"""

from __future__ import annotations

import torch

from flide_engine.kernels.early import launch, let_next_start, wait_for_previous
from flide_engine.kernels.gdn_chunks import Chunks, Tiles
from flide_engine.kernels.gdn_intra import IntraOut
from flide_engine.kernels.gdn_scan import check_states, chunk_step, descriptors
from flide_engine.kernels.language import tl, triton

BRANCH = {"STAGES": 2, "BULK": True, "num_warps": 8}
"""How the kernel is launched: fixed, so that no sum's order depends on the round; measured on an H200."""


def gdn_branch(
    tiles: Tiles,
    intra: IntraOut,
    chunks: Chunks,
    states: torch.Tensor,
    o: torch.Tensor,
    *,
    segments: torch.Tensor,
    seg_first_row: torch.Tensor,
    seg_len: torch.Tensor,
    seg_state_in: torch.Tensor,
    seg_state_out: torch.Tensor,
    early: bool = False,
) -> torch.Tensor:
    """Outputs and states of the listed local segments, whose parents' states must be in their slots: one launch a level.

    All arguments as in gdn_scan, and the same arithmetic: bits do not depend on which of the two walks a branch. Any number of branches
    may read one slot. early: see kernels.early; the kernel before is then gdn_scan's or this one's.
    """
    nv, dk, dv = check_states(tiles, states)
    if segments.shape[0] == 0:
        return o
    _gdn_branch[(segments.shape[0], nv)](
        *descriptors(tiles, intra, dv), tiles.v, intra.grown, intra.rest, states, o, segments, seg_first_row,
        seg_len, chunks.first, seg_state_in, seg_state_out, dk**-0.5,
        NK=tiles.k.shape[1], NV=nv, DK=dk, DV=dv, **BRANCH, **launch(early),
    )  # fmt: skip
    return o


@triton.jit
def _gdn_branch(
    q, k, v_blocks, inverse, attention, v, grown, rest, states, o, segments, seg_first_row,
    seg_len, seg_first_chunk, seg_state_in, seg_state_out, scale,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, STAGES: tl.constexpr,
    BULK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (listed segments, value heads)."""
    segment = tl.load(segments + tl.program_id(0))
    length = tl.load(seg_len + tl.maximum(segment, 0))
    if (segment < 0) | (length == 0):
        if EARLY:
            wait_for_previous()
            let_next_start()
        if segment >= 0:
            _hand_through(states, seg_state_in, seg_state_out, segment, tl.program_id(1) * DK * DV, NV * DK * DV, DK * DV)
        return
    h = tl.program_id(1)
    columns = tl.arange(0, DV)
    first = tl.load(seg_first_row + segment).to(tl.int64)
    chunk = tl.load(seg_first_chunk + segment)
    place = h * DK * DV + tl.arange(0, DK)[None, :] * DV + columns[:, None]
    source = tl.load(seg_state_in + segment).to(tl.int64)
    state = tl.zeros((DV, DK), tl.float32)
    for step in tl.range(0, tl.cdiv(length, 64), num_stages=STAGES):
        if step == 0:  # within the loop, so that the first chunk's tiles, which hang on no state, are asked for before
            if EARLY:
                wait_for_previous()
                let_next_start()
            if source >= 0:
                state = tl.load(states + source * (NV * DK * DV) + place)
        state = chunk_step(
            state, o, q, k, v_blocks, inverse, attention, v, grown, rest, chunk + step, first + step * 64, length - step * 64,
            h, 0, scale, NK, NV, DV, BULK,
        )  # fmt: skip
    target = tl.load(seg_state_out + segment).to(tl.int64)
    if target >= 0:
        tl.store(states + target * (NV * DK * DV) + place, state)


@triton.jit
def _hand_through(states, seg_state_in, seg_state_out, segment, place, slot_size, SIZE: tl.constexpr):
    """A segment of no rows leaves its parent's state, zeros without one, where it should leave its own."""
    source = tl.load(seg_state_in + segment).to(tl.int64)
    target = tl.load(seg_state_out + segment).to(tl.int64)
    at = place + tl.arange(0, SIZE)
    if target >= 0:
        state = tl.load(states + source * slot_size + at, mask=source >= 0, other=0.0)
        tl.store(states + target * slot_size + at, state)
