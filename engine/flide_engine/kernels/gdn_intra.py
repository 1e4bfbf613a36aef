"""Gated DeltaNet inside a chunk: everything that does not need the state, for all chunks of all segments in one launch.

With G the running sum of g within the chunk, row i of a chunk of value head h needs

    inverse[i, j]   = (I + A)^-1[i, j] * beta_j,  A[i, j] = beta_i (k_i . k_j) exp(G_i - G_j) for j < i
    attention[i, j] = key_dim^-0.5 (q_i . k_j) exp(G_i - G_j) for j <= i

(Yang et al., Gated Delta Networks, 2024, in the form that applies the inverse inside the scan, which keeps the cancellation
v - K S in float32.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from flide_engine.kernels.early import launch, let_next_start, wait_for_previous
from flide_engine.kernels.gdn_chunks import CHUNK, Chunks, Tiles, core_dtype, tile_descriptor
from flide_engine.kernels.language import tl, triton

INTRA = {"num_warps": 4, "maxnreg": 128}
"""How the kernel is launched: fixed, so that no sum's order depends on the round; measured on an H200."""


class IntraOut(NamedTuple):
    """What the scan and the branch kernel read beside the tiles.

    grown, rest: [C, value_heads, 64] float32: exp(G_i), what is left in row i of the chunk's first state, and exp(G_63 - G_i), what
    is left of row i at the chunk's end; G is flat behind the segment's end. inverse, attention: [C, value_heads, 64, 64] core
    dtype, zero above the diagonal and in columns behind the segment's end.
    """

    grown: Any
    rest: Any
    inverse: Any
    attention: Any


def empty_intra(capacity: int, value_heads: int, activations: torch.dtype, device: torch.device) -> IntraOut:
    """Buffers for `capacity` chunks. gdn_intra writes every element of a used chunk."""
    core = core_dtype(activations)
    return IntraOut(
        torch.empty(capacity, value_heads, CHUNK, dtype=torch.float32, device=device),
        torch.empty(capacity, value_heads, CHUNK, dtype=torch.float32, device=device),
        torch.empty(capacity, value_heads, CHUNK, CHUNK, dtype=core, device=device),
        torch.empty(capacity, value_heads, CHUNK, CHUNK, dtype=core, device=device),
    )


def gdn_intra(tiles: Tiles, chunks: Chunks, out: IntraOut, *, early: bool = False) -> IntraOut:
    """Running decays, triangular inverse and attention of every used chunk.

    tiles: contiguous, as conv_gate leaves them, g <= 0, key_dim a power of two >= 16. Value head h uses key head h // (value_heads
    / key_heads).

    early: see kernels.early; the kernel before is then conv_gate's.

    Products of q and k accumulate in float32. Decay differences are masked before exp. The inverse is taken by steps that are as
    stable as substitution (repeated keys with beta near 1 are the worst case).
    """
    capacity, key_heads, _, key_dim = tiles.k.shape
    value_heads = tiles.g.shape[1]
    if value_heads % key_heads:
        raise ValueError(f"{value_heads} value heads are no multiple of {key_heads} key heads")
    _gdn_intra[(capacity, value_heads)](
        tile_descriptor(tiles.q, CHUNK), tile_descriptor(tiles.k, CHUNK), tiles.g, tiles.beta,
        out.grown, out.rest, out.inverse, out.attention, chunks.table, key_dim**-0.5,
        NK=key_heads, NV=value_heads, HALF=tiles.k.dtype == torch.float16, **INTRA, **launch(early),
    )  # fmt: skip
    return out


