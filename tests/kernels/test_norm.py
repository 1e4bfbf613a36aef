"""Add + RMSNorm against torch in float64."""

from __future__ import annotations

import pytest
import torch
from flide_engine.kernels.norm import add_rms_norm


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight.double())


@pytest.mark.parametrize("width", [64, 96, 130])
def test_sum_and_norm(device: torch.device, width: int) -> None:
    g = torch.Generator().manual_seed(width)
    x, delta = (torch.randn(5, width, generator=g).to(device) for _ in range(2))
    weight = torch.randn(width, generator=g).to(device)
    out, residual = torch.full_like(x, torch.nan), x.clone()
    add_rms_norm(residual, weight, out, eps=1e-6, delta=delta, residual=residual)
    assert torch.equal(residual, x + delta)
    torch.testing.assert_close(out, reference(x + delta, weight).float(), rtol=3e-6, atol=1e-6)


def test_gathered_rows_start_a_stream(device: torch.device) -> None:
    g = torch.Generator().manual_seed(0)
    table = torch.randn(9, 64, generator=g).to(device)
    rows = torch.tensor([8, 0, 0, 3], dtype=torch.int32, device=device)
    weight = torch.randn(64, generator=g).to(device)
    out, residual = (torch.full((4, 64), torch.nan, device=device) for _ in range(2))
    add_rms_norm(table, weight, out, eps=1e-6, residual=residual, rows=rows)
    assert torch.equal(residual, table[rows.long()])
    torch.testing.assert_close(out, reference(table[rows.long()], weight).float(), rtol=3e-6, atol=1e-6)


def test_gathered_rows_get_their_sum(device: torch.device) -> None:
    g = torch.Generator().manual_seed(1)
    stream, delta = torch.randn(7, 64, generator=g).to(device), torch.randn(2, 64, generator=g).to(device)
    rows = torch.tensor([6, 2], dtype=torch.int32, device=device)
    out, residual = (torch.full((2, 64), torch.nan, device=device) for _ in range(2))
    add_rms_norm(stream, torch.zeros(64, device=device), out, eps=1e-6, delta=delta, residual=residual, rows=rows)
    assert torch.equal(residual, stream[rows.long()] + delta)


def test_refuses_a_gather_in_place(device: torch.device) -> None:
    x = torch.ones(2, 64, device=device)
    with pytest.raises(ValueError, match="in place"):
        add_rms_norm(x, x[0], x.clone(), eps=1e-6, residual=x, rows=torch.zeros(2, dtype=torch.int32, device=device))
