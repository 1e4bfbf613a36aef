"""Gated DeltaNet of branches: state by index from the parent's slot, outputs normalised and gated in the same program.

Branches are short and many, so a program owns a whole head of one branch: the gated norm needs no second pass and nothing but the
layer's output leaves the chip.
"""

from __future__ import annotations

import torch

from flide_engine.kernels.early import launch, let_next_start, wait_for_previous
from flide_engine.kernels.fast_math import silu
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
    z: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    eps: float,
    segments: torch.Tensor,
    seg_first_row: torch.Tensor,
    seg_len: torch.Tensor,
    seg_state_in: torch.Tensor,
    seg_state_out: torch.Tensor,
    early: bool = False,
) -> torch.Tensor:
    """The layer's gated outputs of the listed local segments, whose parents' states must be in their slots: one launch a level.

    tiles, intra, chunks, states, segments and slots as in gdn_scan. z: [T, value_heads * value_dim] with any row stride, last
    stride 1. weight: [value_dim]. out: [T, value_heads, value_dim] contiguous, activation dtype; rows of other segments are left
    alone. out = o * rsqrt(mean o^2 + eps) * weight * silu(z), in float32 and rounded once, as gated_norm does. The same arithmetic
    for every branch, whatever its neighbours; any number of branches may read one slot. early: see kernels.early; the kernel before is
    then gdn_scan's or this one's.
    """
    nv, dk, dv = check_states(tiles, states)
    if segments.shape[0] == 0:
        return out
    _gdn_branch[(segments.shape[0], nv)](
        *descriptors(tiles, intra, dv), tiles.v, intra.grown, intra.rest, states, z, weight, out, segments, seg_first_row,
        seg_len, chunks.first, seg_state_in, seg_state_out, dk**-0.5, z.stride(0), eps,
        NK=tiles.k.shape[1], NV=nv, DK=dk, DV=dv, **BRANCH, **launch(early),
    )  # fmt: skip
    return out


@triton.jit
def _gdn_branch(
    q, k, v_blocks, inverse, attention, v, grown, rest, states, z, weight, out, segments, seg_first_row,
    seg_len, seg_first_chunk, seg_state_in, seg_state_out, scale, z_stride, eps,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, STAGES: tl.constexpr,
    BULK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (listed segments, value heads)."""
    segment = tl.load(segments + tl.program_id(0))
    length = tl.load(seg_len + tl.maximum(segment, 0))
    if (segment < 0) | (length == 0):
        wait_for_previous(EARLY)
        let_next_start(EARLY)
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
    scales = tl.load(weight + columns).to(tl.float32)[None, :]
    i = tl.arange(0, 64)
    for step in tl.range(0, tl.cdiv(length, 64), num_stages=STAGES):
        if step == 0:  # within the loop, so that the first chunk's tiles, which hang on no state, are asked for before
            wait_for_previous(EARLY)
            let_next_start(EARLY)
            if source >= 0:
                state = tl.load(states + source * (NV * DK * DV) + place)
        state, o = chunk_step(
            state, q, k, v_blocks, inverse, attention, v, grown, rest, chunk + step, h, 0, scale, NK, NV, DV, BULK
        )  # fmt: skip
        y = tl.trans(o * tl.rsqrt(tl.sum(o * o, 0) / DV + eps)[None, :])
        row = first + step * 64
        live = (i < length - step * 64)[:, None]
        gate = tl.load(z + row * z_stride + h * DV + i[:, None] * z_stride + columns[None, :], mask=live, other=0.0).to(
            tl.float32
        )
        y = y * scales * silu(gate)
        tl.store(out + (row * NV + h) * DV + i[:, None] * (NV * DV) + columns[None, :], y.to(out.dtype.element_ty), mask=live)
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
