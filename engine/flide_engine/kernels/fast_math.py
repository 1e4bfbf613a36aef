"""SiLU and sigmoid in four or five instructions: base-2 exponential and reciprocal of the special-function unit, without the code for
denormal results.

Triton's own exp and division keep denormals, which costs a convolution over a stream as much as its four taps. Each step is within 2 ulp;
results below 1e-37 become zero. Triton's interpreter runs the plain formula.
"""

from __future__ import annotations

import os
from typing import Any

from flide_engine.kernels.language import tl, triton

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1") if tl is not None else None
ONE_PLUS = "mul.ftz.f32 e, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 e, e; add.ftz.f32 e, e, 0f3F800000;"  # e = 1 + exp(-x)


def _code(last: str) -> Any:
    """PTX that ends with what makes the result of e."""
    return tl.constexpr(f"{{ .reg .f32 e; {ONE_PLUS} {last} }}") if tl is not None else None


SILU = _code("rcp.approx.ftz.f32 e, e; mul.ftz.f32 $0, $1, e;")
SIGMOID = _code("rcp.approx.ftz.f32 $0, e;")


@triton.jit
def _run(code: tl.constexpr, x):
    """PTX from one float32 register to another."""
    return tl.inline_asm_elementwise(code, "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def silu(x):
    """x / (1 + exp(-x)) of float32 x."""
    if INTERPRETED:
        y = x / (1.0 + tl.exp(-x))
    else:
        y = _run(SILU, x)
    return y


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) of float32 x."""
    if INTERPRETED:
        y = 1.0 / (1.0 + tl.exp(-x))
    else:
        y = _run(SIGMOID, x)
    return y
