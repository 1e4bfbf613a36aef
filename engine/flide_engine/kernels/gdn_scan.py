"""Gated DeltaNet across chunks: the serial walk over a trunk with the state in registers, and the gated norm of its outputs.

The state is kept transposed, [value columns, key_dim], so that on Hopper every product takes its left operand from the registers
in which the previous one left it, and only the chunk's own tiles pass through shared memory.
"""

from __future__ import annotations

import torch

from flide_engine.kernels.gdn_intra import CHUNK, IntraOut
from flide_engine.kernels.language import tl, triton


def gdn_scan(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    intra: IntraOut,
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
) -> torch.Tensor:
    """Outputs and states of the listed segments, whose parents' states must be in their slots: one launch a level.

    q, k: [T, key_heads, key_dim]; v: [T, value_heads, value_dim]; activation dtype, contiguous. intra: of the same rows.
    states: [slots, value_heads, key_dim, value_dim] float32 contiguous, one layer's slots. o: [T, value_heads, value_dim]
    contiguous, float32 (keeps the readout unrounded until the gated norm) or any float dtype; other rows are left alone.
    segments: [N] int32, entries < 0 are skipped. Slots: seg_state_in < 0 starts from zeros, seg_state_out < 0 drops the last
    state; a slot has one writer. The state after save_pos tokens goes to save_slot; a segment's save positions are ascending
    multiples of CHUNK from its start. A segment of no rows hands its state through.

    Bits of a row depend on its segment and its place in it alone. With bf16 inputs every float32 operand is split in a high and a
    low bf16 part, so the outputs have float32's accuracy to about 1e-5 whatever the length of the history.
    """
    _check(q, k, v, states)
    nv, dk, dv = states.shape[1:]
    width = slice_width(k.dtype, dv)
    if segments.shape[0] == 0:
        return o
    _gdn_scan[(dv // width, nv, segments.shape[0])](
        q, k, v, intra.decay, intra.inverse, intra.attention, states, o, segments, seg_first_row, seg_len, seg_start,
        seg_state_in, seg_state_out, save_ptr, save_pos, save_slot, dk**-0.5,
        NK=k.shape[1], NV=nv, DK=dk, DV=dv, BV=width, PARTS=intra.inverse.shape[2], STAGES=2, num_warps=4,
    )  # fmt: skip
    return o


def gated_norm(
    o: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, eps: float, row_segment: torch.Tensor
) -> torch.Tensor:
    """out = o * rsqrt(mean o^2 + eps) * weight * silu(z) over each head's value_dim, rounded once.

    o: [T, value_heads, value_dim] contiguous. z: [T, value_heads * value_dim] with any row stride, last stride 1. weight:
    [value_dim]. out: [T, value_heads, value_dim] contiguous, activation dtype; rows with row_segment < 0 become zero.
    Transformers rounds the normalised value and its product with the weight as well; float32 throughout is nearer to float32.
    """
    rows, nv, dv = o.shape
    if rows:
        _gated_norm[(triton.cdiv(rows * nv, 16),)](
            o, z, weight, out, row_segment, rows * nv, z.stride(0), eps, NV=nv, DV=dv, BLOCK=16, num_warps=4
        )
    return out


def slice_width(dtype: torch.dtype, value_dim: int) -> int:
    """Value columns of one program: by dtype and head shape alone, so that no sum's order depends on the round."""
    return min(value_dim, 16 if dtype == torch.float32 else 64)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, states: torch.Tensor) -> None:
    if not all(t.is_contiguous() for t in (q, k, v, states)):
        raise ValueError("q, k, v and states must be contiguous")
    if states.dtype != torch.float32:
        raise ValueError(f"states must be float32, not {states.dtype}")
    if states.shape[1:] != (v.shape[1], k.shape[2], v.shape[2]) or v.shape[1] % k.shape[1]:
        raise ValueError(f"states {tuple(states.shape)} do not fit k {tuple(k.shape)} and v {tuple(v.shape)}")


@triton.jit
def split_dot(a, b, PARTS: tl.constexpr):
    """a @ b^T in near float32: a float32, b in activation dtype and exact."""
    if PARTS == 2:
        high = a.to(b.dtype)
        low = (a - high.to(tl.float32)).to(b.dtype)
        out = tl.dot(high, tl.trans(b), tl.dot(low, tl.trans(b)))
    else:
        out = tl.dot(a, tl.trans(b), input_precision="tf32x3")
    return out


@triton.jit
def parts_dot(a, b_high, b_low, PARTS: tl.constexpr):
    """a @ b^T in near float32: a float32, b = b_high + b_low."""
    if PARTS == 2:
        high = a.to(b_high.dtype)
        low = (a - high.to(tl.float32)).to(b_high.dtype)
        out = tl.dot(high, tl.trans(b_low))
        out = tl.dot(low, tl.trans(b_high), out)
        out = tl.dot(high, tl.trans(b_high), out)
    else:
        out = tl.dot(a, tl.trans(b_high), input_precision="tf32x3")
    return out


