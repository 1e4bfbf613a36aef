"""x @ w.T whose row bits do not depend on the number of rows, found out at start on the very machine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flide_engine.kernels.matmul import fixed_order_matmul
from flide_engine.selftest import SelfTest, ShapeReport

Tensor = torch.Tensor

OFFSET = 7
"""A row is also tried this many rows further down."""


class Products:
    """Library products without split-K; shapes (out, in) in `fixed` run the fixed-order kernel instead."""

    def __init__(self) -> None:
        self.fixed: set[tuple[int, int]] = set()

    def __call__(self, x: Tensor, w: Tensor, out: Tensor) -> Tensor:
        """x: [M, in] with M a row capacity, w: [out, in], out: [M, out]. Returns out."""
        if self.fixed and (w.shape[0], w.shape[1]) in self.fixed:
            fixed_order_matmul(x, w, out)
        else:
            torch.mm(x, w.t(), out=out)
        return out


@torch.inference_mode()
def check_products(weights: Sequence[Tensor], products: Products, rows: Sequence[int]) -> SelfTest:
    """Compare every row of each product over all row counts and at two places; put shapes that fail into products.fixed.

    weights: one matrix per shape. rows: ascending row counts in use. A fallback that fails too makes the result unstable.
    """
    reports, stable = [], True
    for w in weights:
        shape = (w.shape[0], w.shape[1])
        reason = _difference(w, products, rows)
        path = "whole"
        if reason:
            products.fixed.add(shape)
            path = "fixed-order"
            still = _difference(w, products, [rows[0], rows[len(rows) // 2], rows[-1]])
            if still:
                stable, reason = False, f"{reason}; in fixed order {still}"
        reports.append(ShapeReport(*shape, path, reason))
    return SelfTest(stable, tuple(reports))


@torch.inference_mode()
def parts_agree(whole: Tensor, parts: Sequence[Tensor], products: Products, rows: Sequence[int]) -> bool:
    """Whether a product by `whole` holds the bits of products by the parts, which are row ranges of it one behind the other.

    rows: ascending row counts to try.
    """
    generator = torch.Generator(device=whole.device).manual_seed(0)
    x = torch.randn(rows[-1], whole.shape[1], generator=generator, device=whole.device, dtype=whole.dtype)
    for count in rows:
        both = products(x[:count], whole, whole.new_empty(count, whole.shape[0]))
        apart = [products(x[:count], w, whole.new_empty(count, w.shape[0])) for w in parts]
        if not torch.equal(both, torch.cat(apart, 1)):
            return False
    return True


def _difference(w: Tensor, products: Products, rows: Sequence[int]) -> str:
    most = rows[-1]
    generator = torch.Generator(device=w.device).manual_seed(0)
    x = torch.randn(most + OFFSET, w.shape[1], generator=generator, device=w.device, dtype=w.dtype)
    want = products(x[:most], w, w.new_empty(most, w.shape[0]))
    differ = torch.zeros(len(rows), dtype=torch.bool, device=w.device)
    for i, count in enumerate(rows):
        got = products(x[:count], w, w.new_empty(count, w.shape[0]))
        differ[i] = (got != want[:count]).any()
        moved = products(x[OFFSET : count + OFFSET], w, got)
        differ[i] |= (moved[: count - OFFSET] != want[OFFSET:count]).any()
    failed = [count for count, bad in zip(rows, differ.tolist(), strict=True) if bad]
    return f"a row's bits differ between {most} rows and {', '.join(map(str, failed))}" if failed else ""
