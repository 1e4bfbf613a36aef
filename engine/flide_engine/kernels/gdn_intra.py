"""Gated DeltaNet inside a chunk: everything that does not need the state, for all chunks of all segments in one launch.

A chunk is 64 rows of one segment counted from the segment's first row, so a trunk's chunks sit on the absolute grid and a
branch's start at its fork. With G the running sum of g within the chunk, row i of a chunk of value head h needs

    inverse[i, j]   = (I + A)^-1[i, j] * beta_j,  A[i, j] = beta_i (k_i . k_j) exp(G_i - G_j) for j < i
    attention[i, j] = key_dim^-0.5 (q_i . k_j) exp(G_i - G_j) for j <= i

(Yang et al., Gated Delta Networks, 2024, in the form that applies the inverse inside the scan, which keeps the cancellation
v - K S in float32.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from flide_engine.kernels.language import tl, triton

CHUNK = 64


class IntraOut(NamedTuple):
    """What the scan and the branch kernel read, by stream row; CHUNK columns are the rows of the row's own chunk.

    decay: [T, value_heads] float32, the running sum G. inverse, attention: [T, value_heads, P, CHUNK]: P = 2 parts high and low
    in bf16 or fp16, whose sum has 16 bits or more; P = 1 in float32. Columns behind the row are zero.
    """

    decay: Any
    inverse: Any
    attention: Any


def intra_out(rows: int, value_heads: int, like: torch.Tensor) -> IntraOut:
    """Buffers for gdn_intra; `like` gives device and activation dtype."""
    parts = 1 if like.dtype == torch.float32 else 2
    return IntraOut(
        like.new_zeros((rows, value_heads), dtype=torch.float32),
        like.new_zeros(rows, value_heads, parts, CHUNK),
        like.new_zeros(rows, value_heads, parts, CHUNK),
    )


def chunk_capacity(rows: int, segments: int) -> int:
    """Most chunks that `segments` segments over `rows` rows can have."""
    return triton.cdiv(rows, CHUNK) + segments


def chunk_table(seg_len: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Fill table [capacity, 2] int32 with (segment, index of the chunk in it), segments in order; unused entries get (-1, 0).

    seg_len: [S] int32, zeros allowed. capacity >= chunk_capacity(rows, S). On the device, without synchronisation.
    """
    segments = seg_len.shape[0]
    if segments:
        _chunk_table[(segments,)](seg_len, table, segments, table.shape[0], CHUNK=CHUNK, BLOCK=128, num_warps=4)
    else:
        table.fill_(-1)
    return table


def gdn_intra(
    q: torch.Tensor,
    k: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    chunks: torch.Tensor,
    seg_first_row: torch.Tensor,
    seg_len: torch.Tensor,
    out: IntraOut,
) -> IntraOut:
    """Chunk-local decays, triangular inverse and attention of every chunk.

    q, k: [T, key_heads, key_dim] contiguous, as conv_gate leaves them (bf16, fp16 or float32), key_dim a power of two >= 16.
    g, beta: [T, value_heads] float32, g <= 0. chunks: table of chunk_table. Value head h uses key head h // (value_heads /
    key_heads). Rows outside every segment are neither read nor written.

    Products of q and k accumulate in float32. Decay differences are masked before exp. The inverse is taken by doubling blocks
    from 2 to 64 in float32 (three-pass tf32 on the GPU), which is as stable as substitution.
    """
    _, key_heads, key_dim = k.shape
    value_heads = g.shape[1]
    if value_heads % key_heads:
        raise ValueError(f"{value_heads} value heads are no multiple of {key_heads} key heads")
    if not (q.is_contiguous() and k.is_contiguous() and g.is_contiguous() and beta.is_contiguous()):
        raise ValueError("gdn_intra needs contiguous q, k, g and beta")
    grid = (chunks.shape[0], value_heads, 2)
    _gdn_intra[grid](
        q, k, g, beta, out.decay, out.inverse, out.attention, chunks, seg_first_row, seg_len, key_dim**-0.5,
        NK=key_heads, NV=value_heads, DK=key_dim, PARTS=out.inverse.shape[2], num_warps=INTRA_WARPS,
    )  # fmt: skip
    return out


INTRA_WARPS = 2


