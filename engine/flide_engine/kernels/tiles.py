"""Attention's tile table, built on the device from segment lengths alone: no host loop, no synchronisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from flide_engine.kernels.language import tl, triton

Tensor = Any
BLOCK = 128
MOST_SPANS = 8
"""With spans of 8,192 keys that double from the second on, 8 reach 1,048,576 keys."""
FIRST_SPLIT = 8192
"""History is split at this position and at every doubling of it: absolute positions, so a row's sums never depend on the round."""


def spans_of(keys: Any, first_split: int = FIRST_SPLIT) -> Any:
    """Number of key spans of a row (numpy array or int) that sees `keys` trunk tokens."""
    keys = np.asarray(keys)
    return 1 + sum(((first_split << i) < keys).astype(np.int64) for i in range(MOST_SPANS - 1))


def segment_spans(seg_len: Any, seg_start: Any, seg_kind: Any, seg_hist: Any, first_split: int = FIRST_SPLIT) -> Any:
    """Key spans of each segment's last row, from a plan's numpy arrays."""
    return spans_of(np.where(np.asarray(seg_kind) == 0, np.asarray(seg_start) + seg_len, seg_hist), first_split)


def tile_capacity(
    seg_len: Any, seg_start: Any, seg_kind: Any, seg_hist: Any, tokens_a_tile: int, first_split: int = FIRST_SPLIT
) -> tuple[int, int]:
    """(entries of the tile table, most spans of a row) of a plan, from its numpy arrays."""
    spans = segment_spans(seg_len, seg_start, seg_kind, seg_hist, first_split)
    return int((-(-np.asarray(seg_len) // tokens_a_tile) * spans).sum()), int(spans.max(initial=1))


@triton.jit
def span_count(keys, first_split, MOST_SPANS: tl.constexpr):
    spans = keys * 0 + 1
    for i in tl.static_range(MOST_SPANS - 1):
        spans += ((first_split << i) < keys).to(tl.int32)
    return spans


@triton.jit(do_not_specialize=["segments", "first_split"])
def _tile_pointers(
    seg_len, seg_start, seg_kind, seg_hist, tile_ptr, segments, first_split,
    TOKENS: tl.constexpr, MOST_SPANS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    total = 0
    tl.store(tile_ptr, 0)
    for start in range(0, segments, BLOCK):
        s = start + tl.arange(0, BLOCK)
        inside = s < segments
        length = tl.load(seg_len + s, mask=inside, other=0)
        trunk = tl.load(seg_kind + s, mask=inside, other=0) == 0
        keys = tl.where(
            trunk, tl.load(seg_start + s, mask=inside, other=0) + length, tl.load(seg_hist + s, mask=inside, other=0)
        )
        entries = (length + TOKENS - 1) // TOKENS * span_count(keys, first_split, MOST_SPANS)
        entries = tl.where(inside, entries, 0)
        tl.store(tile_ptr + 1 + s, total + tl.cumsum(entries, axis=0), mask=inside)
        total += tl.sum(entries, axis=0)


@triton.jit(do_not_specialize=["segments", "capacity", "first_split"])
def _fill_tiles(
    seg_first_row, seg_len, seg_start, seg_kind, seg_hist, tile_ptr, tiles, weights, segments, capacity, first_split,
    TOKENS: tl.constexpr, MOST_SPANS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < capacity
    low = tl.zeros([BLOCK], tl.int32)
    high = low + segments
    # tile_ptr[low] <= entry < tile_ptr[high] unless entry is past the last tile; 24 halvings reach 16 million segments
    for _ in range(24):
        middle = (low + high) // 2
        right = tl.load(tile_ptr + middle) <= entry
        low = tl.where(right & (middle > low), middle, low)
        high = tl.where(right, high, middle)
    used = inside & (entry < tl.load(tile_ptr + segments))
    s = tl.where(used, low, 0)
    within = entry - tl.load(tile_ptr + s)
    length = tl.load(seg_len + s)
    start = tl.load(seg_start + s)
    trunk = tl.load(seg_kind + s) == 0
    count = tl.maximum((length + TOKENS - 1) // TOKENS, 1)
    first = within % count * TOKENS
    span = within // count
    end = tl.minimum(first + TOKENS, length)
    keys = tl.where(trunk, start + end, tl.load(seg_hist + s))
    span_low = tl.where(span == 0, 0, first_split << tl.maximum(span - 1, 0))
    span_high = tl.minimum(keys, first_split << span)
    used = used & ((span == 0) | (span_low < keys))
    last = span == span_count(keys, first_split, MOST_SPANS) - 1
    weight = (span_high - span_low + 63) // 64 + tl.where(last & (trunk == 0), (end + 63) // 64, 0)
    at = tiles + entry * 4
    tl.store(at, tl.where(used, s, -1), mask=inside)
    tl.store(at + 1, first, mask=inside)
    tl.store(at + 2, tl.load(seg_first_row + s) + first, mask=inside)
    tl.store(at + 3, span, mask=inside)
    tl.store(weights + entry, tl.where(used, weight, -1), mask=inside)


@triton.jit(do_not_specialize=["capacity"])
def _heaviest_first(tiles, weights, ordered, capacity, BLOCK: tl.constexpr):
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < capacity
    weight = tl.load(weights + entry, mask=inside, other=-2)
    rank = tl.zeros([BLOCK], tl.int32)
    for start in range(0, capacity, BLOCK):
        other = start + tl.arange(0, BLOCK)
        heavier = tl.load(weights + other, mask=other < capacity, other=-3)
        before = (heavier[None, :] > weight[:, None]) | (
            (heavier[None, :] == weight[:, None]) & (other[None, :] < entry[:, None])
        )
        rank += tl.sum(before.to(tl.int32), axis=1)
    for i in tl.static_range(4):
        tl.store(ordered + rank * 4 + i, tl.load(tiles + entry * 4 + i, mask=inside, other=0), mask=inside)


@triton.jit(do_not_specialize=["capacity", "spans", "first_split"])
def _readout_tiles(
    readout_row, row_segment, seg_first_row, seg_start, seg_kind, seg_hist, count, tiles, capacity, spans, first_split,
    MOST_SPANS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < tl.load(count) * spans
    readout = tl.where(inside, entry // spans, 0)
    span = entry % spans
    row = tl.load(readout_row + readout)
    s = tl.maximum(tl.load(row_segment + row), 0)
    first = row - tl.load(seg_first_row + s)
    trunk = tl.load(seg_kind + s) == 0
    keys = tl.where(trunk, tl.load(seg_start + s) + first + 1, tl.load(seg_hist + s))
    used = inside & (span < span_count(keys, first_split, MOST_SPANS))
    at = tiles + entry * 4
    tl.store(at, tl.where(used, s, -1), mask=entry < capacity)
    tl.store(at + 1, first, mask=entry < capacity)
    tl.store(at + 2, readout, mask=entry < capacity)
    tl.store(at + 3, span, mask=entry < capacity)


def build_tiles(
    seg_first_row: Tensor, seg_len: Tensor, seg_start: Tensor, seg_kind: Tensor, seg_hist: Tensor, *, tile_ptr: Tensor,
    unordered: Tensor, weights: Tensor, tiles: Tensor, tokens_a_tile: int, first_split: int = FIRST_SPLIT,
) -> None:  # fmt: skip
    """tiles[i] = (segment, first token in the segment, first query row, key span), heaviest first; segment -1: unused.

    seg_*: [S] int32 of the plan. tiles, unordered: [C, 4] int32 with C at least tile_capacity's first number; weights: [C] and
    tile_ptr: [S + 1] int32 scratch. Every (tile of `tokens_a_tile` query rows, span of keys) appears exactly once.
    """
    segments, capacity = seg_len.shape[0], tiles.shape[0]
    if capacity == 0:
        return
    options = {"TOKENS": tokens_a_tile, "MOST_SPANS": MOST_SPANS, "BLOCK": BLOCK, "num_warps": 4}
    _tile_pointers[(1,)](seg_len, seg_start, seg_kind, seg_hist, tile_ptr, segments, first_split, **options)
    grid = (triton.cdiv(capacity, BLOCK),)
    _fill_tiles[grid](
        seg_first_row,
        seg_len,
        seg_start,
        seg_kind,
        seg_hist,
        tile_ptr,
        unordered,
        weights,
        segments,
        capacity,
        first_split,
        **options,
    )
    _heaviest_first[grid](unordered, weights, tiles, capacity, BLOCK=BLOCK, num_warps=8)


def build_readout_tiles(
    readout_row: Tensor, row_segment: Tensor, seg_first_row: Tensor, seg_start: Tensor, seg_kind: Tensor, seg_hist: Tensor, *,
    count: Tensor, tiles: Tensor, spans: int, first_split: int = FIRST_SPLIT,
) -> None:  # fmt: skip
    """The same table for single query rows: entry r * spans + s is readout r over span s; its query row is r.

    count: [1] int32 on the device, readouts in use. tiles: [C, 4] int32, C at least count * spans; unused entries get segment -1.
    """
    capacity = tiles.shape[0]
    if capacity:
        _readout_tiles[(triton.cdiv(capacity, BLOCK),)](
            readout_row, row_segment, seg_first_row, seg_start, seg_kind, seg_hist, count, tiles, capacity, spans,
            first_split, MOST_SPANS=MOST_SPANS, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
