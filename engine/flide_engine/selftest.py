"""What is checked at start on the very machine: that a row of a product has the same bits whatever stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from flide_engine.models import LinearLayer, Model
from flide_engine.reference.products import Products
from flide_engine.segments import GRID

TILE_COUNTS = (1, 2, 3, 5, 8, 16)


@dataclass(frozen=True, slots=True)
class ShapeReport:
    """One product shape: "whole" when it runs as one product, else "tiled", with the number of rows at which bits differed."""

    out: int
    inner: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Shapes that had to fall back to a slower product are listed with the reason; `stable` tells that the chosen paths hold."""

    stable: bool
    shapes: tuple[ShapeReport, ...]

    @property
    def slower(self) -> tuple[ShapeReport, ...]:
        return tuple(s for s in self.shapes if s.path != "whole")


def product_weights(model: Model) -> list[torch.Tensor]:
    """One weight matrix per distinct product shape of a model."""
    found: dict[tuple[int, ...], torch.Tensor] = {}
    for layer in model.layers:
        mixing = (layer.in_all, layer.out) if isinstance(layer, LinearLayer) else (layer.qkv, layer.o)
        for w in (*mixing, layer.gate_up, layer.down):
            found.setdefault(tuple(w.shape), w)
    return list(found.values())


@torch.inference_mode()
def check_products(model: Model, products: Products, tile_counts: Sequence[int] = TILE_COUNTS) -> SelfTest:
    """Compare rows of each product at several row counts and places with torch.equal; put shapes that fail into products.tiled.

    A fallback that fails too makes the result unstable.
    """
    reports, stable = [], True
    for w in product_weights(model):
        shape = (w.shape[0], w.shape[1])
        reason = _difference(products.whole, w, tile_counts)
        if reason:
            products.tiled.add(shape)
            if still := _difference(products.by_tiles, w, tile_counts):
                stable, reason = False, f"{reason}; by tiles {still}"
        reports.append(ShapeReport(*shape, "tiled" if reason else "whole", reason))
    return SelfTest(stable, tuple(reports))


def _difference(
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], w: torch.Tensor, tile_counts: Sequence[int]
) -> str:
    generator = torch.Generator().manual_seed(0)
    tile = torch.randn(GRID, w.shape[1], generator=generator, dtype=w.dtype)
    want = product(tile, w)
    for count in tile_counts:
        x = torch.randn(count, GRID, w.shape[1], generator=generator, dtype=w.dtype)
        for place in {0, count // 2, count - 1}:
            x[place] = tile
        got = product(x.view(-1, w.shape[1]), w).view(count, GRID, -1)
        if not all(torch.equal(got[place], want) for place in {0, count // 2, count - 1}):
            return f"a row's bits differ at {count * GRID} rows"
    return ""
