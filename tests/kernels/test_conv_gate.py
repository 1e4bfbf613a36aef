"""Convolution, split, norms and gates against float64, over every way in which a row finds its predecessors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from delta_rule import (
    DEVICE,
    by_row,
    distance,
    expect,
    make_layer,
    make_pools,
    make_rows,
    metadata,
    plan_of,
    run_tiles,
    segment,
    stored,
)
from flide_engine.kernels.gdn_chunks import chunk_capacity, empty_chunks, fill_chunks
from flide_engine.segments import Request


def forest() -> list[Request]:
    """Trunks with saves, branches shorter than the window, a branch of a branch, a resumed tail and one of no rows."""
    return [
        Request((segment(130, saves=(64, 128)), segment(1, parent=0, local=True), segment(2, parent=1, local=True),
                 segment(3, parent=2, local=True), segment(70, parent=0, local=True))),
        Request((segment(65), segment(4, parent=0, local=True)), checkpoint=stored(128, 9)),
        Request((segment(0), segment(2, parent=0, local=True)), checkpoint=stored(64, 8)),
        Request((segment(2), segment(1, parent=0, local=True))),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("nk", "ratio"), [(1, 1), (2, 2), (1, 3), *(pytest.param(2, ratio, marks=pytest.mark.bars) for ratio in (1, 3))]
)
def test_every_row_matches_float64(nk: int, ratio: int) -> None:
    layer = make_layer(ratio, nk=nk, ratio=ratio, dk=16, dv=32)
    plan = plan_of(forest())
    x = make_rows(layer, plan.rows, 1)
    x[70] = 0
    pools = make_pools(layer, 12)
    pools.conv[8:10] = torch.randn(2, 3, layer.channels, generator=torch.Generator().manual_seed(2))
    pools.states[8:10] = 0
    want = expect(layer, x, plan, pools)
    tiles, chunks = run_tiles(layer, x, plan, pools)
    assert distance(by_row(tiles.q, plan, chunks), want.q) < 1e-6
    assert distance(by_row(tiles.k, plan, chunks), want.k) < 1e-6
    assert distance(by_row(tiles.v.transpose(2, 3), plan, chunks), want.v) < 1e-6
    assert distance(by_row(tiles.g, plan, chunks), want.g) < 1e-6
    assert distance(by_row(tiles.beta, plan, chunks), want.beta) < 1e-6
    for slot, window in want.windows.items():
        assert torch.equal(pools.conv[slot].double(), window)
    assert len(want.windows) == 2


def test_rows_behind_a_segment_are_zero_and_unused_chunks_untouched() -> None:
    layer = make_layer(0)
    plan = plan_of(forest())
    pools = make_pools(layer, 12)
    pools.conv[8:10] = 1
    tiles, chunks = run_tiles(layer, make_rows(layer, plan.rows, 1), plan, pools)
    for c, (s, i) in enumerate(chunks.table.tolist()):
        used = 0 if s < 0 else min(int(plan.seg_len[s]) - 64 * i, 64)
        for t in (tiles.q, tiles.k, tiles.v.transpose(2, 3), tiles.g, tiles.beta):
            if s < 0:
                assert bool(t[c].isnan().all())
            else:
                assert bool((t[c][:, used:] == 0).all())
                assert bool(t[c][:, :used].isfinite().all())


def test_a_resumed_row_has_the_bits_of_the_fresh_one() -> None:
    layer = make_layer(4, ratio=3)
    whole = plan_of([Request((segment(150, saves=(64,)), segment(5, parent=0, local=True)))])
    x = make_rows(layer, whole.rows, 3)
    pools = make_pools(layer, 4)
    fresh, chunks = run_tiles(layer, x, whole, pools)
    rest = plan_of(
        [Request((segment(86), segment(5, parent=0, local=True)), checkpoint=stored(64, int(whole.save_slot[0])))], 2
    )
    resumed, rest_chunks = run_tiles(layer, x[64:], rest, pools)
    for a, b in zip(fresh, resumed, strict=True):
        if a.shape[2] != 64:
            a, b = a.transpose(2, 3), b.transpose(2, 3)
        assert torch.equal(by_row(a, whole, chunks)[64:], by_row(b, rest, rest_chunks))
    pools.conv[int(whole.save_slot[0]), 0] += 0.5  # negative control: the window matters
    other, _ = run_tiles(layer, x[64:], rest, pools)
    assert not torch.equal(other.v, resumed.v)


def test_zero_rows_stay_zero_and_large_gates_finite() -> None:
    layer = make_layer(5)
    plan = plan_of([Request((segment(66),))])
    x = torch.zeros(66, layer.width, device=DEVICE)
    at = layer.channels
    x[:, at : at + 2 * layer.nv] = torch.linspace(-200, 200, 66, device=DEVICE)[:, None]
    tiles, chunks = run_tiles(layer, x, plan, make_pools(layer, 1))
    want = expect(layer, x, plan, make_pools(layer, 1))
    assert bool((tiles.k[:2] == 0).all())
    assert bool((tiles.q[:2] == 0).all())
    got = by_row(tiles.g, plan, chunks).double()
    # exp of a large argument is good to its size times 2^-24
    slack = 2e-6 * (1 + (want.g.abs() < 1e-4).double() * 20)
    assert bool(((got - want.g).abs() <= slack * want.g.abs() + 1e-37).all())
    assert torch.allclose(by_row(tiles.beta, plan, chunks).double(), want.beta, rtol=3e-5, atol=1e-37)


def test_values_beyond_float16_are_held_at_its_range() -> None:
    layer = make_layer(6, dtype=torch.float16)
    plan = plan_of([Request((segment(5),))])
    x = torch.full((5, layer.width), 6e4, dtype=torch.float16, device=DEVICE)
    layer.conv.fill_(2)
    tiles, chunks = run_tiles(layer, x, plan, make_pools(layer, 1, torch.float16))
    assert tiles.v.dtype == torch.float16
    assert bool((by_row(tiles.v.transpose(2, 3), plan, chunks) == 65504).all())


@pytest.mark.parametrize("lengths", [[], [0], [1, 0, 64, 65, 0, 200, 3], [5] * 300, [0] * 130 + [1]])
def test_chunk_tables(lengths: list[int]) -> None:
    n = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    chunks = fill_chunks(n, empty_chunks(chunk_capacity(sum(lengths), len(lengths)) + 3, len(lengths), torch.device(DEVICE)))
    want = [[s, i] for s, k in enumerate(lengths) for i in range(-(-k // 64))]
    assert chunks.table.tolist()[: len(want)] == want
    assert all(s == -1 for s, _ in chunks.table.tolist()[len(want) :])
    assert chunks.first.tolist() == np.cumsum([0, *[-(-k // 64) for k in lengths]])[: len(lengths)].tolist()


def test_shapes_that_do_not_fit_are_refused() -> None:
    layer = make_layer(7)
    plan = plan_of([Request((segment(3),))])
    pools = make_pools(layer, 1)
    layer.conv = layer.conv[:-1]
    with pytest.raises(ValueError, match="do not fit"):
        run_tiles(layer, make_rows(layer, 3, 0), plan, pools)
    assert metadata(plan).seg_len.dtype == torch.int32
