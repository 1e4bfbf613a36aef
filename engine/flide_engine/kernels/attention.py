"""Fork attention: query tiles of one segment over its trunk's pages, then over the local ranges from root to leaf.

Order of every row's sum: trunk keys in blocks of 64 (float32: 32) at absolute positions, then each local ancestor's keys in such
blocks from its own first token, then its own segment's. Nothing else in the round, and no other row of the tile, enters it: a block
that a row does not see adds exact zeros. Histories are split at fixed positions (tiles.FIRST_SPLIT) and merged in ascending order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from flide_engine.kernels.early import launch, wait_for_previous
from flide_engine.kernels.fast_math import sigmoid
from flide_engine.kernels.language import tl, triton
from flide_engine.kernels.tiles import FIRST_SPLIT, MOST_SPANS, span_count

Tensor = Any
LOG2_E = 1.4426950408889634
READOUT_ROWS = 16
"""Rows of a readout tile: one token's group of query heads, padded to the smallest matrix tile."""
SHORT = 64 * 132
"""Query rows of a pass, counted once a span of keys, up to which its tiles are low: then they are no more than an H200 has
multiprocessors, and high ones would leave half of those idle. 0: never. Read at each launch; it changes no bits."""


@triton.jit
def _blend(dot, v, m, mass, acc, scale, PRECISION: tl.constexpr):
    """One block of keys into the running maximum, sum and output. dot: raw products, -inf where a key is not visible."""
    # The mask is put on `dot`, not on `dot * scale`: the product must meet its subtraction in one fused operation with and without it.
    top = tl.maximum(m, tl.max(dot, axis=1) * scale)
    p = tl.exp2(dot * scale - top[:, None])
    fade = tl.exp2(m - top)
    mass = mass * fade + tl.sum(p, axis=1)
    acc = acc * fade[:, None]
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return top, mass, acc


