"""The width-4 causal convolution with SiLU, the split into q, k and v, their l2 norms, and the gates of Gated DeltaNet.

One launch per linear layer reads the fused projection once and writes everything that the delta rule needs. A token's three
predecessors are found by index, so a branch of one token, a resumed tail and a fork cost the same as a plain prompt.
"""

from __future__ import annotations

import torch

from flide_engine.kernels.early import launch, let_next_start, wait_for_previous
from flide_engine.kernels.fast_math import silu
from flide_engine.kernels.gdn_chunks import Chunks, Tiles
from flide_engine.kernels.language import tl, triton

CONV = {"num_warps": 8, "maxnreg": 64}
"""How the kernel is launched: fixed, so that no sum's order depends on the round; measured on an H200."""

TAPS = 3
NORM_EPS = 1e-6


def conv_gate(
    x: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    conv_pool: torch.Tensor,
    *,
    chunks: Chunks,
    seg_first_row: torch.Tensor,
    seg_len: torch.Tensor,
    seg_start: torch.Tensor,
    conv_prev: torch.Tensor,
    save_ptr: torch.Tensor,
    save_pos: torch.Tensor,
    save_slot: torch.Tensor,
    out: Tiles,
    early: bool = False,
) -> Tiles:
    """Convolve, gate and normalise every row of every segment; write the conv windows of all saves.

    x: [T, >= C + 2 * value_heads] activation dtype, columns q | k | v | b | a and whatever follows, last stride 1, row stride
    and C multiples of 16; rows outside the segments are never read. conv_weight: [4, C] contiguous, the last tap is
    the row itself (checkpoints hold it as [C, 4]). a_log, dt_bias: [value_heads] float32. conv_pool: [slots, 3, C] contiguous, one
    layer's windows of raw rows, oldest first. Metadata as in RoundPlan, int32; saves with save_slot < 0 are skipped. key_dim and
    value_dim are powers of two.

    The convolution, SiLU and norm run in float32; q, k and v are rounded to the core dtype once, at the end (transformers rounds to
    the activation dtype after the convolution and after SiLU). v is held within +-65,504. beta keeps float32.
    x * rsqrt(sum x^2 + 1e-6): an all-zero row stays zero.
    early: see kernels.early; the kernel before is then the product that made x.
    The window of a save is the three rows before its position; a save's position lies >= 3 tokens inside its segment.
    """
    (_, key_heads, _, key_dim), (_, value_heads, value_dim, _) = out.k.shape, out.v.shape
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    if tuple(conv_weight.shape) != (4, channels) or tuple(conv_pool.shape[1:]) != (TAPS, channels):
        raise ValueError(
            f"conv weight {tuple(conv_weight.shape)} or pool {tuple(conv_pool.shape)} do not fit {channels} channels"
        )
    if x.stride(1) != 1 or not conv_weight.is_contiguous() or not conv_pool.is_contiguous():
        raise ValueError("conv_gate needs contiguous rows, weights and pool")
    capacity = chunks.table.shape[0]
    grid = (capacity + save_slot.shape[0], 2 * key_heads + value_heads + 1)
    _conv_gate[grid](
        x, conv_weight, a_log, dt_bias, conv_pool, out.q, out.k, out.v, out.g, out.beta,
        chunks.table, seg_first_row, seg_len, seg_start, conv_prev, save_ptr, save_pos, save_slot,
        x.stride(0), seg_len.shape[0], capacity,
        NK=key_heads, NV=value_heads, DK=key_dim, DV=value_dim, NVP=triton.next_power_of_2(value_heads), EPS=NORM_EPS,
        **CONV, **launch(early),
    )  # fmt: skip
    return out


