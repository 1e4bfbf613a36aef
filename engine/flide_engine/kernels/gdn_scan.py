"""Gated DeltaNet across chunks: the serial walk over a trunk with the state in registers, and the gated norm of its outputs.

The state is kept transposed, [value columns, key_dim], so that on Hopper every product takes its left operand from the registers
in which the previous one left it, and only the chunk's own tiles pass through shared memory.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from flide_engine.kernels.early import launch, let_next_start, wait_for_previous
from flide_engine.kernels.fast_math import silu
from flide_engine.kernels.gdn_chunks import CHUNK, Chunks, Tiles, tile_descriptor
from flide_engine.kernels.gdn_intra import IntraOut
from flide_engine.kernels.language import tl, triton

SCAN = {"BV": 64, "STAGES": 3, "BULK": False, "num_warps": 4}
SCAN_FLOAT32 = {"BV": 16, "STAGES": 2, "BULK": True, "num_warps": 8}
"""How the kernel is launched: fixed, so that no sum's order depends on the round; measured on an H200. BV: value columns of a program.
BULK: v comes by the copy engine too. Without, the walk needs no fence between reading v into registers and the engine's next write over
it, a fence that waits for all loads under way: 0.84 to 0.92 of the time on an H200, the same bits."""

NORM_BLOCK = 8
"""(row, head) pairs that a program of the norm takes."""


@functools.cache
def _stages(device: torch.device) -> int:
    """Chunks in flight that a multiprocessor's shared memory holds: three take 173 KB, two 116 KB.

    A program may take 227 KB on compute capability 9.0 and 10.x, 163 KB on 8.0 and 8.7, 99 KB elsewhere. The number of stages
    changes no bits; fewer than three were tried on 9.0 only.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    return 3 if capability[0] in (9, 10) else 2 if capability in ((8, 0), (8, 7)) else 1


