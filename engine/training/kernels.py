"""The inverse of many small triangular matrices, in one pass over memory on a GPU."""

from __future__ import annotations

import torch
from flide_engine.kernels.language import tl, triton
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _invert(lower, out, N: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """One matrix a program: the inverses of ever larger diagonal blocks, joined two by two."""
    row = tl.arange(0, N)
    at = tl.program_id(0).to(tl.int64) * N * N + row[:, None] * N + row[None, :]
    x = tl.load(lower + at)
    found = tl.where(row[:, None] == row[None, :], 1.0, 0.0)
    for i in tl.static_range(6):  # blocks of 1, 2, ... 32 rows
        block, other = row[:, None] >> i, row[None, :] >> i
        part = tl.where((block % 2 == 1) & (other + 1 == block), x, 0.0)
        found -= tl.dot(tl.dot(found, part, input_precision=PRECISION), found, input_precision=PRECISION)
    tl.store(out + at, found)


_usable = True


def disable() -> None:
    """Use the products of the library instead, from now on."""
    global _usable
    _usable = False


def invert(lower: Tensor) -> Tensor:
    """(I + lower)^-1 of strictly lower [..., n, n] float32, n a power of two; as stable as substitution. No gradient."""
    if lower.device.type == "cuda" and lower.shape[-1] == 64 and _usable:
        return on_gpu(lower)
    if lower.device.type == "cpu":
        eye = torch.eye(lower.shape[-1], dtype=lower.dtype).expand_as(lower)
        return torch.linalg.solve_triangular(lower + eye, eye, upper=False, unitriangular=True)
    return by_products(lower)


def by_products(lower: Tensor) -> Tensor:
    """The same by products of the library."""
    n = lower.shape[-1]
    row = torch.arange(n, device=lower.device)
    found = torch.eye(n, device=lower.device, dtype=lower.dtype).expand_as(lower)
    size = 1
    while size < n:
        below = (row[:, None] // size % 2 == 1) & (row[None] // size + 1 == row[:, None] // size)
        part = lower * below
        found = found - (part if size == 1 else found @ part @ found)
        size *= 2
    return found


def on_gpu(lower: Tensor) -> Tensor:
    """The same by the kernel, for matrices of 64 rows."""
    lower, n = lower.contiguous(), lower.shape[-1]
    out = torch.empty_like(lower)
    _invert[(lower.numel() // (n * n),)](lower, out, N=n, PRECISION="tf32x3", num_warps=4)
    return out