@triton.jit
def _conv_gate(
    x, weight, a_log, dt_bias, pool, q, k, v, g, beta,
    table, seg_first_row, seg_len, seg_start, conv_prev, save_ptr, save_pos, save_slot,
    x_stride, segments, capacity,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, NVP: tl.constexpr, EPS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, then saves; q heads, k heads, v heads, then one program for the gates)."""
    chunk = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1)
    CHANNELS: tl.constexpr = 2 * NK * DK + NV * DV
    if chunk >= capacity:
        if EARLY:
            wait_for_previous()
            let_next_start()
        save = tl.program_id(0) - capacity
        if slot < 2 * NK:
            _save_window(x, pool, save_ptr, save_pos, save_slot, seg_first_row, seg_start, save, x_stride, segments,
                         slot * DK, CHANNELS, DK)  # fmt: skip
        elif slot < 2 * NK + NV:
            _save_window(x, pool, save_ptr, save_pos, save_slot, seg_first_row, seg_start, save, x_stride, segments,
                         2 * NK * DK + (slot - 2 * NK) * DV, CHANNELS, DV)  # fmt: skip
        return
    segment = tl.load(table + chunk * 2)
    if segment < 0:  # at once: there are many, and waiting they would keep others from starting
        if chunk == 0:  # noqa: SIM102  (the only one that waits, as there is nothing to do)
            if EARLY:
                wait_for_previous()
        return
    index = tl.load(table + chunk * 2 + 1)
    rows = tl.minimum(tl.load(seg_len + segment) - index * 64, 64)
    base = x + (tl.load(seg_first_row + segment) + index * 64).to(tl.int64) * x_stride
    prev = conv_prev + segment * 3
    first = tl.arange(0, 8) * 8
    if slot < 2 * NK:
        d = tl.arange(0, DK)
        c = slot * DK + d
        y = _convolve(x, base, weight, pool, prev, first, index, rows, x_stride, c, CHANNELS, DK, EARLY)
        tile = (chunk * NK + slot % NK) * (64 * DK) + d[None, :]
        for r in tl.static_range(8):
            normed = y[r] * tl.rsqrt(tl.sum(y[r] * y[r], 1) + EPS)[:, None]
            if slot < NK:
                tl.store(q + tile + (first + r)[:, None] * DK, normed.to(q.dtype.element_ty))
            else:
                tl.store(k + tile + (first + r)[:, None] * DK, normed.to(k.dtype.element_ty))
    elif slot < 2 * NK + NV:
        d = tl.arange(0, DV)
        value_head = slot - 2 * NK
        c = 2 * NK * DK + value_head * DV + d
        y = _convolve(x, base, weight, pool, prev, first, index, rows, x_stride, c, CHANNELS, DV, EARLY)
        even = tl.join(tl.join(_half(y[0], v), _half(y[4], v)), tl.join(_half(y[2], v), _half(y[6], v)))
        odd = tl.join(tl.join(_half(y[1], v), _half(y[5], v)), tl.join(_half(y[3], v), _half(y[7], v)))
        runs = tl.reshape(tl.join(even, odd), (8, DV, 8))  # the index of each join is the next lower bit of the row
        place = (chunk * NV + value_head) * (64 * DV) + d[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(v + place, tl.reshape(tl.permute(runs, (1, 0, 2)), (DV, 64)))
    else:
        i = tl.arange(0, 64)
        h = tl.arange(0, NVP)
        used = (h < NV)[None, :]
        live = (i < rows)[:, None] & used
        at = base + i[:, None] * x_stride + CHANNELS + h[None, :]
        bias = tl.load(dt_bias + h, mask=h < NV, other=0.0).to(tl.float32)[None, :]
        rate = -tl.exp(tl.load(a_log + h, mask=h < NV, other=0.0).to(tl.float32))[None, :]
        if EARLY:
            wait_for_previous()
            let_next_start()
        b = tl.load(at, mask=live, other=0.0).to(tl.float32)
        a = tl.load(at + NV, mask=live, other=0.0).to(tl.float32)
        decay = rate * _softplus(a + bias)
        pair = (chunk * NV + h)[None, :] * 64 + i[:, None]
        tl.store(g + pair, tl.where(live, decay, 0.0), mask=used)
        tl.store(beta + pair, tl.where(live, 1.0 / (1.0 + tl.exp(-b)), 0.0), mask=used)


@triton.jit
def _softplus(a):
    """log(1 + e^a) = max(a, 0) + log1p(e^-|a|), by the series of 2 artanh(u / (2 + u)): the GPU's log is rough just above 1."""
    u = tl.exp(-tl.abs(a))
    s = u / (2.0 + u)
    t = s * s
    series = 1.0 + t * (1 / 3 + t * (1 / 5 + t * (1 / 7 + t * (1 / 9 + t * (1 / 11 + t * (1 / 13 + t * (1 / 15)))))))
    return tl.maximum(a, 0.0) + 2.0 * s * series


@triton.jit
def _before(x, pool, prev, x_stride, c, CHANNELS: tl.constexpr, D: tl.constexpr):
    """[D] float32: a raw row before the segment's first, which `prev` names: from the stream, a conv window, or zeros."""
    source = tl.load(prev) + tl.zeros((D,), tl.int64)
    here = tl.load(x + source * x_stride + c, mask=source >= 0, other=0.0)
    kept = tl.load(pool + (-2 - source) * CHANNELS + c, mask=source <= -2, other=0.0)
    return here.to(tl.float32) + kept.to(tl.float32)


