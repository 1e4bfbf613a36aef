"""Triangular inverse, attention and decays of a chunk against float64."""

from __future__ import annotations

import pytest
import torch
from delta_rule import DEVICE, by_row, distance, make_layer, make_pools, make_rows, plan_of, run_tiles, segment
from flide_engine.kernels.gdn_chunks import Chunks, Tiles
from flide_engine.kernels.gdn_intra import IntraOut, empty_intra, gdn_intra
from flide_engine.segments import Request

LENGTHS = (1, 3, 63, 64, 65, 128, 130)


def expected(q: torch.Tensor, k: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(inverse, attention) of one chunk of one head in float64: q, k [n, dk], g, beta [n]."""
    n = k.shape[0]
    total = g.cumsum(0)
    later = torch.ones(n, n, dtype=torch.bool, device=k.device).tril()
    fade = torch.exp((total[:, None] - total[None, :]).masked_fill(~later, -torch.inf))
    a = (beta[:, None] * (k @ k.T) * fade).tril(-1)
    inverse = torch.linalg.solve_triangular(
        torch.eye(n, dtype=torch.float64, device=k.device) + a, torch.diag(beta), upper=False
    )
    return inverse, q @ k.T * fade * q.shape[1] ** -0.5


def run(tiles: Tiles, chunks: Chunks) -> IntraOut:
    out = empty_intra(tiles.k.shape[0], tiles.g.shape[1], tiles.k.dtype, tiles.k.device)
    for t in out:
        t.fill_(float("nan"))
    return gdn_intra(tiles, chunks, out)


def hand_made(q: torch.Tensor, k: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> tuple[Tiles, Chunks]:
    """One chunk of one head."""
    n = k.shape[0]

    def pad(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([t, t.new_zeros(64 - n, *t.shape[1:])]).to(DEVICE)

    v = torch.zeros(1, 1, 16, 64, device=DEVICE)
    tiles = Tiles(pad(q)[None, None], pad(k)[None, None], v, pad(g)[None, None], pad(beta)[None, None])
    zero = torch.zeros(1, 2, dtype=torch.int32, device=DEVICE)
    return tiles, Chunks(zero, zero[0, :1])


def unit(n: int, dk: int, seed: int) -> torch.Tensor:
    x = torch.randn(n, dk, generator=torch.Generator().manual_seed(seed))
    return x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("ratio", "dtype", "bound"), [(1, torch.float32, 4e-6), (3, torch.float32, 4e-6), (2, torch.float16, 1e-3)]
)
def test_all_chunks_of_a_round(ratio: int, dtype: torch.dtype, bound: float) -> None:
    layer = make_layer(ratio, nk=1, ratio=ratio, dk=32, dtype=dtype)
    plan = plan_of([Request((segment(n),)) for n in LENGTHS])
    x = make_rows(layer, plan.rows, 1, dtype)
    tiles, chunks = run_tiles(layer, x, plan, make_pools(layer, 1, dtype))
    out = run(tiles, chunks)
    checked = 0
    for c, (s, i) in enumerate(chunks.table.tolist()):
        if s < 0:
            assert bool(out.inverse[c].isnan().all())
            continue
        n = min(int(plan.seg_len[s]) - 64 * i, 64)
        for h in range(layer.nv):
            head = h // ratio
            parts = [t.double() for t in (tiles.q[c, head, :n], tiles.k[c, head, :n], tiles.g[c, h, :n], tiles.beta[c, h, :n])]
            inverse, attention = expected(*parts)
            assert distance(out.inverse[c, h, :n, :n], inverse) < bound
            assert distance(out.attention[c, h, :n, :n], attention) < bound
            for t in (out.inverse[c, h], out.attention[c, h]):
                assert bool((t[:n].triu(1) == 0).all())
                assert bool((t[:, n:] == 0).all())
            total = parts[2].cumsum(0)
            assert distance(out.grown[c, h, :n], torch.exp(total)) < 1e-5
            assert distance(out.rest[c, h, :n], torch.exp(total[-1] - total)) < 1e-5
            assert float(out.grown[c, h, 63]) == float(out.grown[c, h, n - 1])
            checked += 1
    assert checked == layer.nv * sum(-(-n // 64) for n in LENGTHS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", ["repeated", "pairs", "nearly"])
def test_repeated_keys_with_full_strength(case: str, dtype: torch.dtype) -> None:
    """The worst case of the inverse: (near) equal keys, beta 1, no decay. Doubling past 16 by powers of A loses all digits here."""
    n = 64
    k = unit(1, 32, 0).expand(n, 32).clone()
    if case == "pairs":
        k = unit(2, 32, 0).repeat(n // 2, 1)
    if case == "nearly":
        k = k + 1e-3 * unit(n, 32, 1)
        k /= k.norm(dim=1, keepdim=True)
    k, q = k.to(dtype), unit(n, 32, 2).to(dtype)
    g, beta = torch.zeros(n), torch.ones(n)
    out = run(*hand_made(q, k, g, beta))
    inverse, _ = expected(*(t.double() for t in (q, k, g, beta)))
    assert distance(out.inverse[0, 0].cpu(), inverse) < (1e-5 if dtype == torch.float32 else 2e-3)


GATES = {
    "none": lambda n: torch.zeros(n),
    "tiny": lambda n: torch.full((n,), -1e-6),
    "strong": lambda n: torch.full((n,), -50.0),
    "resets": lambda n: torch.where(torch.arange(n) % 7 == 3, -1e4, -0.05),
    "all": lambda n: torch.tensor([0.0, -1e-6, -50.0, -1e4]).repeat(n // 4),
}


@pytest.mark.parametrize("gate", GATES)
def test_decays_of_every_size(gate: str) -> None:
    n = 64
    q, k, g = unit(n, 32, 0), unit(n, 32, 1), GATES[gate](n)
    beta = torch.rand(n, generator=torch.Generator().manual_seed(3))
    out = run(*hand_made(q, k, g, beta))
    inverse, attention = expected(*(t.double() for t in (q, k, g, beta)))
    # resets leave running sums of -990 in float32, whose differences are good to 6e-5
    assert distance(out.inverse[0, 0].cpu(), inverse) < 1e-5
    assert distance(out.attention[0, 0].cpu(), attention) < (3e-5 if gate in ("resets", "all") else 4e-6)


def test_zero_keys_leave_the_strength_on_the_diagonal() -> None:
    n = 20
    beta = torch.rand(n)
    out = run(*hand_made(torch.zeros(n, 16), torch.zeros(n, 16), torch.full((n,), -1.0), beta))
    assert torch.equal(out.inverse[0, 0, :n, :n].cpu(), torch.diag(beta))
    assert bool((out.attention[0, 0] == 0).all())


def test_a_chunk_has_the_same_bits_in_any_round() -> None:
    layer = make_layer(9)
    alone = plan_of([Request((segment(100),))])
    x = make_rows(layer, 100, 4)
    first, first_chunks = run_tiles(layer, x, alone, make_pools(layer, 1))
    many = plan_of([Request((segment(7),)), Request((segment(100),)), Request((segment(65),))])
    y = torch.cat([make_rows(layer, 7, 5), x, make_rows(layer, 65, 6)])
    second, second_chunks = run_tiles(layer, y, many, make_pools(layer, 1))
    a, b = run(first, first_chunks), run(second, second_chunks)
    for s, t in zip(a, b, strict=True):
        assert torch.equal(by_row(s, alone, first_chunks), by_row(t, many, second_chunks)[7:107])
    assert not torch.equal(by_row(a.inverse, alone, first_chunks)[:60], by_row(b.inverse, many, second_chunks)[8:68])
