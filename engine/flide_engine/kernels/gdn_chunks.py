"""Chunks: how the rows of a stream lie for Gated DeltaNet.

A chunk is 64 rows of one segment, counted from the segment's first row, so a trunk's chunks sit on the absolute grid and a
branch's start at its fork. Between the convolution and the output everything is stored by chunk, [chunk, head, 64, ...], with
zeros behind a segment's end: the delta rule's kernels then read whole aligned tiles without a mask, and rows of one segment never
meet those of another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from flide_engine.kernels.language import TensorDescriptor, tl, triton

CHUNK = 64


class Chunks(NamedTuple):
    """table: [C, 2] int32 (segment, index of the chunk in it), segments in order, unused entries (-1, 0).

    first: [S] int32, the chunk that each segment starts with.
    """

    table: Any
    first: Any


class Tiles(NamedTuple):
    """What the convolution leaves for the delta rule, by chunk, in the core dtype; rows behind a segment's end are zero.

    q, k: [C, key_heads, 64, key_dim], l2-normalised (q not yet scaled). v: [C, value_heads, value_dim, 64], which is how the scan
    takes it. g, beta: [C, value_heads, 64] float32: log decay -exp(A_log) * softplus(a + dt_bias) and write strength sigmoid(b).
    """

    q: Any
    k: Any
    v: Any
    g: Any
    beta: Any


def core_dtype(activations: torch.dtype) -> torch.dtype:
    """The dtype of the delta rule's matrix operands (it accumulates, and keeps the state, in float32).

    float16 for 16-bit models, bf16 ones too: q and k have norm 1, the inverse and the attention are of order 1, and v, the state and
    the deltas stay within activations' size, so float16's range (65,504) is ample and its three more bits cut the core's error to a
    quarter of what rounding q, k and v to bf16 alone costs, with one product where bf16 would need three.
    """
    return torch.float32 if activations == torch.float32 else torch.float16


def chunk_capacity(rows: int, segments: int) -> int:
    """Most chunks that `segments` segments over `rows` rows can have."""
    return -(-rows // CHUNK) + segments


def empty_chunks(capacity: int, segments: int, device: torch.device) -> Chunks:
    return Chunks(
        torch.full((capacity, 2), -1, dtype=torch.int32, device=device),
        torch.zeros(segments, dtype=torch.int32, device=device),
    )


def empty_tiles(
    capacity: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    activations: torch.dtype,
    device: torch.device,
) -> Tiles:
    """Buffers for `capacity` chunks of a model with the given activation dtype. conv_gate writes every row of a used chunk."""
    core = core_dtype(activations)
    return Tiles(
        torch.empty(capacity, key_heads, CHUNK, key_dim, dtype=core, device=device),
        torch.empty(capacity, key_heads, CHUNK, key_dim, dtype=core, device=device),
        torch.empty(capacity, value_heads, value_dim, CHUNK, dtype=core, device=device),
        torch.empty(capacity, value_heads, CHUNK, dtype=torch.float32, device=device),
        torch.empty(capacity, value_heads, CHUNK, dtype=torch.float32, device=device),
    )


def tile_descriptor(tiles: torch.Tensor, rows: int) -> Any:
    """A tensor descriptor over [C, heads, n, width] whose block is `rows` of a tile's n rows, read by the copy engine on Hopper."""
    flat = tiles.view(-1, tiles.shape[3])
    return TensorDescriptor.from_tensor(flat, [rows, flat.shape[1]])


def fill_chunks(seg_len: torch.Tensor, chunks: Chunks) -> Chunks:
    """Write the chunk tables of segments of the given lengths (int32 [S], zeros allowed), on the device and without a synchronisation.

    chunks.table must have at least chunk_capacity(rows, S) entries.
    """
    segments = seg_len.shape[0]
    if segments:
        _fill_chunks[(segments,)](
            seg_len, chunks.table, chunks.first, segments, chunks.table.shape[0], CHUNK=CHUNK, BLOCK=128, num_warps=4
        )
    else:
        chunks.table.fill_(-1)
    return chunks


@triton.jit
def _fill_chunks(seg_len, table, first_chunk, segments, capacity, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """One program a segment writes its chunks; the last one also marks the unused entries."""
    segment = tl.program_id(0)
    first = 0
    lane = tl.arange(0, BLOCK)
    for block in range(0, segment, BLOCK):
        n = tl.load(seg_len + block + lane, mask=block + lane < segment, other=0)
        first += tl.sum((n + CHUNK - 1) // CHUNK, 0)
    count = (tl.load(seg_len + segment) + CHUNK - 1) // CHUNK
    tl.store(first_chunk + segment, first)
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
