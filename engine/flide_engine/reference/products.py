"""Row-wise operations whose bits do not depend on how many rows stand beside a row."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flide_engine.segments import GRID

Tensor = torch.Tensor

VECTOR_BLOCK = 32_768
"""Elements up to which torch runs a pointwise operation on one thread, in one vector loop without a scalar remainder."""


class Products:
    """x @ w.T with a fixed order of sums for every row.

    Shapes (out, in) in `tiled` run GRID rows at a time, which fixes the order by construction; the others run whole, as the
    self-test has found them to have equal bits for every number of rows.
    """

    def __init__(self) -> None:
        self.tiled: set[tuple[int, int]] = set()

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """x: [R, in] contiguous, R a positive multiple of GRID; w: [out, in]. Returns [R, out]."""
        if x.shape[0] % GRID:
            raise ValueError(f"products need a multiple of {GRID} rows, got {x.shape[0]}")
        if tuple(w.shape) in self.tiled:
            return self.by_tiles(x, w)
        return self.whole(x, w)

    @staticmethod
    def whole(x: Tensor, w: Tensor) -> Tensor:
        """x @ w.T as one product."""
        return x @ w.T

    @staticmethod
    def by_tiles(x: Tensor, w: Tensor) -> Tensor:
        """The same product, GRID rows at a time."""
        out = x.new_empty(x.shape[0], w.shape[0])
        for i in range(0, x.shape[0], GRID):
            torch.mm(x[i : i + GRID], w.T, out=out[i : i + GRID])
        return out


def pointwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x) for a transcendental function on a contiguous x whose element count is a multiple of GRID.

    Vector and scalar code of such functions differ in the last bit. More than two threads may split the elements off the vector
    width, so those run block by block.
    """
    if not x.is_contiguous() or x.numel() % GRID:
        raise ValueError("pointwise functions need contiguous buffers of a multiple of GRID elements")
    if x.numel() <= VECTOR_BLOCK or torch.get_num_threads() <= 2:
        return function(x)
    flat = x.view(-1)
    return torch.cat([function(flat[i : i + VECTOR_BLOCK]) for i in range(0, flat.numel(), VECTOR_BLOCK)]).view(x.shape)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * (1 + weight) over the last dimension: the zero-centred norm of Qwen3.5."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight)


def padded(rows: int) -> int:
    """Rows rounded up to the grid, at least one tile."""
    return max(GRID, -(-rows // GRID) * GRID)
