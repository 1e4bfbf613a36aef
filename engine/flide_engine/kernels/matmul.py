"""x @ w.T with one order of summation whatever the number of rows: for shapes whose library product has none."""

from __future__ import annotations

from typing import Any

from flide_engine.kernels.language import tl, triton

Tensor = Any
BLOCK_M, BLOCK_N, BLOCK_K = 128, 128, 64
GROUP_M = 8


@triton.jit(do_not_specialize=["rows"])
def _fixed_order(
    x, w, out, rows, x_stride,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    tiles_m = tl.cdiv(rows, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = program // (GROUP_M * tiles_n)
    height = min(tiles_m - group * GROUP_M, GROUP_M)
    tile_m = group * GROUP_M + (program % (GROUP_M * tiles_n)) % height
    tile_n = (program % (GROUP_M * tiles_n)) // height
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    w_at = w + n.to(tl.int64)[None, :] * K + k[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(x_at + start, mask=(m < rows)[:, None] & (k < K - start)[None, :], other=0.0)
        b = tl.load(w_at + start, mask=(n < N)[None, :] & (k < K - start)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    at = out + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (n < N)[None, :])


def fixed_order_matmul(x: Tensor, w: Tensor, out: Tensor) -> None:
    """out = x @ w.T, float32 accumulation over K in ascending blocks, whatever the number of rows.

    x: [M, K], rows contiguous in K. w: [N, K] contiguous. out: [M, N] contiguous. One dtype, bfloat16 or float32; float32 is
    exact IEEE (no TF32).
    """
    rows, k = x.shape
    n = w.shape[0]
    if rows == 0:
        return
    small = x.element_size() == 4  # float32 tiles of the full size would not fit beside their operands
    block_m, block_n, block_k = (64, 64, 32) if small else (BLOCK_M, BLOCK_N, BLOCK_K)
    grid = (triton.cdiv(rows, block_m) * triton.cdiv(n, block_n),)
    _fixed_order[grid](
        x, w, out, rows, x.stride(0), N=n, K=k, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=GROUP_M,
        num_warps=4 if small else 8, num_stages=2 if small else 3,
    )  # fmt: skip
