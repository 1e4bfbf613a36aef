"""q/k norm + rotary + pages against torch in float64."""

from __future__ import annotations

import pytest
import torch
from flide_engine.kernels.rope_page import norm_rope_key_value, norm_rope_query, rope_table

EPS = 1e-6


def rotated(x: torch.Tensor, weight: torch.Tensor, positions: torch.Tensor, rotary: int, theta: float) -> torch.Tensor:
    """[N, heads, D] float64."""
    x, half = x.double(), rotary // 2
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * (1 + weight.double())
    rates = theta ** (-torch.arange(half, dtype=torch.float64, device=x.device) * 2 / rotary)
    angle = positions.double()[:, None, None] * rates
    a, b = x[..., :half], x[..., half:rotary]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), x[..., rotary:]], -1)


def test_table_keeps_far_positions() -> None:
    table = rope_table(1e7, 64, 70_000, "cpu")
    exact = torch.tensor(69_999.0, dtype=torch.float64) * 1e7 ** (-torch.arange(32, dtype=torch.float64) / 32)
    assert torch.equal(table[69_999], torch.cat([exact.cos(), exact.sin()]).float())


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "rotary"), [(4, 1, 32, 8), (6, 1, 16, 16), (2, 2, 64, 16)])
def test_norm_rope_and_pages(device: torch.device, heads: int, kv_heads: int, dim: int, rotary: int) -> None:
    g = torch.Generator().manual_seed(heads)
    n, theta = 9, 1e7
    qkv = torch.randn(n, (2 * heads + 2 * kv_heads) * dim, generator=g).to(device)
    q_weight, k_weight = (torch.randn(dim, generator=g).to(device) for _ in range(2))
    positions = torch.tensor([0, 1, 63, 64, 65, 5000, 12_000, 100, 0], dtype=torch.int32, device=device)
    table = rope_table(theta, rotary, 12_001, device)
    q = torch.full((n, heads, dim), torch.nan, device=device)
    norm_rope_query(qkv, q_weight, table, positions, q, eps=EPS)
    query = qkv[:, : 2 * heads * dim].view(n, heads, 2, dim)[:, :, 0]
    torch.testing.assert_close(q.double(), rotated(query, q_weight, positions, rotary, theta), rtol=1e-5, atol=2e-6)

    rows = torch.tensor([6, 2], dtype=torch.int32, device=device)
    some = torch.full((2, heads, dim), torch.nan, device=device)
    norm_rope_query(qkv[rows.long()].contiguous(), q_weight, table, positions, some, eps=EPS, rows=rows)
    assert torch.equal(some, q[rows.long()])

    dst = torch.tensor([64, 65, 127, 0, -1, 3 * 64 + 5, -1, 7, -1], dtype=torch.int32, device=device)
    k_pages, v_pages = (torch.full((4, kv_heads, 64, dim), -7.0, device=device) for _ in range(2))
    k_local = torch.full((n, kv_heads, dim), -7.0, device=device)
    key, value = qkv[:, 2 * heads * dim :].split(kv_heads * dim, -1)
    norm_rope_key_value(key, value, k_weight, table, positions, dst, k_local, k_pages, v_pages, eps=EPS)
    want = rotated(key.reshape(n, kv_heads, dim), k_weight, positions, rotary, theta)
    written = torch.zeros(4, 64, dtype=torch.bool, device=device)
    for i, target in enumerate(dst.tolist()):
        if target < 0:
            torch.testing.assert_close(k_local[i].double(), want[i], rtol=1e-5, atol=2e-6)
        else:
            written[target // 64, target % 64] = True
            torch.testing.assert_close(k_pages[target // 64, :, target % 64].double(), want[i], rtol=1e-5, atol=2e-6)
            assert torch.equal(v_pages[target // 64, :, target % 64], value[i].view(kv_heads, dim))
    assert (k_local[dst >= 0] == -7).all()
    untouched = ~written[:, None, :, None].expand_as(k_pages)
    assert (k_pages[untouched] == -7).all()
    assert (v_pages[untouched] == -7).all()