@triton.jit(do_not_specialize=["depth", "part_rows", "table_stride", "first_split", "always_mask"])
def _fork_attention(
    q, gate, k_local, v_local, k_pages, v_pages, k_blocks, v_blocks,
    tiles, seg_first_row, seg_len, seg_start, seg_kind, seg_hist, seg_table, seg_locals, page_table,
    out, part_acc, part_max, part_sum,
    gate_stride, v_stride, part_rows, table_stride, depth, first_split, always_mask, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, TOKENS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    MOST_SPANS: tl.constexpr, BULK: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) // KV_HEADS
    kv_head = tl.program_id(0) % KV_HEADS
    segment = tl.load(tiles + tile * 4)
    if segment < 0:
        if EARLY:
            wait_for_previous()
    else:
        first = tl.load(tiles + tile * 4 + 1)
        q_row = tl.load(tiles + tile * 4 + 2).to(tl.int64)
        span = tl.load(tiles + tile * 4 + 3)
        length = tl.load(seg_len + segment)
        start = tl.load(seg_start + segment)
        hist = tl.load(seg_hist + segment)
        trunk = tl.load(seg_kind + segment) == 0
        table = page_table + tl.load(seg_table + segment).to(tl.int64) * table_stride

        row = tl.arange(0, ROWS)
        token = row // GROUP
        head = kv_head * GROUP + row % GROUP
        d = tl.arange(0, D)
        n = tl.arange(0, KEYS)
        used = (token < TOKENS) & (first + token < length)
        q_at = (q_row + token) * (KV_HEADS * GROUP) + head
        if EARLY:
            wait_for_previous()
        query = tl.load(q + q_at[:, None] * D + d[None, :], mask=used[:, None], other=0.0)

        m = tl.full([ROWS], -1.0e30, tl.float32)  # finite, so that a row which sees no key of a block stays as it is
        mass = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, D], tl.float32)

        end = tl.minimum(first + TOKENS, length)
        # Trunk keys that a row sees; the tile reads up to `most`, and up to `least` every row sees every key.
        keys = tl.where(trunk, start + first + token + 1, hist)
        most = tl.where(trunk, start + end, hist)
        least = tl.where(trunk, start + first + 1, hist)
        low = tl.where(span == 0, 0, first_split << tl.maximum(span - 1, 0))
        high = tl.minimum(most, first_split << span)
        full = tl.maximum(low, tl.minimum(least // KEYS * KEYS, high))
        full = tl.where(always_mask != 0, low, full)
        for key in range(low, full, KEYS):
            page = tl.load(table + key // PAGE)
            if BULK:
                k = k_blocks.load([(page * KV_HEADS + kv_head) * PAGE + key % PAGE, 0])
                dot = tl.dot(query, tl.trans(k), input_precision=PRECISION)
                v = v_blocks.load([(page * KV_HEADS + kv_head) * PAGE + key % PAGE, 0])
            else:
                at = (page.to(tl.int64) * KV_HEADS + kv_head) * (PAGE * D) + (key % PAGE + n)[:, None] * D + d[None, :]
                k = tl.load(k_pages + at)
                dot = tl.dot(query, tl.trans(k), input_precision=PRECISION)
                v = tl.load(v_pages + at)
            m, mass, acc = _blend(dot, v, m, mass, acc, scale, PRECISION)
        for key in range(full, high, KEYS):
            page = tl.load(table + key // PAGE).to(tl.int64)
            at = (page * KV_HEADS + kv_head) * (PAGE * D) + (key % PAGE + n)[:, None] * D + d[None, :]
            k = tl.load(k_pages + at, mask=(key + n < most)[:, None], other=0.0)
            dot = tl.dot(query, tl.trans(k), input_precision=PRECISION)
            dot = tl.where((key + n)[None, :] < keys[:, None], dot, float("-inf"))
            v = tl.load(v_pages + at, mask=(key + n < most)[:, None], other=0.0)
            m, mass, acc = _blend(dot, v, m, mass, acc, scale, PRECISION)

        if (trunk == 0) & (span == span_count(most, first_split, MOST_SPANS) - 1):
            for ancestor in range(depth + 1):
                own = ancestor == depth
                at_range = seg_locals + (segment * depth + tl.minimum(ancestor, depth - 1)) * 2
                from_row = tl.where(own, tl.load(seg_first_row + segment), tl.load(at_range)).to(tl.int64)
                visible = tl.where(own, end, tl.load(at_range + 1))
                limit = tl.where(own, first + token + 1, visible)
                for key in range(0, visible, KEYS):
                    local_row = from_row + key + n
                    seen = (key + n < visible)[:, None]
                    k = tl.load(k_local + (local_row * KV_HEADS + kv_head)[:, None] * D + d[None, :], mask=seen, other=0.0)
                    dot = tl.dot(query, tl.trans(k), input_precision=PRECISION)
                    dot = tl.where((key + n)[None, :] < limit[:, None], dot, float("-inf"))
                    v = tl.load(v_local + local_row[:, None] * v_stride + (kv_head * D + d)[None, :], mask=seen, other=0.0)
                    m, mass, acc = _blend(dot, v, m, mass, acc, scale, PRECISION)

        spans = span_count(keys, first_split, MOST_SPANS)
        done = used & (spans + span == 1)
        gates = tl.load(
            gate + (q_row + token)[:, None] * gate_stride + head[:, None] * (2 * D) + d[None, :], mask=done[:, None], other=0.0
        ).to(tl.float32)
        value = acc * (1.0 / tl.where(mass > 0, mass, 1.0))[:, None] * sigmoid(gates)
        tl.store(out + q_at[:, None] * D + d[None, :], value.to(out.dtype.element_ty), mask=done[:, None])
        if span_count(most, first_split, MOST_SPANS) > 1:
            partial = used & (spans > 1) & (span < spans)
            at_part = span.to(tl.int64) * part_rows * (KV_HEADS * GROUP) + q_at
            tl.store(part_acc + at_part[:, None] * D + d[None, :], acc, mask=partial[:, None])
            tl.store(part_max + at_part, m, mask=partial)
            tl.store(part_sum + at_part, mass, mask=partial)


@triton.jit(do_not_specialize=["part_rows", "first_split"])
def _merge_spans(
    gate, rows, row_segment, positions, seg_kind, seg_hist, part_acc, part_max, part_sum, out, gate_stride, part_rows, first_split,
    HAS_ROWS: tl.constexpr, HEADS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, MOST_SPANS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    stream_row = row
    if HAS_ROWS:
        stream_row = tl.load(rows + row).to(tl.int64)
    segment = tl.load(row_segment + stream_row)
    if segment >= 0:
        keys = tl.where(tl.load(seg_kind + segment) == 0, tl.load(positions + stream_row) + 1, tl.load(seg_hist + segment))
        spans = span_count(keys, first_split, MOST_SPANS)
        if spans > 1:
            head = tl.arange(0, H)
            d = tl.arange(0, D)
            inside = head < HEADS
            m = tl.full([H], -1.0e30, tl.float32)
            mass = tl.zeros([H], tl.float32)
            acc = tl.zeros([H, D], tl.float32)
            for span in range(spans):
                at = (row + tl.cast(part_rows, tl.int64) * span) * HEADS + head
                part_m = tl.load(part_max + at, mask=inside, other=-1.0e30)
                top = tl.maximum(m, part_m)
                fade = tl.exp2(m - top)
                weight = tl.exp2(part_m - top)
                mass = mass * fade + tl.load(part_sum + at, mask=inside, other=0.0) * weight
                part = tl.load(part_acc + at[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
                acc = acc * fade[:, None] + part * weight[:, None]
                m = top
            gates = tl.load(gate + row * gate_stride + head[:, None] * (2 * D) + d[None, :], mask=inside[:, None], other=0.0)
            value = acc * (1.0 / tl.where(mass > 0, mass, 1.0))[:, None] * sigmoid(gates.to(tl.float32))
            tl.store(out + (row * HEADS + head)[:, None] * D + d[None, :], value.to(out.dtype.element_ty), mask=inside[:, None])


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Launch shape of fork attention, chosen by head size, dtype, GPU and how much a pass has of it; never by what is in the round.

    rows: query rows of a tile. keys: keys of a block, which divides a page. bulk: read whole pages by Hopper's bulk copy engine.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    bulk: bool = False

    def tokens(self, group: int) -> int:
        """Query tokens of a tile: the group's heads are packed into its rows."""
        return self.rows // group


def attention_config(head_dim: int, element_size: int, query_rows: int, *, bulk: bool = False) -> AttentionConfig:
    """The configuration of a (head size, dtype); wide heads in 16-bit types have two, high tiles for long passes and low ones for short
    ones, with the same bits. Every one that can come out is among those the GPU suite checks.

    query_rows: of the pass: rows (its capacity) times heads times spans of keys.
    bulk: the GPU has the bulk copy engine (compute capability 9.0). It changes no bits.
    """
    return _config(head_dim, element_size, query_rows <= SHORT, bulk)


@functools.cache
def _config(head_dim: int, element_size: int, short: bool, bulk: bool) -> AttentionConfig:
    if element_size == 4:
        return AttentionConfig(64, 32, 4 if head_dim <= 64 else 8, 1)
    if head_dim <= 64:
        return AttentionConfig(64, 64, 4, 2)
    if short:
        return AttentionConfig(64, 64, 4, 2, bulk)
    return AttentionConfig(128, 64, 8, 2, bulk)


def readout_config(head_dim: int, element_size: int) -> AttentionConfig:
    """The same for readout rows, one token a tile."""
    return AttentionConfig(READOUT_ROWS, 32, 4, 1) if element_size == 4 else AttentionConfig(READOUT_ROWS, 64, 4, 2)


@dataclass(frozen=True, slots=True)
class Segments:
    """The plan's segment arrays on the device (int32, shapes in RoundPlan)."""

    first_row: Tensor
    length: Tensor
    start: Tensor
    kind: Tensor
    hist: Tensor
    table: Tensor
    locals: Tensor
    page_table: Tensor


@dataclass(frozen=True, slots=True)
class Partials:
    """float32 scratch of rows whose history has more than one span: acc [spans, N, heads, D], maximum and sum [spans, N, heads]."""

    acc: Tensor
    maximum: Tensor
    sum: Tensor


def fork_attention(
    q: Tensor, gate: Tensor, k_local: Tensor, v_local: Tensor, k_pages: Tensor, v_pages: Tensor, tiles: Tensor, segments: Segments,
    out: Tensor, partials: Partials, *, config: AttentionConfig, tokens_a_tile: int, scale: float, first_split: int = FIRST_SPLIT,
    blocks: tuple[Any, Any] | None = None, always_mask: bool = False, early: bool = False,
) -> None:  # fmt: skip
    """out[i, h] = sigmoid(gate) * attention of query row i over its trunk and local ranges; rows with several spans go to partials.

    q: [N, heads, D] rotated queries. gate: [N, >= 2 * heads * D] view that starts at head 0's gate (stride 2 D from head to head).
    k_local: [T, kv_heads, D]. v_local: [T, >= kv_heads * D], row stride free. k_pages, v_pages: [pages, kv_heads, 64, D].
    tiles: build_tiles' (N = T) or build_readout_tiles' table (N = readouts). segments.locals: [S, depth >= 1, 2].
    out: [N, heads, D]. D a power of two from 16. scale: of the raw products (natural exponent).
    Softmax in float32 by exp2; weights are rounded to the activation dtype before they meet V, their sum is not.
    blocks: bulk-copy descriptors of the pages seen as [pages * kv_heads * 64, D], blocks of 64 rows; needed when config.bulk.
    always_mask: mask blocks that need none; the bits do not change (tested). early: see kernels.early; tiles must have been there when the
    kernel before began.
    """
    count, heads, dim = out.shape
    kv_heads = k_local.shape[1]
    if dim & (dim - 1) or dim < 16:
        raise ValueError(f"head size {dim} is no power of two from 16")
    if tiles.shape[0] == 0:
        return
    k_blocks, v_blocks = blocks if blocks is not None else (k_pages, v_pages)
    _fork_attention[(tiles.shape[0] * kv_heads,)](
        q, gate, k_local, v_local, k_pages, v_pages, k_blocks, v_blocks,
        tiles, segments.first_row, segments.length, segments.start, segments.kind, segments.hist, segments.table, segments.locals,
        segments.page_table, out, partials.acc, partials.maximum, partials.sum,
        gate.stride(0), v_local.stride(0), count, segments.page_table.stride(0), segments.locals.shape[1], first_split, int(always_mask),
        scale * LOG2_E,
        KV_HEADS=kv_heads, GROUP=heads // kv_heads, TOKENS=tokens_a_tile, D=dim, ROWS=config.rows, KEYS=config.keys,
        PAGE=k_pages.shape[2], MOST_SPANS=MOST_SPANS, BULK=config.bulk and blocks is not None,
        PRECISION="tf32x3" if q.element_size() == 4 else "tf32", num_warps=config.warps, num_stages=config.stages,
        **launch(early),
    )  # fmt: skip


def merge_spans(
    gate: Tensor, row_segment: Tensor, positions: Tensor, segments: Segments, partials: Partials, out: Tensor, *,
    rows: Tensor | None = None, first_split: int = FIRST_SPLIT,
) -> None:  # fmt: skip
    """out rows whose history has several spans, from their partials in ascending order. Others are left as they are.

    rows: [N] int32 stream rows of out's rows (None: i). Needed only when the round has a row with several spans.
    """
    count, heads, dim = out.shape
    if count:
        _merge_spans[(count,)](
            gate, rows, row_segment, positions, segments.kind, segments.hist, partials.acc, partials.maximum, partials.sum, out,
            gate.stride(0), count, first_split, HAS_ROWS=rows is not None, HEADS=heads, H=triton.next_power_of_2(heads), D=dim,
            MOST_SPANS=MOST_SPANS, num_warps=4,
        )  # fmt: skip