@triton.jit
def _raw(base, i, inside, x_stride, c):
    """Raw rows i, [runs, D], zeros where not inside."""
    return tl.load(base + i[:, None] * x_stride + c[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def _convolve(
    x, base, weight, pool, prev, first, index, rows, x_stride, c, CHANNELS: tl.constexpr, D: tl.constexpr, EARLY: tl.constexpr
):  # fmt: skip
    """SiLU of the convolution of channels c: eight tensors [8, D] float32, the r-th of rows first + r of a chunk whose row 0 is at
    `base`; zeros behind the segment's end.

    A thread walks eight rows, so each row is read 11 / 8 times instead of four. Taps are summed oldest first wherever they come from, so
    a row has the same bits fresh and resumed. All reads of the stream are asked for before any is used.
    """
    w0 = tl.load(weight + c).to(tl.float32)[None, :]
    w1 = tl.load(weight + CHANNELS + c).to(tl.float32)[None, :]
    w2 = tl.load(weight + 2 * CHANNELS + c).to(tl.float32)[None, :]
    w3 = tl.load(weight + 3 * CHANNELS + c).to(tl.float32)[None, :]
    if EARLY:
        wait_for_previous()
        let_next_start()
    n0 = _raw(base, first, first < rows, x_stride, c)
    n1 = _raw(base, first + 1, first + 1 < rows, x_stride, c)
    n2 = _raw(base, first + 2, first + 2 < rows, x_stride, c)
    n3 = _raw(base, first + 3, first + 3 < rows, x_stride, c)
    n4 = _raw(base, first + 4, first + 4 < rows, x_stride, c)
    n5 = _raw(base, first + 5, first + 5 < rows, x_stride, c)
    n6 = _raw(base, first + 6, first + 6 < rows, x_stride, c)
    n7 = _raw(base, first + 7, first + 7 < rows, x_stride, c)
    inside = (first + index * 64 > 0) & (first < rows)
    t0 = _raw(base, first - 3, inside, x_stride, c).to(tl.float32)
    t1 = _raw(base, first - 2, inside, x_stride, c).to(tl.float32)
    t2 = _raw(base, first - 1, inside, x_stride, c).to(tl.float32)
    if index == 0:
        begins = (first == 0)[:, None]
        t0 = tl.where(begins, _before(x, pool, prev, x_stride, c, CHANNELS, D)[None, :], t0)
        t1 = tl.where(begins, _before(x, pool, prev + 1, x_stride, c, CHANNELS, D)[None, :], t1)
        t2 = tl.where(begins, _before(x, pool, prev + 2, x_stride, c, CHANNELS, D)[None, :], t2)
    y0, t3 = _tap(n0, t0, t1, t2, w0, w1, w2, w3, first < rows)
    y1, t4 = _tap(n1, t1, t2, t3, w0, w1, w2, w3, first + 1 < rows)
    y2, t5 = _tap(n2, t2, t3, t4, w0, w1, w2, w3, first + 2 < rows)
    y3, t6 = _tap(n3, t3, t4, t5, w0, w1, w2, w3, first + 3 < rows)
    y4, t7 = _tap(n4, t4, t5, t6, w0, w1, w2, w3, first + 4 < rows)
    y5, t8 = _tap(n5, t5, t6, t7, w0, w1, w2, w3, first + 5 < rows)
    y6, t9 = _tap(n6, t6, t7, t8, w0, w1, w2, w3, first + 6 < rows)
    y7, _ = _tap(n7, t7, t8, t9, w0, w1, w2, w3, first + 7 < rows)
    return y0, y1, y2, y3, y4, y5, y6, y7


@triton.jit
def _tap(raw, t0, t1, t2, w0, w1, w2, w3, live):
    """(SiLU of the convolution of a row whose three predecessors are t0 to t2, or zeros; the row itself in float32)."""
    now = raw.to(tl.float32)
    acc = t0 * w0
    acc += t1 * w1
    acc += t2 * w2
    acc += now * w3
    return tl.where(live[:, None], silu(acc), 0.0), now


@triton.jit
def _half(y, v):
    """y in v's dtype, within float16's range."""
    return tl.minimum(tl.maximum(y, -65504.0), 65504.0).to(v.dtype.element_ty)


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
    if (slot >= 0) & (segment < segments):
        first = tl.load(seg_first_row + segment) + tl.load(save_pos + save) - tl.load(seg_start + segment) - 3
        c = channel + tl.arange(0, D)
        for j in tl.static_range(3):
            tl.store(pool + (slot * 3 + j) * CHANNELS + c, tl.load(x + (first + j).to(tl.int64) * x_stride + c))
