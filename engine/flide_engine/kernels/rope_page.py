"""q/k RMSNorm + partial rotary embedding, and K/V of trunk rows straight into their pages."""

from __future__ import annotations

from typing import Any

import torch

from flide_engine.kernels.early import launch, let_next_start, wait_for_previous
from flide_engine.kernels.language import tl, triton

Tensor = Any
TABLE_BLOCK = 65_536


def rope_table(theta: float, rotary_dim: int, positions: int, device: Any) -> Tensor:
    """[positions, rotary_dim] float32: cosines, then sines, of position * theta ** (-2 i / rotary_dim).

    Angles are float64 and only their cosine and sine are rounded, to float32 whatever the activation dtype: positions of a long
    history lose nothing. (transformers takes float32 angles and rounds cosine and sine to the activation dtype.)
    """
    pairs = rotary_dim // 2
    rates = theta ** (-torch.arange(pairs, dtype=torch.float64, device=device) * 2 / rotary_dim)
    table = torch.empty(positions, rotary_dim, dtype=torch.float32, device=device)
    for first in range(0, positions, TABLE_BLOCK):
        angles = torch.arange(first, min(first + TABLE_BLOCK, positions), dtype=torch.float64, device=device)[:, None] * rates
        table[first : first + TABLE_BLOCK, :pairs] = angles.cos()
        table[first : first + TABLE_BLOCK, pairs:] = angles.sin()
    return table


@triton.jit
def _normed_rotated(
    source, weight, angles, head_mask, eps, stride, H: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """[H, BLOCK_D] float32: rms_norm(x) * (1 + w), then the half rotation of the first 2 * HALF columns."""
    head = tl.arange(0, H)
    d = tl.arange(0, BLOCK_D)
    inside = head_mask[:, None] & (d < D)[None, :]
    at = source + head[:, None] * stride
    w = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    # The partner of a rotated column is read again rather than shuffled: it is in L1.
    rotated = d < 2 * HALF
    partner = tl.where(d < HALF, d + HALF, d - HALF)
    wy = tl.load(weight + partner, mask=rotated, other=0.0).to(tl.float32)
    pair = tl.where(d < HALF, d, d - HALF)
    cos = tl.load(angles + pair, mask=rotated, other=1.0)
    sin = tl.load(angles + HALF + pair, mask=rotated, other=0.0)
    sin = tl.where(d < HALF, -sin, sin)
    if EARLY:
        wait_for_previous()
        let_next_start()
    x = tl.load(at + d[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / D + eps)
    x = x * scale[:, None] * (1.0 + w)[None, :]
    y = tl.load(at + partner[None, :], mask=head_mask[:, None] & rotated[None, :], other=0.0).to(tl.float32)
    y = y * scale[:, None] * (1.0 + wy)[None, :]
    return x * cos[None, :] + y * sin[None, :]


@triton.jit
def _query(
    qkv, weight, table, positions, rows, out, qkv_stride, eps,
    HAS_ROWS: tl.constexpr, HEADS: tl.constexpr, H: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    stream_row = row
    if HAS_ROWS:
        stream_row = tl.load(rows + row).to(tl.int64)
    angles = table + tl.load(positions + stream_row).to(tl.int64) * (2 * HALF)
    if EARLY:
        let_next_start()
    head = tl.arange(0, H)
    d = tl.arange(0, BLOCK_D)
    y = _normed_rotated(qkv + row * qkv_stride, weight, angles, head < HEADS, eps, 2 * D, H, HALF, D, BLOCK_D, False)
    at = out + row * (HEADS * D) + head[:, None] * D + d[None, :]
    tl.store(at, y.to(out.dtype.element_ty), mask=(head < HEADS)[:, None] & (d < D)[None, :])
    if EARLY:  # nothing here needs _key_value, but what follows relies on it
        wait_for_previous()


@triton.jit
def _key_value(
    k, v, weight, table, positions, kv_dst, k_local, k_pages, v_pages, k_stride, eps,
    HEADS: tl.constexpr, H: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(kv_dst + row).to(tl.int64)
    head = tl.arange(0, H)
    d = tl.arange(0, BLOCK_D)
    inside = (head < HEADS)[:, None] & (d < D)[None, :]
    angles = table + tl.load(positions + row).to(tl.int64) * (2 * HALF)
    y = _normed_rotated(k + row * k_stride, weight, angles, head < HEADS, eps, D, H, HALF, D, BLOCK_D, EARLY)
    y = y.to(k_local.dtype.element_ty)
    if target < 0:
        tl.store(k_local + row * (HEADS * D) + head[:, None] * D + d[None, :], y, mask=inside)
    else:
        at = ((target // PAGE) * HEADS + head[:, None]) * (PAGE * D) + (target % PAGE) * D + d[None, :]
        value = tl.load(v + row * k_stride + head[:, None] * D + d[None, :], mask=inside, other=0.0)
        tl.store(k_pages + at, y, mask=inside)
        tl.store(v_pages + at, value, mask=inside)


def norm_rope_query(
    qkv: Tensor, weight: Tensor, table: Tensor, positions: Tensor, out: Tensor, *, eps: float, rows: Tensor | None = None,
    early: bool = False,
) -> None:  # fmt: skip
    """out[i, h] = rope(rms_norm(query h of row i)) at position positions[rows[i]].

    qkv: [N, >= 2 * heads * D], of each head D query columns, then D gate columns (as q_proj gives them); row stride free.
    weight: [D] zero-centred. table: rope_table's. positions: [T] int32. rows: [N] int32, or None for i.
    out: [N, heads, D] contiguous. Norm and rotation in float32, one rounding at the end. early: see kernels.early; the kernel before is
    then norm_rope_key_value's, and qkv was there when that let it start.
    """
    count, heads, dim = out.shape
    if count:
        _query[(count,)](
            qkv, weight, table, positions, rows, out, qkv.stride(0), eps, HAS_ROWS=rows is not None, HEADS=heads,
            H=triton.next_power_of_2(heads), HALF=table.shape[1] // 2, D=dim, BLOCK_D=triton.next_power_of_2(dim), num_warps=4,
            **launch(early),
        )  # fmt: skip


def norm_rope_key_value(
    k: Tensor, v: Tensor, weight: Tensor, table: Tensor, positions: Tensor, kv_dst: Tensor, k_local: Tensor, k_pages: Tensor,
    v_pages: Tensor, *, eps: float, early: bool = False,
) -> None:  # fmt: skip
    """rope(rms_norm(k)) and v of trunk rows into their pages, k of local rows into k_local; v of local rows stays where it is.

    k, v: [N, >= kv_heads * D], equal row strides (column slices of one product). kv_dst: [N] page * 64 + offset, or -1 for a
    local (or padding) row. k_local: [N, kv_heads, D]. k_pages, v_pages: [pages, kv_heads, 64, D]. Every destination has one row.
    early: see kernels.early.
    """
    count, heads, dim = k_local.shape
    if k.stride(0) != v.stride(0):
        raise ValueError("k and v must be column slices of one product")
    if count:
        _key_value[(count,)](
            k, v, weight, table, positions, kv_dst, k_local, k_pages, v_pages, k.stride(0), eps, HEADS=heads,
            H=triton.next_power_of_2(heads), HALF=table.shape[1] // 2, D=dim, BLOCK_D=triton.next_power_of_2(dim),
            PAGE=k_pages.shape[2], num_warps=2, **launch(early),
        )  # fmt: skip