@triton.jit
def _chunk_table(seg_len, table, segments, capacity, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """One program a segment writes its chunks; the last one also marks the unused entries."""
    segment = tl.program_id(0)
    first = 0
    lane = tl.arange(0, BLOCK)
    for block in range(0, segment, BLOCK):
        n = tl.load(seg_len + block + lane, mask=block + lane < segment, other=0)
        first += tl.sum((n + CHUNK - 1) // CHUNK, 0)
    count = (tl.load(seg_len + segment) + CHUNK - 1) // CHUNK
    for block in range(0, count, BLOCK):
        i = block + lane
        keep = (i < count) & (first + i < capacity)
        tl.store(table + (first + i) * 2, tl.zeros((BLOCK,), tl.int32) + segment, mask=keep)
        tl.store(table + (first + i) * 2 + 1, i, mask=keep)
    if segment == segments - 1:
        for block in range(first + count, capacity, BLOCK):
            i = block + lane
            tl.store(table + i * 2, tl.zeros((BLOCK,), tl.int32) - 1, mask=i < capacity)
            tl.store(table + i * 2 + 1, tl.zeros((BLOCK,), tl.int32), mask=i < capacity)


@triton.jit
def _gdn_intra(
    q, k, g, beta, decay, inverse, attention, chunks, seg_first_row, seg_len, scale,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, value heads, 2): part 0 writes the decays and the inverse, part 1 the attention."""
    chunk = tl.program_id(0)
    h = tl.program_id(1)
    segment = tl.load(chunks + chunk * 2)
    if segment < 0:
        return
    index = tl.load(chunks + chunk * 2 + 1)
    rows = tl.minimum(tl.load(seg_len + segment) - index * 64, 64)
    first = (tl.load(seg_first_row + segment) + index * 64).to(tl.int64)
    if tl.program_id(2) == 0:
        _inverse(k, g, beta, decay, inverse, first, rows, h, NK, NV, DK, PARTS)
    else:
        _attention(q, k, g, attention, first, rows, h, scale, NK, NV, DK, PARTS)


@triton.jit
def _gates(g, first, rows, h, B: tl.constexpr, NV: tl.constexpr):
    """Log decays of rows 16 B .. 16 B + 15 of a chunk, 0 behind its end.

    exp(-110) is 0 in float32: the clamp changes no decay but keeps the running sums small, so that their differences stay exact.
    """
    r = B * 16 + tl.arange(0, 16)
    return tl.maximum(tl.load(g + (first + r) * NV + h, mask=r < rows, other=0.0), -110.0)


@triton.jit
def _running(g, first, rows, h, NV: tl.constexpr):
    """Running sums of the log decays over a chunk, in four blocks of 16; flat behind the chunk's end."""
    g0 = _gates(g, first, rows, h, 0, NV)
    g1 = _gates(g, first, rows, h, 1, NV)
    g2 = _gates(g, first, rows, h, 2, NV)
    g3 = _gates(g, first, rows, h, 3, NV)
    c0 = tl.cumsum(g0, 0)
    t0 = tl.sum(g0, 0)
    c1 = tl.cumsum(g1, 0) + t0
    t1 = t0 + tl.sum(g1, 0)
    c2 = tl.cumsum(g2, 0) + t1
    c3 = tl.cumsum(g3, 0) + (t1 + tl.sum(g2, 0))
    return c0, c1, c2, c3


@triton.jit
def _load_rows(x, first, rows, head, B: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr):
    """[16, D]: rows 16 B .. 16 B + 15 of a chunk of one head, zeros behind its end."""
    r = B * 16 + tl.arange(0, 16)
    at = ((first + r) * HEADS + head)[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(x + at, mask=(r < rows)[:, None], other=0.0)


@triton.jit
def _product(a, b):
    """a @ b^T of activation-dtype tiles, accumulated in float32 (tf32 in three passes where the tiles are float32)."""
    return tl.dot(a, tl.trans(b), input_precision="tf32x3")


@triton.jit
def _dot(a, b):
    """Product of small float32 blocks; plain tf32 would leave three digits."""
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def _coupling(ki, kj, ci, cj, beta_i):
    """A of a block strictly below the diagonal: every pair is ordered, so the exponent is never positive."""
    return _product(ki, kj) * tl.exp(tl.minimum(ci[:, None] - cj[None, :], 0.0)) * beta_i[:, None]


@triton.jit
def _diagonal_inverse(ki, ci, beta_i):
    """(I + A)^-1 [16, 16] of a diagonal block, doubling the size of exactly inverted sub-blocks: 2, 4, 8, 16."""
    i = tl.arange(0, 16)[:, None]
    j = tl.arange(0, 16)[None, :]
    a = _product(ki, ki) * tl.exp(tl.where(i > j, ci[:, None] - ci[None, :], float("-inf"))) * beta_i[:, None]
    x = tl.where(i == j, 1.0, 0.0) - tl.where(i // 2 == j // 2, a, 0.0)
    for level in tl.static_range(1, 4):
        w: tl.constexpr = 1 << level
        below = tl.where((i // (2 * w) == j // (2 * w)) & (i // w != j // w), a, 0.0)
        x = x - _dot(_dot(x, below), x)
    return x


@triton.jit
def _store_block(out, x, first, rows, h, I: tl.constexpr, J: tl.constexpr, NV: tl.constexpr, PARTS: tl.constexpr):
    """Store a [16, 16] float32 block at block row I, block column J, in PARTS parts."""
    r = I * 16 + tl.arange(0, 16)
    at = ((first + r) * NV + h)[:, None] * (PARTS * 64) + (J * 16 + tl.arange(0, 16))[None, :]
    high = x.to(out.dtype.element_ty)
    tl.store(out + at, high, mask=(r < rows)[:, None])
    if PARTS == 2:
        tl.store(out + at + 64, (x - high.to(tl.float32)).to(out.dtype.element_ty), mask=(r < rows)[:, None])


@triton.jit
def _inverse(k, g, beta, decay, inverse, first, rows, h, NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, PARTS: tl.constexpr):
    head = h // (NV // NK)
    c0, c1, c2, c3 = _running(g, first, rows, h, NV)
    r = tl.arange(0, 16)
    at = first + r
    tl.store(decay + at * NV + h, c0, mask=r < rows)
    tl.store(decay + (at + 16) * NV + h, c1, mask=r + 16 < rows)
    tl.store(decay + (at + 32) * NV + h, c2, mask=r + 32 < rows)
    tl.store(decay + (at + 48) * NV + h, c3, mask=r + 48 < rows)
    b0 = tl.load(beta + at * NV + h, mask=r < rows, other=0.0)
    b1 = tl.load(beta + (at + 16) * NV + h, mask=r + 16 < rows, other=0.0)
    b2 = tl.load(beta + (at + 32) * NV + h, mask=r + 32 < rows, other=0.0)
    b3 = tl.load(beta + (at + 48) * NV + h, mask=r + 48 < rows, other=0.0)
    k0 = _load_rows(k, first, rows, head, 0, NK, DK)
    k1 = _load_rows(k, first, rows, head, 1, NK, DK)
    k2 = _load_rows(k, first, rows, head, 2, NK, DK)
    k3 = _load_rows(k, first, rows, head, 3, NK, DK)
    x0 = _diagonal_inverse(k0, c0, b0)
    x1 = _diagonal_inverse(k1, c1, b1)
    x2 = _diagonal_inverse(k2, c2, b2)
    x3 = _diagonal_inverse(k3, c3, b3)
    a10 = _coupling(k1, k0, c1, c0, b1)
    a21 = _coupling(k2, k1, c2, c1, b2)
    a32 = _coupling(k3, k2, c3, c2, b3)
    a20 = _coupling(k2, k0, c2, c0, b2)
    a31 = _coupling(k3, k1, c3, c1, b3)
    a30 = _coupling(k3, k0, c3, c0, b3)
    y10 = -_dot(_dot(x1, a10), x0)
    y21 = -_dot(_dot(x2, a21), x1)
    y32 = -_dot(_dot(x3, a32), x2)
    y20 = -_dot(x2, _dot(a20, x0) + _dot(a21, y10))
    y31 = -_dot(x3, _dot(a31, x1) + _dot(a32, y21))
    y30 = -_dot(x3, _dot(a30, x0) + _dot(a31, y10) + _dot(a32, y20))
    zero = tl.zeros((16, 16), tl.float32)
    _store_block(inverse, x0 * b0[None, :], first, rows, h, 0, 0, NV, PARTS)
    _store_block(inverse, zero, first, rows, h, 0, 1, NV, PARTS)
    _store_block(inverse, zero, first, rows, h, 0, 2, NV, PARTS)
    _store_block(inverse, zero, first, rows, h, 0, 3, NV, PARTS)
    _store_block(inverse, y10 * b0[None, :], first, rows, h, 1, 0, NV, PARTS)
    _store_block(inverse, x1 * b1[None, :], first, rows, h, 1, 1, NV, PARTS)
    _store_block(inverse, zero, first, rows, h, 1, 2, NV, PARTS)
    _store_block(inverse, zero, first, rows, h, 1, 3, NV, PARTS)
    _store_block(inverse, y20 * b0[None, :], first, rows, h, 2, 0, NV, PARTS)
    _store_block(inverse, y21 * b1[None, :], first, rows, h, 2, 1, NV, PARTS)
    _store_block(inverse, x2 * b2[None, :], first, rows, h, 2, 2, NV, PARTS)
    _store_block(inverse, zero, first, rows, h, 2, 3, NV, PARTS)
    _store_block(inverse, y30 * b0[None, :], first, rows, h, 3, 0, NV, PARTS)
    _store_block(inverse, y31 * b1[None, :], first, rows, h, 3, 1, NV, PARTS)
    _store_block(inverse, y32 * b2[None, :], first, rows, h, 3, 2, NV, PARTS)
    _store_block(inverse, x3 * b3[None, :], first, rows, h, 3, 3, NV, PARTS)


@triton.jit
def _attend(qi, kj, ci, cj, scale):
    """Attention block strictly below the diagonal."""
    return _product(qi, kj) * tl.exp(tl.minimum(ci[:, None] - cj[None, :], 0.0)) * scale


@triton.jit
def _attend_diagonal(qi, ki, ci, scale):
    i = tl.arange(0, 16)[:, None]
    j = tl.arange(0, 16)[None, :]
    return _product(qi, ki) * tl.exp(tl.where(i >= j, ci[:, None] - ci[None, :], float("-inf"))) * scale


@triton.jit
def _attention(q, k, g, attention, first, rows, h, scale, NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, PARTS: tl.constexpr):
    head = h // (NV // NK)
    c0, c1, c2, c3 = _running(g, first, rows, h, NV)
    k0 = _load_rows(k, first, rows, head, 0, NK, DK)
    k1 = _load_rows(k, first, rows, head, 1, NK, DK)
    k2 = _load_rows(k, first, rows, head, 2, NK, DK)
    k3 = _load_rows(k, first, rows, head, 3, NK, DK)
    zero = tl.zeros((16, 16), tl.float32)
    q0 = _load_rows(q, first, rows, head, 0, NK, DK)
    _store_block(attention, _attend_diagonal(q0, k0, c0, scale), first, rows, h, 0, 0, NV, PARTS)
    _store_block(attention, zero, first, rows, h, 0, 1, NV, PARTS)
    _store_block(attention, zero, first, rows, h, 0, 2, NV, PARTS)
    _store_block(attention, zero, first, rows, h, 0, 3, NV, PARTS)
    q1 = _load_rows(q, first, rows, head, 1, NK, DK)
    _store_block(attention, _attend(q1, k0, c1, c0, scale), first, rows, h, 1, 0, NV, PARTS)
    _store_block(attention, _attend_diagonal(q1, k1, c1, scale), first, rows, h, 1, 1, NV, PARTS)
    _store_block(attention, zero, first, rows, h, 1, 2, NV, PARTS)
    _store_block(attention, zero, first, rows, h, 1, 3, NV, PARTS)
    q2 = _load_rows(q, first, rows, head, 2, NK, DK)
    _store_block(attention, _attend(q2, k0, c2, c0, scale), first, rows, h, 2, 0, NV, PARTS)
    _store_block(attention, _attend(q2, k1, c2, c1, scale), first, rows, h, 2, 1, NV, PARTS)
    _store_block(attention, _attend_diagonal(q2, k2, c2, scale), first, rows, h, 2, 2, NV, PARTS)
    _store_block(attention, zero, first, rows, h, 2, 3, NV, PARTS)
    q3 = _load_rows(q, first, rows, head, 3, NK, DK)
    _store_block(attention, _attend(q3, k0, c3, c0, scale), first, rows, h, 3, 0, NV, PARTS)
    _store_block(attention, _attend(q3, k1, c3, c1, scale), first, rows, h, 3, 1, NV, PARTS)
    _store_block(attention, _attend(q3, k2, c3, c2, scale), first, rows, h, 3, 2, NV, PARTS)
    _store_block(attention, _attend_diagonal(q3, k3, c3, scale), first, rows, h, 3, 3, NV, PARTS)