def gdn_scan(
    tiles: Tiles,
    intra: IntraOut,
    chunks: Chunks,
    states: torch.Tensor,
    o: torch.Tensor,
    *,
    segments: torch.Tensor,
    seg_first_row: torch.Tensor,
    seg_len: torch.Tensor,
    seg_start: torch.Tensor,
    seg_state_in: torch.Tensor,
    seg_state_out: torch.Tensor,
    save_ptr: torch.Tensor,
    save_pos: torch.Tensor,
    save_slot: torch.Tensor,
    branch: torch.Tensor | None = None,
    early: bool = False,
) -> torch.Tensor:
    """Outputs and states of the listed segments, whose parents' states must be in their slots: one launch a level.

    tiles, intra: of conv_gate and gdn_intra. states: [slots, value_heads, key_dim, value_dim] float32 contiguous, one layer's
    slots. o: [T, value_heads, value_dim] contiguous, float32 or core_dtype (half the traffic; its rounding is an eighth of bf16's);
    rows of other segments are left alone.
    segments: [N] int32, entries < 0 are skipped. Slots: seg_state_in < 0 starts from zeros, seg_state_out < 0 drops the last
    state; a slot has one writer. The state after save_pos tokens goes to save_slot; a segment's save positions are ascending
    multiples of CHUNK from its start. A segment of no rows hands its state through. early: see kernels.early; the kernel before is then
    gdn_intra's or this one's. branch: [1] int32, a segment to walk behind the one listed in the same launch, where segments is [1] too;
    its state is taken over where it begins with the listed one's last state.

    Bits of a row depend on its segment and its place in it alone. The state is float32; products take operands of the core dtype
    (see core_dtype) and accumulate in float32, so that the error does not grow with the length of the history.
    """
    nv, dk, dv = check_states(tiles, states)
    config = SCAN_FLOAT32 if tiles.k.dtype == torch.float32 else SCAN
    config = config | {"BV": min(config["BV"], dv), "STAGES": min(config["STAGES"], _stages(tiles.k.device))}
    width = config["BV"]
    if segments.shape[0] == 0:
        return o
    if branch is not None and (segments.shape[0] != 1 or branch.shape[0] != 1):
        raise ValueError("a branch can be walked behind one trunk alone")
    _gdn_scan[(dv // width, nv, segments.shape[0])](
        *descriptors(tiles, intra, width), tiles.v, intra.grown, intra.rest, states, o, segments, branch, seg_first_row, seg_len,
        seg_start, chunks.first, seg_state_in, seg_state_out, save_ptr, save_pos, save_slot, dk**-0.5,
        HAS_BRANCH=branch is not None, NK=tiles.k.shape[1], NV=nv, DK=dk, DV=dv, **config, **launch(early),
    )  # fmt: skip
    return o


def gated_norm(
    o: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, eps: float, row_segment: torch.Tensor,
    early: bool = False,
) -> torch.Tensor:  # fmt: skip
    """out = o * rsqrt(mean o^2 + eps) * weight * silu(z) over each head's value_dim, rounded once.

    o: [T, value_heads, value_dim] contiguous. z: [T, value_heads * value_dim] with any row stride, last stride 1. weight:
    [value_dim]. out: [T, value_heads, value_dim] contiguous, activation dtype; rows with row_segment < 0 become zero.
    early: see kernels.early; z must have been there when the kernel before began.
    Transformers rounds the normalised value and its product with the weight as well; float32 throughout is nearer to float32.
    """
    rows, nv, dv = o.shape
    if rows:
        _gated_norm[(triton.cdiv(rows * nv, NORM_BLOCK),)](
            o, z, weight, out, row_segment, rows * nv, z.stride(0), eps, NV=nv, DV=dv, BLOCK=NORM_BLOCK, num_warps=4, **launch(early),
        )  # fmt: skip
    return out


def check_states(tiles: Tiles, states: torch.Tensor) -> tuple[int, int, int]:
    """(value heads, key_dim, value_dim), or ValueError when the slots do not fit the tiles."""
    nv, dk, dv = states.shape[1:]
    if states.dtype != torch.float32 or not states.is_contiguous():
        raise ValueError("states must be float32 and contiguous")
    if (nv, dk, dv) != (tiles.v.shape[1], tiles.k.shape[3], tiles.v.shape[2]) or nv % tiles.k.shape[1]:
        raise ValueError(f"states {tuple(states.shape)} do not fit k {tuple(tiles.k.shape)} and v {tuple(tiles.v.shape)}")
    return nv, dk, dv


def descriptors(tiles: Tiles, intra: IntraOut, columns: int) -> list[Any]:
    """Tensor descriptors of q, k, v, inverse and attention: one chunk of one head a block, `columns` of v's columns."""
    blocks = ((tiles.q, CHUNK), (tiles.k, CHUNK), (tiles.v, columns), (intra.inverse, CHUNK), (intra.attention, CHUNK))
    return [tile_descriptor(tile, rows) for tile, rows in blocks]


@triton.jit
def chunk_step(
    state, o, q, k, v_blocks, inverse, attention, v, grown, rest, chunk, row, rows, h, column, scale,
    NK: tl.constexpr, NV: tl.constexpr, DV: tl.constexpr, BULK: tl.constexpr,
):  # fmt: skip
    """One chunk: state [value columns from `column` on, DK] before it -> that after it, float32. Outputs go to o.

    q, k, v_blocks, inverse, attention: tensor descriptors of `descriptors`. v: the same by pointer. row: the chunk's first in the stream.
    rows: of the segment from there on.
    """
    i = tl.arange(0, 64)
    pair = chunk * NV + h
    shared = (chunk * NK + h // (NV // NK)) * 64
    keys = k.load([shared, 0])
    queries = q.load([shared, 0])
    columns = column + tl.arange(0, state.shape[0])
    if BULK:
        values = v_blocks.load([pair * DV + column, 0])
    else:
        values = tl.load(v + (pair * DV + columns).to(tl.int64)[:, None] * 64 + i[None, :])
    within_inverse = inverse.load([pair * 64, 0])
    within_attention = attention.load([pair * 64, 0])
    left = tl.load(grown + pair.to(tl.int64) * 64 + i)[None, :]
    left_at_end = tl.load(rest + pair.to(tl.int64) * 64 + i)[None, :]
    passed = tl.load(grown + pair.to(tl.int64) * 64 + 63)
    known = state.to(keys.dtype)
    out = tl.dot(known, tl.trans(queries), input_precision="tf32x3")
    error = values.to(tl.float32) - left * tl.dot(known, tl.trans(keys), input_precision="tf32x3")
    written = tl.dot(error.to(keys.dtype), tl.trans(within_inverse), input_precision="tf32x3")
    out = tl.dot(written.to(keys.dtype), tl.trans(within_attention), out * (left * scale), input_precision="tf32x3")
    kept = (written * left_at_end).to(keys.dtype)
    state = tl.dot(kept, keys, state * passed, input_precision="tf32x3")
    to = o + (row * NV + h) * DV + i[None, :] * (NV * DV) + columns[:, None]
    tl.store(to, out.to(o.dtype.element_ty), mask=(i < rows)[None, :])
    return state


@triton.jit
def _gdn_scan(
    q, k, v_blocks, inverse, attention, v, grown, rest, states, o, segments, branch, seg_first_row, seg_len,
    seg_start, seg_first_chunk, seg_state_in, seg_state_out, save_ptr, save_pos, save_slot, scale, HAS_BRANCH: tl.constexpr,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr,
    BULK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (slices of value_dim, value heads, listed segments)."""
    listed = tl.load(segments + tl.program_id(2))
    segment = tl.maximum(listed, 0)
    h = tl.program_id(1)
    column = tl.program_id(0) * BV
    columns = column + tl.arange(0, BV)
    length = tl.load(seg_len + segment)
    first = tl.load(seg_first_row + segment).to(tl.int64)
    chunk = tl.load(seg_first_chunk + segment)
    place = h * DK * DV + tl.arange(0, DK)[None, :] * DV + columns[:, None]
    source = tl.load(seg_state_in + segment).to(tl.int64)
    save = tl.load(save_ptr + segment)
    stop = tl.load(save_ptr + segment + 1)
    start = tl.load(seg_start + segment)
    due = tl.load(save_pos + save, mask=save < stop, other=-1) - start
    target = tl.load(seg_state_out + segment).to(tl.int64)
    idle = listed < 0
    if HAS_BRANCH:
        behind = tl.load(branch)
        follower = tl.maximum(behind, 0)
        follower_length = tl.where(behind < 0, 0, tl.load(seg_len + follower))
        follower_row = tl.load(seg_first_row + follower).to(tl.int64)
        follower_chunk = tl.load(seg_first_chunk + follower)
        follower_source = tl.load(seg_state_in + follower).to(tl.int64)
        follower_target = tl.where(behind < 0, -1, tl.load(seg_state_out + follower).to(tl.int64))
        length = tl.where(listed < 0, 0, length)
        target = tl.where(listed < 0, -1, target)
        source = tl.where(listed < 0, -1, source)
        idle = idle & (behind < 0)
    if EARLY:
        wait_for_previous()
        let_next_start()
    if idle:
        return
    state = tl.zeros((BV, DK), tl.float32)
    if source >= 0:
        state = tl.load(states + source * (NV * DK * DV) + place)
    for step in tl.range(0, tl.cdiv(length, 64), num_stages=STAGES):
        state = chunk_step(
            state, o, q, k, v_blocks, inverse, attention, v, grown, rest, chunk + step, first + step * 64, length - step * 64,
            h, column, scale, NK, NV, DV, BULK,
        )  # fmt: skip
        if step * 64 + 64 == due:
            slot = tl.load(save_slot + save).to(tl.int64)
            tl.store(states + slot * (NV * DK * DV) + place, state)
            save += 1
            due = tl.load(save_pos + save, mask=save < stop, other=-1) - start
    if target >= 0:
        tl.store(states + target * (NV * DK * DV) + place, state)
    if HAS_BRANCH:
        if (follower_source != target) | (target < 0):
            state = tl.zeros((BV, DK), tl.float32)
            tl.debug_barrier()  # it may be what was saved at the trunk's end, by other threads of this program
            if follower_source >= 0:
                state = tl.load(states + follower_source * (NV * DK * DV) + place)
        for step in tl.range(0, tl.cdiv(follower_length, 64), num_stages=STAGES):
            state = chunk_step(
                state, o, q, k, v_blocks, inverse, attention, v, grown, rest, follower_chunk + step, follower_row + step * 64,
                follower_length - step * 64, h, column, scale, NK, NV, DV, BULK,
            )  # fmt: skip
        if follower_target >= 0:
            tl.store(states + follower_target * (NV * DK * DV) + place, state)


@triton.jit
def _gated_norm(
    o, z, weight, out, row_segment, heads, z_stride, eps,
    NV: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program normalises BLOCK (row, head) pairs."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < heads
    row = pair // NV
    live = inside & (tl.load(row_segment + row, mask=inside, other=-1) >= 0)
    d = tl.arange(0, DV)
    scales = tl.load(weight + d).to(tl.float32)[None, :]
    gate = tl.load(z + (row * z_stride + pair % NV * DV)[:, None] + d[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    if EARLY:
        wait_for_previous()
    x = tl.load(o + pair[:, None] * DV + d[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 1) / DV + eps)[:, None] * scales
    y = y * silu(gate)
    tl.store(out + pair[:, None] * DV + d[None, :], y.to(out.dtype.element_ty), mask=inside[:, None])
