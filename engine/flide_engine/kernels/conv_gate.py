"""The width-4 causal convolution with SiLU, the split into q, k and v, their l2 norms, and the gates of Gated DeltaNet.

One launch per linear layer reads the fused projection once and writes everything that the delta rule needs. A token's three
predecessors are found by index, so a branch of one token, a resumed tail and a fork cost the same as a plain prompt.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from flide_engine.kernels.language import tl, triton

TAPS = 3
ROWS = 32
NORM_EPS = 1e-6


class ConvGateOut(NamedTuple):
    """q, k: [T, key_heads, key_dim], l2-normalised (q not yet scaled). v: [T, value_heads, value_dim]. All in the activation dtype.

    g, beta: [T, value_heads] float32: log decay -exp(A_log) * softplus(a + dt_bias) and write strength sigmoid(b).
    """

    q: Any
    k: Any
    v: Any
    g: Any
    beta: Any


def conv_gate_out(rows: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, like: torch.Tensor) -> ConvGateOut:
    """Buffers for conv_gate, zeroed so that rows of no segment stay finite."""
    return ConvGateOut(
        like.new_zeros(rows, key_heads, key_dim),
        like.new_zeros(rows, key_heads, key_dim),
        like.new_zeros(rows, value_heads, value_dim),
        like.new_zeros((rows, value_heads), dtype=torch.float32),
        like.new_zeros((rows, value_heads), dtype=torch.float32),
    )


def conv_gate(
    x: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    conv_pool: torch.Tensor,
    *,
    row_segment: torch.Tensor,
    seg_first_row: torch.Tensor,
    conv_prev: torch.Tensor,
    save_ptr: torch.Tensor,
    save_pos: torch.Tensor,
    save_slot: torch.Tensor,
    seg_start: torch.Tensor,
    out: ConvGateOut,
) -> ConvGateOut:
    """Convolve, gate and normalise every row of the stream; write the conv windows of all saves.

    x: [T, >= C + value_heads * value_dim + 2 * value_heads] activation dtype, columns q | k | v | z | b | a, last stride 1,
    row stride and C multiples of 16. conv_weight: [C, 4] contiguous, the last tap is the row itself. a_log, dt_bias: [value_heads]
    float32. conv_pool: [slots, 3, C], one layer's windows of raw rows, oldest first, contiguous. Metadata as in RoundPlan, int32;
    rows with row_segment < 0 are zeroed, saves with save_slot < 0 skipped. key_dim and value_dim are powers of two.

    The convolution, SiLU and norm run in float32; q, k and v are rounded to the activation dtype once, at the end (transformers
    rounds after the convolution and after SiLU). beta keeps float32. x * rsqrt(sum x^2 + 1e-6): an all-zero row stays zero.
    The window of a save is the three rows before its position; a save's position lies >= 3 tokens inside its segment.
    """
    rows, (_, key_heads, key_dim), (_, value_heads, value_dim) = x.shape[0], out.q.shape, out.v.shape
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    if conv_weight.shape != (channels, 4) or conv_pool.shape[1:] != (TAPS, channels):
        raise ValueError(f"conv weight {tuple(conv_weight.shape)} or pool {tuple(conv_pool.shape)} do not fit {channels} channels")
    if x.stride(1) != 1 or not conv_weight.is_contiguous() or not conv_pool.is_contiguous():
        raise ValueError("conv_gate needs contiguous rows, weights and pool")
    row_blocks = triton.cdiv(rows, ROWS)
    saves = save_slot.shape[0]
    if rows == 0:
        return out
    grid = (row_blocks + saves, 2 * key_heads + value_heads + 1)
    _conv_gate[grid](
        x, conv_weight, a_log, dt_bias, conv_pool, out.q, out.k, out.v, out.g, out.beta,
        row_segment, seg_first_row, conv_prev, save_ptr, save_pos, save_slot, seg_start,
        rows, x.stride(0), seg_first_row.shape[0], row_blocks,
        NK=key_heads, NV=value_heads, DK=key_dim, DV=value_dim, NVP=triton.next_power_of_2(value_heads), BT=ROWS, EPS=NORM_EPS,
        num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _conv_gate(
    x, weight, a_log, dt_bias, pool, q, k, v, g, beta,
    row_segment, seg_first_row, conv_prev, save_ptr, save_pos, save_slot, seg_start,
    rows, x_stride, segments, row_blocks,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, NVP: tl.constexpr, BT: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Grid (row blocks, then saves; q heads, k heads, v heads, then one program for the gates)."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    if block >= row_blocks:
        if head < 2 * NK:
            _save_window(x, pool, save_ptr, save_pos, save_slot, seg_first_row, seg_start,
                         block - row_blocks, x_stride, segments, head * DK, 2 * NK * DK + NV * DV, DK)  # fmt: skip
        elif head < 2 * NK + NV:
            _save_window(x, pool, save_ptr, save_pos, save_slot, seg_first_row, seg_start,
                         block - row_blocks, x_stride, segments, 2 * NK * DK + (head - 2 * NK) * DV, 2 * NK * DK + NV * DV, DV)  # fmt: skip
        return
    row = block * BT + tl.arange(0, BT)
    segment = tl.load(row_segment + row, mask=row < rows, other=-1)
    live = segment >= 0
    offset = row - tl.load(seg_first_row + segment, mask=live, other=0)
    if head < 2 * NK:
        y = _convolve(x, weight, pool, conv_prev, row, segment, offset, live, x_stride, head * DK, 2 * NK * DK + NV * DV, DK, BT)
        y = y * tl.rsqrt(tl.sum(y * y, 1) + EPS)[:, None]
        d = tl.arange(0, DK)
        at = (row.to(tl.int64) * NK + head % NK)[:, None] * DK + d[None, :]
        if head < NK:
            tl.store(q + at, y.to(q.dtype.element_ty), mask=(row < rows)[:, None])
        else:
            tl.store(k + at, y.to(k.dtype.element_ty), mask=(row < rows)[:, None])
    elif head < 2 * NK + NV:
        h = head - 2 * NK
        y = _convolve(x, weight, pool, conv_prev, row, segment, offset, live, x_stride,
                      2 * NK * DK + h * DV, 2 * NK * DK + NV * DV, DV, BT)  # fmt: skip
        at = (row.to(tl.int64) * NV + h)[:, None] * DV + tl.arange(0, DV)[None, :]
        tl.store(v + at, y.to(v.dtype.element_ty), mask=(row < rows)[:, None])
    else:
        h = tl.arange(0, NVP)
        mask = live[:, None] & (h < NV)[None, :]
        at = x + row.to(tl.int64)[:, None] * x_stride + (2 * NK * DK + 2 * NV * DV) + h[None, :]
        b = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        a = tl.load(at + NV, mask=mask, other=0.0).to(tl.float32)
        a = a + tl.load(dt_bias + h, mask=h < NV, other=0.0).to(tl.float32)[None, :]
        # log(1 + e^a), whose fraction under 1 would vanish for large a and whose e^a would overflow
        softplus = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(tl.minimum(a, 20.0))))
        small = tl.exp(tl.minimum(a, -8.0))
        softplus = tl.where(a < -8.0, small - 0.5 * small * small, softplus)
        decay = -tl.exp(tl.load(a_log + h, mask=h < NV, other=0.0).to(tl.float32))[None, :] * softplus
        to = row.to(tl.int64)[:, None] * NV + h[None, :]
        inside = (row < rows)[:, None] & (h < NV)[None, :]
        tl.store(g + to, tl.where(mask, decay, 0.0), mask=inside)
        tl.store(beta + to, tl.where(mask, 1.0 / (1.0 + tl.exp(-b)), 0.0), mask=inside)


@triton.jit
def _convolve(x, weight, pool, conv_prev, row, segment, offset, live, x_stride, channel, CHANNELS: tl.constexpr,
              D: tl.constexpr, BT: tl.constexpr):  # fmt: skip
    """[BT, D] float32: SiLU of the convolution of channels [channel, channel + D)."""
    c = channel + tl.arange(0, D)
    here = tl.load(x + row.to(tl.int64)[:, None] * x_stride + c[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    acc = tl.zeros((BT, D), tl.float32)
    for j in tl.static_range(3):
        inside = offset >= 3 - j
        prev = tl.load(conv_prev + segment * 3 + j + offset, mask=live & (offset < 3 - j), other=-1)
        source = tl.where(inside, row - (3 - j), prev)
        at = source.to(tl.int64)
        tap = tl.load(x + at[:, None] * x_stride + c[None, :], mask=(live & (source >= 0))[:, None], other=0.0).to(tl.float32)
        stored = live & (source <= -2)
        window = pool + (-2 - at)[:, None] * CHANNELS + c[None, :]
        tap += tl.load(window, mask=stored[:, None], other=0.0).to(tl.float32)
        acc += tap * tl.load(weight + c * 4 + j).to(tl.float32)[None, :]
    acc += here * tl.load(weight + c * 4 + 3).to(tl.float32)[None, :]
    return acc / (1.0 + tl.exp(-acc))


@triton.jit
def _save_window(x, pool, save_ptr, save_pos, save_slot, seg_first_row, seg_start, save, x_stride, segments, channel,
                 CHANNELS: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """Copy the three raw rows before a save's position into its slot's window, for D channels."""
    slot = tl.load(save_slot + save).to(tl.int64)
    segment = 0
    for block in range(0, segments, 128):
        s = block + tl.arange(0, 128)
        ends = tl.load(save_ptr + s + 1, mask=s < segments, other=2147483647)
        segment += tl.sum((ends <= save).to(tl.int32), 0)
    if slot >= 0 and segment < segments:
        first = tl.load(seg_first_row + segment) + tl.load(save_pos + save) - tl.load(seg_start + segment) - 3
        c = channel + tl.arange(0, D)
        for j in tl.static_range(3):
            tl.store(pool + (slot * 3 + j) * CHANNELS + c, tl.load(x + (first + j).to(tl.int64) * x_stride + c))
