"""Gated DeltaNet's outputs: what each chunk reads of its first state and of its own deltas, normalised and gated, all chunks at once."""

from __future__ import annotations

import torch

from flide_engine.kernels.fast_math import silu
from flide_engine.kernels.gdn_chunks import CHUNK, Chunks, Tiles, tile_descriptor
from flide_engine.kernels.gdn_intra import IntraOut
from flide_engine.kernels.language import tl, triton

OUTPUT = {"num_warps": 4}
OUTPUT_FLOAT32 = {"num_warps": 8}
"""How the kernel is launched: fixed, so that no sum's order depends on the round; measured on an H200."""


def gdn_output(
    tiles: Tiles, intra: IntraOut, chunks: Chunks, before: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *,
    eps: float, seg_first_row: torch.Tensor, seg_len: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The layer's gated outputs of all segments' rows, behind every gdn_scan of the pass.

    With S a chunk's first state and d its deltas, o = key_dim^-0.5 exp(G) (q S) + attention d, then
    out = o * rsqrt(mean o^2 + eps) * weight * silu(z) over each head's value_dim, in float32 and rounded once. (Transformers rounds
    the normalised value and its product with the weight as well; float32 throughout is nearer to float32.)

    tiles.v and before: as gdn_scan leaves them. z: [T, value_heads * value_dim] with any row stride, last stride 1. weight:
    [value_dim]. out: [T, value_heads, value_dim] contiguous, activation dtype; rows of no segment are left alone.
    """
    (_, key_heads, _, dk), (_, nv, dv, _) = tiles.q.shape, tiles.v.shape
    if tuple(out.shape[1:]) != (nv, dv) or not out.is_contiguous():
        raise ValueError(f"out {tuple(out.shape)} does not fit {nv} value heads of {dv}")
    launch = OUTPUT_FLOAT32 if tiles.q.dtype == torch.float32 else OUTPUT
    _gdn_output[(nv, chunks.table.shape[0])](
        tile_descriptor(tiles.q, CHUNK), tile_descriptor(tiles.v, dv), tile_descriptor(intra.attention, CHUNK),
        tile_descriptor(before, dv), intra.grown, z, weight, out, chunks.table, seg_first_row, seg_len,
        dk**-0.5, z.stride(0), eps, NK=key_heads, NV=nv, DV=dv, **launch,
    )  # fmt: skip
    return out


@triton.jit
def _gdn_output(
    q, written, attention, before, grown, z, weight, out, table, seg_first_row, seg_len, scale, z_stride, eps,
    NK: tl.constexpr, NV: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """Grid (value heads, chunks). q, written, attention, before: tensor descriptors."""
    chunk = tl.program_id(1)
    h = tl.program_id(0)
    segment = tl.load(table + chunk * 2)
    if segment < 0:
        return
    index = tl.load(table + chunk * 2 + 1)
    i = tl.arange(0, 64)
    d = tl.arange(0, DV)
    pair = chunk * NV + h
    queries = q.load([(chunk * NK + h // (NV // NK)) * 64, 0])
    known = before.load([pair * DV, 0])
    deltas = written.load([pair * DV, 0])
    within = attention.load([pair * 64, 0])
    left = tl.load(grown + pair.to(tl.int64) * 64 + i) * scale
    live = (i < tl.load(seg_len + segment) - index * 64)[:, None]
    row = (tl.load(seg_first_row + segment) + index * 64).to(tl.int64)
    gate = tl.load(z + row * z_stride + h * DV + i[:, None] * z_stride + d[None, :], mask=live, other=0.0).to(tl.float32)
    o = tl.dot(queries, tl.trans(known), input_precision="tf32x3") * left[:, None]
    o = tl.dot(within, tl.trans(deltas), o, input_precision="tf32x3")
    y = o * tl.rsqrt(tl.sum(o * o, 1) / DV + eps)[:, None]
    y = y * tl.load(weight + d).to(tl.float32)[None, :] * silu(gate)
    tl.store(out + (row * NV + h) * DV + i[:, None] * (NV * DV) + d[None, :], y.to(out.dtype.element_ty), mask=live)
