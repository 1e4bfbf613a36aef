"""Gated DeltaNet of branches: state by index from the parent's slot, outputs normalised and gated in the same program.

Branches are short and many, so a program owns a whole head of one branch: the gated norm needs no second pass and nothing but the
layer's output leaves the chip.
"""

from __future__ import annotations

import torch

from flide_engine.kernels.gdn_chunks import Chunks, Tiles
from flide_engine.kernels.gdn_intra import IntraOut
from flide_engine.kernels.gdn_scan import check_states, chunk_step, descriptors
from flide_engine.kernels.language import follow, following, tl, triton

MANY = 132
"""Programs from which on two share a multiprocessor of an H200 (128 registers a thread) rather than one having it alone."""
ALONE = {"STAGES": 2, "num_warps": 8}
SHARED = {"STAGES": 1, "num_warps": 8, "maxnreg": 128}
"""How the kernel is launched. The number of warps is fixed, so that no sum's order depends on the round; the rest changes no bits."""


def launch_of(programs: int, core: torch.dtype) -> dict[str, int]:
    """Float32 tiles are too large to share."""
    return SHARED if programs > MANY and core != torch.float32 else ALONE


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
) -> torch.Tensor:
    """The layer's gated outputs of the listed local segments, whose parents' states must be in their slots: one launch a level.

    tiles, intra, chunks, states, segments and slots as in gdn_scan. z: [T, value_heads * value_dim] with any row stride, last
    stride 1. weight: [value_dim]. out: [T, value_heads, value_dim] contiguous, activation dtype; rows of other segments are left
    alone. out = o * rsqrt(mean o^2 + eps) * weight * silu(z), in float32 and rounded once, as gated_norm does. The same arithmetic
    for every branch, whatever its neighbours; any number of branches may read one slot.
    """
    nv, dk, dv = check_states(tiles, states)
    if segments.shape[0] == 0:
        return out
    _gdn_branch[(segments.shape[0], nv)](
        *descriptors(tiles, intra, dv), intra.grown, intra.rest, states, z, weight, out, segments, seg_first_row,
        seg_len, chunks.first, seg_state_in, seg_state_out, dk**-0.5, z.stride(0), eps,
        NK=tiles.k.shape[1], NV=nv, DK=dk, DV=dv,
        **launch_of(segments.shape[0] * nv, tiles.k.dtype), **following(),
    )  # fmt: skip
    return out


@triton.jit
def _finish(o, z, weight, out, row, live, h, z_stride, eps, NV: tl.constexpr, DV: tl.constexpr):
    """Normalise, gate and store the readouts o [DV, 64] of the rows from `row` on."""
    i = tl.arange(0, 64)[:, None]
    columns = tl.arange(0, DV)
    gate = tl.load(z + row * z_stride + h * DV + i * z_stride + columns[None, :], mask=live, other=0.0).to(tl.float32)
    y = tl.trans(o * tl.rsqrt(tl.sum(o * o, 0) / DV + eps)[None, :])
    y = y * tl.load(weight + columns).to(tl.float32)[None, :] * (gate / (1.0 + tl.exp(-gate)))
    tl.store(out + (row * NV + h) * DV + i * (NV * DV) + columns[None, :], y.to(out.dtype.element_ty), mask=live)


@triton.jit
def _read(known, q, k, v, grown, inverse, attention, chunk, h, scale, NK: tl.constexpr, NV: tl.constexpr, DV: tl.constexpr):
    """(what the chunk writes, its readouts): chunk_step without the state after it."""
    pair = chunk * NV + h
    shared = (chunk * NK + h // (NV // NK)) * 64
    keys = k.load([shared, 0])
    queries = q.load([shared, 0])
    values = v.load([pair * DV, 0])
    within_inverse = inverse.load([pair * 64, 0])
    within_attention = attention.load([pair * 64, 0])
    left = tl.load(grown + pair.to(tl.int64) * 64 + tl.arange(0, 64))[None, :]
    out = tl.dot(known, tl.trans(queries), input_precision="tf32x3")
    error = values.to(tl.float32) - left * tl.dot(known, tl.trans(keys), input_precision="tf32x3")
    written = tl.dot(error.to(keys.dtype), tl.trans(within_inverse), input_precision="tf32x3")
    return written, tl.dot(written.to(keys.dtype), tl.trans(within_attention), out * (left * scale), input_precision="tf32x3")


@triton.jit
def _gdn_branch(
    q, k, v, inverse, attention, grown, rest, states, z, weight, out, segments, seg_first_row,
    seg_len, seg_first_chunk, seg_state_in, seg_state_out, scale, z_stride, eps,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, STAGES: tl.constexpr,
    FOLLOW: tl.constexpr,
):  # fmt: skip
    """Grid (listed segments, value heads).

    A short segment keeps its state in 16 bits, which is what products take, and reads the whole one again where a second chunk or a
    child needs it: registers for two programs a multiprocessor.
    """
    follow(FOLLOW)
    segment = tl.load(segments + tl.program_id(0))
    if segment < 0:
        return
    h = tl.program_id(1)
    length = tl.load(seg_len + segment)
    first = tl.load(seg_first_row + segment).to(tl.int64)
    chunk = tl.load(seg_first_chunk + segment)
    source = tl.load(seg_state_in + segment).to(tl.int64)
    target = tl.load(seg_state_out + segment).to(tl.int64)
    place = h * DK * DV + tl.arange(0, DK)[None, :] * DV + tl.arange(0, DV)[:, None]
    start = states + source * (NV * DK * DV) + place
    has_state = tl.zeros((DV, DK), tl.int64) + source >= 0
    i = tl.arange(0, 64)
    short = (length > 0) & (length <= tl.where(target < 0, 128, 64))
    if short:
        known = tl.load(start, mask=has_state, other=0.0).to(v.dtype)
        written, o = _read(known, q, k, v, grown, inverse, attention, chunk, h, scale, NK, NV, DV)
        _finish(o, z, weight, out, first, (i < length)[:, None], h, z_stride, eps, NV, DV)
        if (length > 64) | (target >= 0):
            pair = (chunk * NV + h).to(tl.int64) * 64
            kept = (written * tl.load(rest + pair + i)[None, :]).to(v.dtype)
            keys = k.load([(chunk * NK + h // (NV // NK)) * 64, 0])
            state = tl.load(start, mask=has_state, other=0.0) * tl.load(grown + pair + 63)
            state = tl.dot(kept, keys, state, input_precision="tf32x3")
            if target >= 0:
                tl.store(states + target * (NV * DK * DV) + place, state)
            else:
                written, o = _read(state.to(v.dtype), q, k, v, grown, inverse, attention, chunk + 1, h, scale, NK, NV, DV)
                _finish(o, z, weight, out, first + 64, (i < length - 64)[:, None], h, z_stride, eps, NV, DV)
    else:
        state = tl.load(start, mask=has_state, other=0.0)
        for step in tl.range(0, tl.cdiv(length, 64), num_stages=STAGES):
            state, o = chunk_step(state, q, k, v, grown, rest, inverse, attention, chunk + step, h, 0, scale, NK, NV, DV)
            _finish(o, z, weight, out, first + step * 64, (i < length - step * 64)[:, None], h, z_stride, eps, NV, DV)
        if target >= 0:
            tl.store(states + target * (NV * DK * DV) + place, state)
