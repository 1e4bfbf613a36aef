"""Scan, branches and gated norm over whole rounds: values against float64 token by token, and bits between rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from delta_rule import (
    DEVICE,
    Layer,
    Pools,
    Ran,
    distance,
    expect,
    make_layer,
    make_pools,
    make_rows,
    metadata,
    plan_of,
    run,
    run_core,
    run_tiles,
    segment,
    stored,
)
from flide_engine.kernels import gdn_branch, gdn_scan
from flide_engine.kernels.gdn_chunks import CHUNK, Chunks, Tiles
from flide_engine.kernels.gdn_intra import empty_intra, gdn_intra
from flide_engine.kernels.gdn_scan import gated_norm
from flide_engine.plan import RoundPlan
from flide_engine.segments import Request

BOUND = {torch.float32: 5e-6, torch.float16: 2e-3}


def rows_of(plan: RoundPlan, s: int) -> slice:
    return slice(int(plan.seg_first_row[s]), int(plan.seg_first_row[s] + plan.seg_len[s]))


def fill(pools: Pools, slot: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    pools.states[slot] = torch.randn(pools.states[slot].shape, generator=rng) * 0.3
    pools.conv[slot] = torch.randn(pools.conv[slot].shape, generator=rng).to(pools.conv.dtype)


def check(layer: Layer, x: torch.Tensor, plan: RoundPlan, pools: Pools) -> Ran:
    """Run the round and compare every row and every state that is written."""
    want = expect(layer, x, plan, pools)
    before = pools.states.clone()
    ran = run(layer, x, plan, pools)
    for s in range(len(plan.seg_len)):
        if plan.seg_len[s]:
            assert distance(ran.out[rows_of(plan, s)], want.out[rows_of(plan, s)]) < BOUND[x.dtype]
    for slot, state in want.states.items():
        assert distance(pools.states[slot], state) < BOUND[x.dtype]
    for slot in set(range(pools.states.shape[0])) - set(want.states):
        assert torch.equal(pools.states[slot].nan_to_num(7), before[slot].nan_to_num(7))
    return ran


LENGTHS = (1, 3, 63, 64, 65, 130)


@pytest.mark.parametrize(
    ("ratio", "lengths"),
    [(1, LENGTHS), (2, (3, 65)), (3, (3, 65)), *(pytest.param(r, LENGTHS, marks=pytest.mark.bars) for r in (2, 3))],
)
def test_lengths_around_the_chunk_as_trunks_and_branches(ratio: int, lengths: tuple[int, ...]) -> None:
    layer = make_layer(ratio, nk=1, ratio=ratio, dv=32)
    requests = [Request((segment(n), segment(n, parent=0, local=True))) for n in lengths]
    plan = plan_of(requests)
    check(layer, make_rows(layer, plan.rows, ratio), plan, make_pools(layer, 8))


@pytest.mark.parametrize(
    ("dtype", "nk", "first"),
    [
        (torch.float32, 2, 128),
        (torch.float16, 1, 128),
        *(pytest.param(dtype, 2, 192, marks=pytest.mark.bars) for dtype in (torch.float32, torch.float16)),
    ],
)
def test_a_round_of_every_kind(dtype: torch.dtype, nk: int, first: int) -> None:
    """Saves inside and at the end, tails on checkpoints, an empty tail, candidates with questions, branches of one token."""
    layer = make_layer(5, nk=nk, ratio=2, dk=32, dv=16, dtype=dtype)
    requests = [
        Request((segment(first, saves=(64, first)), segment(66, parent=0, local=True), segment(1, parent=1, local=True),
                 segment(2, parent=1, local=True), segment(3, parent=0, local=True))),
        Request((segment(70, saves=(192,)), segment(5, parent=0, local=True), segment(9, parent=0, local=True)), stored(128, 10)),
        Request((segment(0), segment(4, parent=0, local=True)), stored(64, 11)),
        Request((segment(40), segment(30, parent=0, local=True)), stored(64, 11)),
    ]  # fmt: skip
    plan = plan_of(requests)
    pools = make_pools(layer, 13, dtype)
    fill(pools, 10, 1)
    fill(pools, 11, 2)
    check(layer, make_rows(layer, plan.rows, 3, dtype), plan, pools)


def test_trunks_that_continue_a_shared_trunk() -> None:
    layer = make_layer(6)
    tokens = np.arange(200, dtype=np.int32)
    other = np.concatenate([tokens[:128], tokens[:50]]).astype(np.int32)
    base = segment(200)
    requests = [
        Request((type(base)(t), segment(6, parent=0, local=True)), share_key=b"tenant") for t in (tokens, other)
    ]  # fmt: skip
    plan = plan_of(requests)
    assert plan.levels == 3
    check(layer, make_rows(layer, plan.rows, 4), plan, make_pools(layer, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("ratio", "n", "saves"), [(2, 136, (64, 128)), pytest.param(3, 200, (64, 128, 192), marks=pytest.mark.bars)]
)
def test_resumed_is_fresh_bit_for_bit(dtype: torch.dtype, ratio: int, n: int, saves: tuple[int, ...]) -> None:
    layer = make_layer(7, ratio=ratio, dtype=dtype)
    whole = plan_of([Request((segment(n, saves=saves), segment(70, parent=0, local=True)))])
    x = make_rows(layer, whole.rows, 5, dtype)
    pools = make_pools(layer, 12, dtype)
    fresh = run(layer, x, whole, pools)
    for at, slot in zip(whole.save_pos.tolist(), whole.save_slot.tolist(), strict=True):
        later = tuple(p for p in saves[1:] if p > at)
        rest = plan_of([Request((segment(n - at, saves=later), segment(70, parent=0, local=True)), stored(at, slot))], 6)
        resumed = run(layer, x[at:], rest, pools)
        assert torch.equal(resumed.out, fresh.out[at:])
        for i, p in enumerate(later):
            assert torch.equal(pools.states[int(rest.save_slot[i])], pools.states[int(whole.save_slot[whole.save_pos == p][0])])
    at, slot = saves[-1], int(whole.save_slot[-1])
    pools.states[slot] *= 1.001  # negative control
    rest = plan_of([Request((segment(n - at), segment(70, parent=0, local=True)), stored(at, slot))], 6)
    assert not torch.equal(run(layer, x[at:], rest, pools).out, fresh.out[at:])


def test_v_by_pointer_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make_layer(13, dv=32)
    plan = plan_of([Request((segment(150, saves=(64,)), segment(20, parent=0, local=True), segment(66, parent=0, local=True)))])
    x = make_rows(layer, plan.rows, 4)
    pools, others = make_pools(layer, 4), make_pools(layer, 4)
    tiles, chunks = run_tiles(layer, x, plan, pools)
    bulk = run_core(layer, x, plan, pools, tiles, chunks)
    for name, room in (("SCAN", gdn_scan), ("SCAN_FLOAT32", gdn_scan), ("BRANCH", gdn_branch)):
        monkeypatch.setattr(room, name, getattr(room, name) | {"BULK": False})
    again = run_core(layer, x, plan, others, tiles, chunks)
    assert torch.equal(again.out, bulk.out)
    assert torch.equal(others.states.nan_to_num(7), pools.states.nan_to_num(7))


def test_alone_and_in_a_round_bit_for_bit() -> None:
    layer = make_layer(8, ratio=1, dv=32)
    one = Request((segment(100), segment(20, parent=0, local=True), segment(64, parent=0, local=True)))
    alone = plan_of([one])
    x = make_rows(layer, alone.rows, 6)
    single = run(layer, x, alone, make_pools(layer, 2))
    many = plan_of([Request((segment(33), segment(2, parent=0, local=True))), one, Request((segment(130),))])
    y = make_rows(layer, many.rows, 7)
    mine = [s for s in range(len(many.seg_len)) if many.seg_len[s] in (100, 20, 64)]
    for i, s in enumerate(mine):
        y[rows_of(many, s)] = x[rows_of(alone, i)]
    together = run(layer, y, many, make_pools(layer, 4))
    for i, s in enumerate(mine):
        assert torch.equal(together.out[rows_of(many, s)], single.out[rows_of(alone, i)])


def test_a_broken_neighbour_stays_alone() -> None:
    """NaN rows of one request reach no other request, although their rows are neighbours in the stream."""
    layer = make_layer(9, ratio=1)
    requests = [
        Request((segment(70), segment(3, parent=0, local=True))),
        Request((segment(5), segment(66, parent=0, local=True))),
    ]
    plan = plan_of(requests)
    x = make_rows(layer, plan.rows, 8)
    good = run(layer, x, plan, make_pools(layer, 4)).out
    x[rows_of(plan, 0)] = float("nan")
    bad = run(layer, x, plan, make_pools(layer, 4)).out
    for s in (1, 3):
        assert torch.equal(bad[rows_of(plan, s)], good[rows_of(plan, s)])
    assert bool(bad[rows_of(plan, 0)].isnan().all())


GATES = {
    "none": lambda n: torch.zeros(n),
    "tiny": lambda n: torch.full((n,), -1e-6),
    "strong": lambda n: torch.full((n,), -50.0),
    "mixed": lambda n: torch.tensor([0.0, -1e-6, -0.3, -1e4, -50.0]).repeat(n // 5 + 1)[:n],
}


@pytest.mark.parametrize("gate", GATES)
def test_gates_of_every_size_with_repeated_keys(gate: str) -> None:
    """Hand-made q, k, v, g and beta: keys from a set of four, beta 0.999, zero rows, 130 tokens and a branch."""
    layer = make_layer(10, ratio=1)
    plan = plan_of([Request((segment(130), segment(33, parent=0, local=True)))])
    x = make_rows(layer, plan.rows, 9)
    pools = make_pools(layer, 4)
    tiles, chunks = run_tiles(layer, x, plan, pools)
    rng = torch.Generator().manual_seed(1)
    keys = torch.nn.functional.normalize(torch.randn(4, layer.dk, generator=rng), dim=1)
    k = keys[torch.randint(0, 4, (plan.rows,), generator=rng)]
    k[torch.arange(0, plan.rows, 11)] = 0
    q = torch.nn.functional.normalize(torch.randn(plan.rows, layer.dk, generator=rng), dim=1)
    v, g, beta = torch.randn(plan.rows, layer.dv, generator=rng), GATES[gate](plan.rows), torch.full((plan.rows,), 0.999)
    columns = [t.to(DEVICE) for t in (q, k, v, g, beta)]
    by_hand = _as_tiles(plan, chunks, tiles, *columns)
    want = expect(layer, x, plan, pools, tuple(t[:, None].double() for t in columns))
    ran = run_core(layer, x, plan, pools, by_hand, chunks)
    assert distance(ran.out, want.out) < 2e-5
    assert distance(pools.states[0], want.states[0]) < 2e-5


def _as_tiles(plan: RoundPlan, chunks: Chunks, like: Tiles, *columns: torch.Tensor) -> Tiles:
    """[T, ...] of one head -> tiles."""
    out = Tiles(*[torch.zeros_like(t) for t in like])
    for c, (s, i) in enumerate(chunks.table.tolist()):
        if s >= 0:
            first = int(plan.seg_first_row[s]) + i * CHUNK
            n = min(int(plan.seg_len[s]) - i * CHUNK, CHUNK)
            for t, column in zip(out, columns, strict=True):
                (t[c, 0].T if t is out.v else t[c, 0])[:n] = column[first : first + n]
    return out


def test_gated_norm_zeroes_rows_of_no_segment_and_reads_strided_z() -> None:
    rng = torch.Generator().manual_seed(0)
    o, wide, weight = torch.randn(21, 3, 16, generator=rng), torch.randn(21, 80, generator=rng), torch.randn(16, generator=rng)
    segments = torch.where(torch.arange(21) % 4 == 1, -1, 0).int()
    o[1], wide[5] = float("nan"), float("nan")
    o, wide, weight, segments = (t.to(DEVICE) for t in (o, wide, weight, segments))
    z = wide[:, 8:56]
    out = gated_norm(o, z, weight, torch.full_like(o, float("nan")), eps=1e-6, row_segment=segments)
    live = segments >= 0
    assert bool((out[~live] == 0).all())
    x, gate = o[live].double(), z[live].double().view(-1, 3, 16)
    want = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.double() * torch.nn.functional.silu(gate)
    assert distance(out[live], want) < 1e-6


@pytest.mark.parametrize("dtype", list(BOUND))
@pytest.mark.parametrize(
    ("plan", "trunk", "branch"),
    [
        (plan_of([Request((segment(70, saves=(64,)), segment(66, parent=0, local=True)))]), 0, 1),
        (plan_of([Request((segment(128, saves=(64, 128)), segment(66, parent=0, local=True)))]), 0, 1),
        (plan_of([Request((segment(70, saves=(64,)),)), Request((segment(9, local=True),), stored(64, 10))]), 0, 1),
        (plan_of([Request((segment(9, local=True),), stored(64, 10))]), -1, 0),
        (plan_of([Request((segment(70, saves=(64,)),))]), 0, -1),
    ],
    ids=["behind its trunk", "of what its trunk saved", "of another checkpoint", "no trunk", "no branch"],
)
def test_a_branch_behind_a_trunk_in_one_launch(plan: RoundPlan, trunk: int, branch: int, dtype: torch.dtype) -> None:
    """The same bits as in a launch of its own, of the trunks' kernel and (on a GPU) of the branches'; every state too."""
    layer = make_layer(11, dtype=dtype, dk=128 if DEVICE == "cuda" else 16, dv=128 if DEVICE == "cuda" else 16)
    x = make_rows(layer, plan.rows, 12, dtype)
    begin = make_pools(layer, 12, dtype)
    fill(begin, 10, 13)
    tiles, chunks = run_tiles(layer, x, plan, begin)
    intra = gdn_intra(tiles, chunks, empty_intra(tiles.k.shape[0], layer.nv, dtype, x.device))
    m = metadata(plan)
    got = []
    for way in ("one launch", "trunks' kernel", "branches' kernel"):
        states = begin.states.clone()
        o = torch.full((plan.rows, layer.nv, layer.dv), float("nan"), device=x.device)
        places = {
            "seg_first_row": m.seg_first_row,
            "seg_len": m.seg_len,
            "seg_state_in": m.seg_state_in,
            "seg_state_out": m.seg_state_out,
        }
        saves = {"seg_start": m.seg_start, "save_ptr": m.save_ptr, "save_pos": m.save_pos, "save_slot": m.save_slot}
        first, second = (torch.tensor([s], dtype=torch.int32, device=x.device) for s in (trunk, branch))
        one = way == "one launch"
        walk = tiles, intra, chunks, states, o
        gdn_scan.gdn_scan(*walk, segments=first, branch=second if one else None, **places, **saves)
        if way == "trunks' kernel":
            gdn_scan.gdn_scan(*walk, segments=second, **places, **saves)
        elif not one:
            gdn_branch.gdn_branch(*walk, segments=second, **places)
        assert not o.isnan().any(), "every row of a segment is written"
        got.append((o, states))
    (o, states), *others = got
    for other, (p, t) in zip(("trunks'", "branches'"), others, strict=True):
        exact = other == "trunks'" or DEVICE == "cuda"
        for a, b in ((o, p), (states, t)):
            assert torch.equal(a.isnan(), b.isnan())
            assert (
                torch.equal(a.nan_to_num(7), b.nan_to_num(7))
                if exact
                else distance(a.nan_to_num(7), b.nan_to_num(7)) < BOUND[dtype]
            )
    if plan.rows > 1:
        assert not torch.equal(o, o.flip(0))


def test_two_trunks_have_no_branch_behind_them() -> None:
    layer = make_layer(1)
    plan = plan_of([Request((segment(9),)), Request((segment(9), segment(5, parent=0, local=True)))])
    x, pools = make_rows(layer, plan.rows, 2), make_pools(layer, 8)
    tiles, chunks = run_tiles(layer, x, plan, pools)
    m, two, one = metadata(plan), torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    intra, o = empty_intra(tiles.k.shape[0], layer.nv, x.dtype, x.device), torch.zeros(plan.rows, layer.nv, layer.dv)
    with pytest.raises(ValueError, match="one trunk alone"):
        gdn_scan.gdn_scan(
            tiles, intra, chunks, pools.states, o, segments=two, branch=one, seg_first_row=m.seg_first_row, seg_len=m.seg_len,
            seg_start=m.seg_start, seg_state_in=m.seg_state_in, seg_state_out=m.seg_state_out, save_ptr=m.save_ptr,
            save_pos=m.save_pos, save_slot=m.save_slot,
        )  # fmt: skip


def test_states_of_another_shape_are_refused() -> None:
    layer = make_layer(11)
    plan = plan_of([Request((segment(3),))])
    pools = make_pools(layer, 1)
    pools.states = pools.states.double()
    with pytest.raises(ValueError, match="float32"):
        run(layer, make_rows(layer, 3, 0), plan, pools)
    assert metadata(plan).seg_state_in.tolist() == [-1]
