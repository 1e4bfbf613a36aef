"""The fixed-order product: right, and the same bits for every number of rows."""

from __future__ import annotations

import pytest
import torch
from flide_engine.cuda.products import Products, parts_agree
from flide_engine.kernels.matmul import fixed_order_matmul


@pytest.mark.parametrize(("rows", "n", "k"), [(16, 64, 96), (70, 100, 33), (130, 70, 64)])
def test_against_torch(device: torch.device, rows: int, n: int, k: int) -> None:
    g = torch.Generator().manual_seed(rows)
    wide = torch.randn(rows, k + 5, generator=g).to(device)
    x, w = wide[:, :k], torch.randn(n, k, generator=g).to(device)
    out = torch.full((rows, n), torch.nan, device=device)
    fixed_order_matmul(x, w, out)
    torch.testing.assert_close(out, (x.double() @ w.double().T).float(), rtol=1e-5, atol=1e-5)


def test_rows_keep_their_bits(device: torch.device) -> None:
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(150, 96, generator=g).to(device), torch.randn(40, 96, generator=g).to(device)
    whole = torch.empty(150, 40, device=device)
    fixed_order_matmul(x, w, whole)
    # The interpreter's numpy product orders a row's sum by its place in the tile, so odd places are for the GPU alone.
    places = ((0, 16), (0, 70), (64, 64)) if device.type == "cpu" else ((0, 16), (5, 70), (120, 30))
    for first, count in places:
        part = torch.empty(count, 40, device=device)
        fixed_order_matmul(x[first : first + count], w, part)
        assert torch.equal(part, whole[first : first + count])


def test_parts_agree_tells_parts_from_others() -> None:
    w = torch.randn(96, 64, generator=torch.Generator().manual_seed(10))
    products = Products()
    products.fixed |= {(96, 64), (64, 64), (32, 64)}
    assert parts_agree(w, (w[:64], w[64:]), products, [16, 64])
    assert not parts_agree(w, (w[32:], w[:32]), products, [16, 64])
