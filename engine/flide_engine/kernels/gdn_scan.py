"""Gated DeltaNet across chunks: the serial walk over a segment with the state in registers. What needs no order is gdn_output's.

The state is kept transposed, [value columns, key_dim], so that on Hopper every product takes its left operand from the registers
in which the previous one left it, and only the chunk's own tiles pass through shared memory.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from flide_engine.kernels.gdn_chunks import CHUNK, Chunks, Tiles, core_dtype, tile_descriptor
from flide_engine.kernels.gdn_intra import IntraOut
from flide_engine.kernels.language import tl, triton

SCAN = {"BV": 64, "num_warps": 4}
SCAN_FLOAT32 = {"BV": 16, "num_warps": 8}
"""How the kernel is launched: fixed, so that no sum's order depends on the round; measured on an H200. BV: value columns of a program."""
STAGES = 3


@functools.cache
def _stages(device: torch.device) -> int:
    """Chunks in flight that a multiprocessor's shared memory holds: three take 123 KB, two 90 KB. Their number changes no bits."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    return STAGES if capability[0] in (9, 10) or capability in ((8, 0), (8, 7)) else 2


def empty_before(
    capacity: int, value_heads: int, key_dim: int, value_dim: int, activations: torch.dtype, device: torch.device
) -> Any:
    """[C, value_heads, value_dim, key_dim] core dtype: each chunk's first state, transposed. gdn_scan writes those of all used chunks."""
    return torch.empty(capacity, value_heads, value_dim, key_dim, dtype=core_dtype(activations), device=device)


def gdn_scan(
    tiles: Tiles,
    intra: IntraOut,
    chunks: Chunks,
    states: torch.Tensor,
    before: torch.Tensor,
    *,
    segments: torch.Tensor,
    seg_len: torch.Tensor,
    seg_start: torch.Tensor,
    seg_state_in: torch.Tensor,
    seg_state_out: torch.Tensor,
    save_ptr: torch.Tensor,
    save_pos: torch.Tensor,
    save_slot: torch.Tensor,
    short: bool = False,
) -> None:
    """States of the listed segments, whose parents' states must be in their slots: one launch a level.

    tiles, intra: of conv_gate and gdn_intra. Afterwards `before` holds each chunk's first state, and tiles.v, in place of v, the
    deltas that the chunk writes: row j of the inverse times (v - what the state holds for k), [value_dim, 64], core dtype.
    states: [slots, value_heads, key_dim, value_dim] float32 contiguous, one layer's slots. short: the segments are mostly of one
    chunk, which needs nothing loaded ahead; the bits are the same.
    segments: [N] int32, entries < 0 are skipped. Slots: seg_state_in < 0 starts from zeros, seg_state_out < 0 drops the last
    state; a slot has one writer and any number of readers. The state after save_pos tokens goes to save_slot; a segment's save
    positions are ascending multiples of CHUNK from its start. A segment of no rows hands its state through.

    Bits of a chunk depend on its segment and its place in it alone. The state is float32; products take operands of the core dtype
    (see core_dtype) and accumulate in float32, so that the error does not grow with the length of the history.
    """
    nv, dk, dv = states.shape[1:]
    if states.dtype != torch.float32 or not states.is_contiguous():
        raise ValueError("states must be float32 and contiguous")
    if (nv, dk, dv) != (tiles.v.shape[1], tiles.k.shape[3], tiles.v.shape[2]) or nv % tiles.k.shape[1]:
        raise ValueError(f"states {tuple(states.shape)} do not fit k {tuple(tiles.k.shape)} and v {tuple(tiles.v.shape)}")
    if before.shape[0] < tiles.v.shape[0] or tuple(before.shape[1:]) != (nv, dv, dk) or before.dtype != tiles.k.dtype:
        raise ValueError(f"before {tuple(before.shape)} {before.dtype} does not fit states {tuple(states.shape)}")
    if segments.shape[0] == 0:
        return
    launch = SCAN_FLOAT32 if tiles.k.dtype == torch.float32 else SCAN
    width = min(launch["BV"], dv)
    _gdn_scan[(dv // width, nv, segments.shape[0])](
        tile_descriptor(tiles.k, CHUNK), tile_descriptor(tiles.v, width), tile_descriptor(intra.inverse, CHUNK),
        tile_descriptor(before, width), intra.grown, intra.rest, states, segments, seg_len, seg_start, chunks.first,
        seg_state_in, seg_state_out, save_ptr, save_pos, save_slot,
        NK=tiles.k.shape[1], NV=nv, DK=dk, DV=dv, STAGES=1 if short else _stages(tiles.k.device), **(launch | {"BV": width}),
    )  # fmt: skip


@triton.jit
def _gdn_scan(
    k, v, inverse, before, grown, rest, states, segments, seg_len, seg_start, seg_first_chunk,
    seg_state_in, seg_state_out, save_ptr, save_pos, save_slot,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (slices of value_dim, value heads, listed segments). k, v, inverse, before: tensor descriptors."""
    segment = tl.load(segments + tl.program_id(2))
    if segment < 0:
        return
    h = tl.program_id(1)
    column = tl.program_id(0) * BV
    length = tl.load(seg_len + segment)
    first = tl.load(seg_first_chunk + segment)
    place = h * DK * DV + tl.arange(0, DK)[None, :] * DV + (column + tl.arange(0, BV))[:, None]
    source = tl.load(seg_state_in + segment).to(tl.int64)
    state = tl.zeros((BV, DK), tl.float32)
    if source >= 0:
        state = tl.load(states + source * (NV * DK * DV) + place)
    save = tl.load(save_ptr + segment)
    stop = tl.load(save_ptr + segment + 1)
    start = tl.load(seg_start + segment)
    due = tl.load(save_pos + save, mask=save < stop, other=-1) - start
    i = tl.arange(0, 64)
    for step in tl.range(0, tl.cdiv(length, 64), num_stages=STAGES):
        pair = (first + step) * NV + h
        at = pair.to(tl.int64) * 64
        keys = k.load([((first + step) * NK + h // (NV // NK)) * 64, 0])
        values = v.load([pair * DV + column, 0])
        within = inverse.load([pair * 64, 0])
        left = tl.load(grown + at + i)[None, :]
        left_at_end = tl.load(rest + at + i)[None, :]
        passed = tl.load(grown + at + 63)
        known = state.to(keys.dtype)
        before.store([pair * DV + column, 0], known)
        error = values.to(tl.float32) - left * tl.dot(known, tl.trans(keys), input_precision="tf32x3")
        written = tl.dot(error.to(keys.dtype), tl.trans(within), input_precision="tf32x3")
        v.store([pair * DV + column, 0], written.to(keys.dtype))
        kept = (written * left_at_end).to(keys.dtype)
        state = tl.dot(kept, keys, state * passed, input_precision="tf32x3")
        if step * 64 + 64 == due:
            slot = tl.load(save_slot + save).to(tl.int64)
            tl.store(states + slot * (NV * DK * DV) + place, state)
            save += 1
            due = tl.load(save_pos + save, mask=save < stop, other=-1) - start
    target = tl.load(seg_state_out + segment).to(tl.int64)
    if target >= 0:
        tl.store(states + target * (NV * DK * DV) + place, state)