@triton.jit
def _gdn_intra(
    q, k, g, beta, grown, rest, inverse, attention, table, scale,
    NK: tl.constexpr, NV: tl.constexpr, HALF: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, value heads)."""
    chunk = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    segment = tl.load(table + chunk * 2)
    if EARLY:
        wait_for_previous()
        let_next_start()
    if segment < 0:
        return
    i = tl.arange(0, 64)
    shared = (tl.program_id(0) * NK + h // (NV // NK)) * 64
    keys = k.load([shared, 0])
    queries = q.load([shared, 0])
    at = (chunk * NV + h) * 64 + i
    # exp(-110) is 0 in float32: the clamp changes no decay but keeps the sums small, so that their differences stay exact
    total = tl.cumsum(tl.maximum(tl.load(g + at), -110.0), 0)
    strength = tl.load(beta + at)
    tl.store(grown + at, tl.exp(total))
    last = tl.sum(tl.where(i == 63, total, 0.0), 0)
    tl.store(rest + at, tl.exp(last - total))
    fade = tl.exp(tl.where(i[:, None] >= i[None, :], total[:, None] - total[None, :], float("-inf")))
    square = (chunk * NV + h) * (64 * 64) + i[:, None] * 64 + i[None, :]
    scores = tl.dot(queries, tl.trans(keys), input_precision="tf32x3")
    tl.store(attention + square, (scores * fade * scale).to(attention.dtype.element_ty))
    coupling = tl.dot(keys, tl.trans(keys), input_precision="tf32x3")
    coupling = tl.where(i[:, None] > i[None, :], coupling * fade * strength[:, None], 0.0)
    x = _unit_inverse(coupling, HALF)
    tl.store(inverse + square, (x * strength[None, :]).to(inverse.dtype.element_ty))


@triton.jit
def _halves(a):
    """(high, low) float16 with high + low = a to 22 bits, for float32 a of order 1.

    Rounded on the bits: a conversion whose result is also needed in float32 costs sixteen times as much on Hopper.
    """
    high = ((a.to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True)
    return high.to(tl.float16), (a - high).to(tl.float16)


@triton.jit
def _near_dot(a, b, HALF: tl.constexpr):
    """a @ b of float32 tiles in near float32: three float16 products without that of the low parts, or tf32 in three passes."""
    if HALF:
        a_high, a_low = _halves(a)
        b_high, b_low = _halves(b)
        out = tl.dot(a_low, b_high)
        out = tl.dot(a_high, b_low, out)
        out = tl.dot(a_high, b_high, out)
    else:
        out = tl.dot(a, b, input_precision="tf32x3")
    return out


@triton.jit
def _double(x, a, i, j, W: tl.constexpr, HALF: tl.constexpr):
    """From inverses of W-blocks on the diagonal to those of 2 W-blocks: the new corner is -X22 A21 X11."""
    below = tl.where((i // (2 * W) == j // (2 * W)) & (i // W != j // W), a, 0.0)
    return x - _near_dot(_near_dot(x, below, HALF), x, HALF)


@triton.jit
def _unit_inverse(a, HALF: tl.constexpr):
    """(I + a)^-1 of strictly lower a [64, 64].

    Diagonal blocks of 16 by doubling, in near float32; with D their inverses and L the rest of a, N = D L has N^4 = 0, so that
    (I + a)^-1 = (I - N)(I + N^2) D, with operands of the core dtype, to which the result is rounded anyway.
    """
    i = tl.arange(0, 16)[None, :, None]
    j = tl.arange(0, 16)[None, None, :]
    block = tl.arange(0, 4)
    own = (block[:, None] == block[None, :])[:, None, :, None]
    blocks = tl.reshape(a, (4, 16, 4, 16))
    d = tl.sum(tl.where(own, blocks, 0.0), 2)
    x = tl.where(i == j, 1.0, 0.0) - tl.where(i // 2 == j // 2, d, 0.0)
    x = _double(x, d, i, j, 2, HALF)
    x = _double(x, d, i, j, 4, HALF)
    x = _double(x, d, i, j, 8, HALF)
    core = tl.float16 if HALF else tl.float32
    x = tl.reshape(tl.where(own, x[:, :, None, :], 0.0), (64, 64))
    n = tl.dot(x.to(core), tl.reshape(tl.where(own, 0.0, blocks), (64, 64)).to(core), input_precision="tf32x3").to(core)
    square = tl.dot(n, n, input_precision="tf32x3").to(core)
    x = tl.dot(square, x.to(core), x, input_precision="tf32x3")
    return x - tl.dot(n, x.to(core), input_precision="tf32x3")
