"""The self-test on a library whose sums depend on the number of rows, which this machine's may not."""

from __future__ import annotations

import torch
from flide_engine.engine import Engine
from flide_engine.reference.products import Products
from flide_engine.segments import GRID
from flide_engine.selftest import check_products


class RowsMatter(Products):
    """Whole products off in the last bits at more than one tile of rows."""

    @staticmethod
    def whole(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w.T) * (1.0 + 1e-6 * (x.shape[0] > GRID))


class NothingHelps(RowsMatter):
    """Tiles are off as well: the second tile differs from the first."""

    @staticmethod
    def by_tiles(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return RowsMatter.whole(x, w)


def test_products_whose_bits_depend_on_rows_run_by_tiles(engine: Engine) -> None:
    products = RowsMatter()
    found = check_products(engine.model, products)
    assert found.stable
    assert found.slower == found.shapes
    assert all("differ" in s.reason for s in found.slower)
    w = engine.model.layers[0].down
    x = torch.randn(3 * GRID, w.shape[1])
    assert torch.equal(products(x, w)[:GRID], products(x[:GRID].contiguous(), w))
    assert not torch.equal(products.whole(x, w)[:GRID], products(x[:GRID].contiguous(), w))


def test_a_fallback_that_fails_too_is_told(engine: Engine) -> None:
    assert not check_products(engine.model, NothingHelps()).stable


def test_this_machine_holds(engine: Engine) -> None:
    assert check_products(engine.model, Products()).stable
