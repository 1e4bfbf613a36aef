"""SiLU(gate) * up over the fused product's rows."""

from __future__ import annotations

from typing import Any

from flide_engine.kernels.early import launch, wait_for_previous
from flide_engine.kernels.fast_math import silu
from flide_engine.kernels.language import tl, triton

Tensor = Any
BLOCK = 1024


@triton.jit
def _silu_mul(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate = tl.load(gate_up + row * (2 * WIDTH) + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * WIDTH) + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    y = silu(gate) * up
    tl.store(out + row * WIDTH + column, y.to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor, out: Tensor, *, early: bool = False) -> None:
    """out[i, j] = silu(gate_up[i, j]) * gate_up[i, W + j].

    gate_up: [N, 2 W] contiguous, gate first. out: [N, W] of the same dtype. float32 inside, one rounding. early: see kernels.early.
    """
    count, width = out.shape
    if count:
        grid = (count, triton.cdiv(width, BLOCK))
        _silu_mul[grid](gate_up, out, WIDTH=width, BLOCK=BLOCK, num_warps=4, **launch(early))