@triton.jit
def chunk_step(
    state, q, k, v, decay, inverse, attention, first, rows, h, columns, scale,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One chunk: state [columns, DK] before it -> (state after it, outputs [columns, 64]). Rows from `rows` on are never read."""
    i = tl.arange(0, 64)
    valid = i < rows
    at = first + i
    tile = (at * NK + h // (NV // NK))[:, None] * DK + tl.arange(0, DK)[None, :]
    square = (at * NV + h)[:, None] * (PARTS * 64) + i[None, :]
    keys = tl.load(k + tile, mask=valid[:, None], other=0.0)
    queries = tl.load(q + tile, mask=valid[:, None], other=0.0)
    values = tl.load(v + (at * NV + h)[:, None] * DV + columns[None, :], mask=valid[:, None], other=0.0)
    inverse_high = tl.load(inverse + square, mask=valid[:, None], other=0.0)
    attention_high = tl.load(attention + square, mask=valid[:, None], other=0.0)
    if PARTS == 2:
        inverse_low = tl.load(inverse + square + 64, mask=valid[:, None], other=0.0)
        attention_low = tl.load(attention + square + 64, mask=valid[:, None], other=0.0)
    else:
        inverse_low = inverse_high
        attention_low = attention_high
    total = tl.load(decay + at * NV + h, mask=valid, other=0.0)
    last = tl.load(decay + (first + rows - 1) * NV + h)
    grown = tl.exp(total)[None, :]
    error = tl.trans(values).to(tl.float32) - grown * split_dot(state, keys, PARTS)
    written = parts_dot(error, inverse_high, inverse_low, PARTS)
    out = split_dot(state, queries, PARTS) * (grown * scale) + parts_dot(written, attention_high, attention_low, PARTS)
    kept = written * tl.exp(tl.minimum(last - total, 0.0))[None, :]
    return state * tl.exp(last) + split_dot(kept, tl.trans(keys), PARTS), out


@triton.jit
def _gdn_scan(
    q, k, v, decay, inverse, attention, states, o, segments, seg_first_row, seg_len, seg_start,
    seg_state_in, seg_state_out, save_ptr, save_pos, save_slot, scale,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (slices of value_dim, value heads, listed segments)."""
    segment = tl.load(segments + tl.program_id(2))
    if segment < 0:
        return
    h = tl.program_id(1)
    columns = tl.program_id(0) * BV + tl.arange(0, BV)
    length = tl.load(seg_len + segment)
    first = tl.load(seg_first_row + segment).to(tl.int64)
    place = h * DK * DV + tl.arange(0, DK)[None, :] * DV + columns[:, None]
    source = tl.load(seg_state_in + segment).to(tl.int64)
    state = tl.zeros((BV, DK), tl.float32)
    if source >= 0:
        state = tl.load(states + source * (NV * DK * DV) + place)
    save = tl.load(save_ptr + segment)
    stop = tl.load(save_ptr + segment + 1)
    start = tl.load(seg_start + segment)
    due = tl.load(save_pos + save, mask=save < stop, other=-1) - start
    for begin in tl.range(0, length, 64, num_stages=STAGES):
        rows = tl.minimum(length - begin, 64)
        state, out = chunk_step(
            state, q, k, v, decay, inverse, attention, first + begin, rows, h, columns, scale, NK, NV, DK, DV, PARTS
        )  # fmt: skip
        i = tl.arange(0, 64)
        at = ((first + begin + i) * NV + h)[None, :] * DV + columns[:, None]
        tl.store(o + at, out.to(o.dtype.element_ty), mask=(i < rows)[None, :])
        if begin + 64 == due:
            slot = tl.load(save_slot + save).to(tl.int64)
            tl.store(states + slot * (NV * DK * DV) + place, state)
            save += 1
            due = tl.load(save_pos + save, mask=save < stop, other=-1) - start
    target = tl.load(seg_state_out + segment).to(tl.int64)
    if target >= 0:
        tl.store(states + target * (NV * DK * DV) + place, state)


@triton.jit
def _gated_norm(o, z, weight, out, row_segment, heads, z_stride, eps, NV: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr):
    """One program normalises BLOCK (row, head) pairs."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < heads
    row = pair // NV
    live = inside & (tl.load(row_segment + row, mask=inside, other=-1) >= 0)
    d = tl.arange(0, DV)
    x = tl.load(o + pair[:, None] * DV + d[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    gate = tl.load(z + (row * z_stride + pair % NV * DV)[:, None] + d[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 1) / DV + eps)[:, None] * tl.load(weight + d).to(tl.float32)[None, :]
    y = y * (gate / (1.0 + tl.exp(-gate)))
    tl.store(out + pair[:, None] * DV + d[None, :], y.to(out.dtype.element_ty), mask=inside[:, None])
