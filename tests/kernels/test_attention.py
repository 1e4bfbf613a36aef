"""Fork attention and its tile table against plain torch over every layout of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from flide_engine.kernels import attention
from flide_engine.kernels.attention import (
    SHORT,
    AttentionConfig,
    Partials,
    attention_config,
    fork_attention,
    merge_spans,
    readout_config,
)
from flide_engine.kernels.tiles import build_readout_tiles, build_tiles, tile_capacity
from flide_engine.plan import RoundPlan
from flide_engine.segments import GRID, Request
from forest import Stored, decision, plan, segments, visible, what_if
from forest import on as put
from triton.tools.tensor_descriptor import TensorDescriptor

NO_SPLIT = 1 << 20
LIMIT = 3e-5 if torch.cuda.is_available() else 5e-6  # on the GPU float32 products run as three TF32 products
RESUMED = Stored(128, np.array([1, 0], np.int32), 0)
ROUNDS = {
    "one": (decision(65, 3),),
    "grid": (decision(64, 64, 1),),
    "short": (decision(1, 1), decision(63, 2)),
    "what_if": (what_if(),),
    "resumed": (decision(67, 30, 2, checkpoint=RESUMED), decision(0, 5, checkpoint=RESUMED)),
    "mixed": (decision(130, 65), what_if(), decision(3, 2, checkpoint=RESUMED)),
}
FEWER = (what_if(34, 35), decision(3, 33, checkpoint=RESUMED))
"""With branches just above 32 keys, which is a block here (float32), and a long history resumed: for tests that run one many times."""


@dataclass
class Case:
    plan: RoundPlan
    q: torch.Tensor
    gate: torch.Tensor
    k_local: torch.Tensor
    v_local: torch.Tensor
    k_pages: torch.Tensor
    v_pages: torch.Tensor

    @classmethod
    def make(
        cls, p: RoundPlan, heads: int, kv_heads: int, dim: int, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Case:
        g = torch.Generator().manual_seed(heads * dim)
        pages = int(p.page_table.max()) + 2

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=g).to(device, dtype)

        gate, v = random(p.rows, 2 * heads * dim + 7), random(p.rows, kv_heads * dim + 16)
        case = cls(
            p, random(p.rows, heads, dim), gate[:, dim:], random(p.rows, kv_heads, dim), v[:, : kv_heads * dim],
            random(pages, kv_heads, GRID, dim), random(pages, kv_heads, GRID, dim),
        )  # fmt: skip
        # Where no trunk token lies, a page may hold anything.
        held = torch.zeros(pages, GRID, dtype=torch.bool)
        for s in range(len(p.seg_len)):
            end = int(p.seg_start[s] + p.seg_len[s]) if p.seg_kind[s] == 0 else int(p.seg_hist[s])
            for i in range(end):
                held[p.page_table[p.seg_table[s], i // GRID], i % GRID] = True
        for pool in (case.k_pages, case.v_pages):
            pool.transpose(1, 2)[~held] = torch.nan
        return case

    def run(
        self, *, first_split: int = NO_SPLIT, always_mask: bool = False, readouts: bool = False, bulk: bool = False,
        query_rows: int = SHORT + 1, config: AttentionConfig | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """query_rows: attention_config's. config: instead of the one chosen."""
        p, device = self.plan, self.q.device
        _, heads, dim = self.q.shape
        kv_heads = self.k_local.shape[1]
        group, at = heads // kv_heads, segments(p, device)
        rows = put(p.readout_row, device) if readouts else None
        q = self.q if rows is None else self.q[rows.long()]
        gate = self.gate if rows is None else self.gate[rows.long()]
        size = q.element_size()
        chosen = readout_config(dim, size) if readouts else attention_config(dim, size, query_rows, bulk=bulk)
        config = config or chosen
        blocks = page_blocks(self.k_pages, self.v_pages) if bulk else None
        tokens = 1 if readouts else config.tokens(group)
        capacity, spans = tile_capacity(p.seg_len, p.seg_start, p.seg_kind, p.seg_hist, tokens, first_split)
        if readouts:
            tiles = torch.empty(len(q) * spans + 5, 4, dtype=torch.int32, device=device)
            build_readout_tiles(
                rows, put(p.row_segment, device), at.first_row, at.start, at.kind, at.hist, tiles=tiles,
                count=torch.tensor([len(q)], dtype=torch.int32, device=device), spans=spans, first_split=first_split,
            )  # fmt: skip
        else:
            tiles = tile_table(p, capacity + 3, tokens, first_split, device)
        out = torch.full_like(q, torch.nan)
        shape = (spans, *q.shape[:2])
        partials = Partials(*(torch.full(s, torch.nan, device=device) for s in ((*shape, dim), shape, shape)))
        fork_attention(
            q, gate, self.k_local, self.v_local, self.k_pages, self.v_pages, tiles, at, out, partials, config=config,
            tokens_a_tile=tokens, scale=dim**-0.5, first_split=first_split, always_mask=always_mask, blocks=blocks,
        )  # fmt: skip
        if spans > 1:
            merge_spans(
                gate,
                put(p.row_segment, device),
                put(p.positions, device),
                at,
                partials,
                out,
                rows=rows,
                first_split=first_split,
            )
        return out

    def want(self, row: int) -> torch.Tensor:
        """[heads, dim] float64."""
        pages, rows = visible(self.plan, row)
        _, heads, dim = self.q.shape
        kv_heads = self.k_local.shape[1]
        page, offset = (torch.tensor([x[i] for x in pages], dtype=torch.long) for i in (0, 1))
        v_local = self.v_local.reshape(-1, kv_heads, dim)
        k = torch.cat([self.k_pages[page, :, offset], self.k_local[rows]]).double()
        v = torch.cat([self.v_pages[page, :, offset], v_local[rows]]).double()
        group = heads // kv_heads
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        p = torch.softmax(torch.einsum("hd,nhd->hn", self.q[row].double(), k) * dim**-0.5, -1)
        gates = torch.stack([self.gate[row, h * 2 * dim : h * 2 * dim + dim] for h in range(heads)]).double()
        return torch.einsum("hn,nhd->hd", p, v) * torch.sigmoid(gates)


def tile_table(p: RoundPlan, capacity: int, tokens: int, first_split: int, device: torch.device) -> torch.Tensor:
    tiles, unordered = (torch.empty(capacity, 4, dtype=torch.int32, device=device) for _ in range(2))
    weights = torch.empty(capacity, dtype=torch.int32, device=device)
    tile_ptr = torch.empty(len(p.seg_len) + 1, dtype=torch.int32, device=device)
    at = segments(p, device)
    build_tiles(
        at.first_row, at.length, at.start, at.kind, at.hist, tile_ptr=tile_ptr, unordered=unordered, weights=weights, tiles=tiles,
        tokens_a_tile=tokens, first_split=first_split,
    )  # fmt: skip
    return tiles


def page_blocks(*pools: torch.Tensor) -> tuple[TensorDescriptor, ...]:
    return tuple(TensorDescriptor.from_tensor(p.view(-1, p.shape[-1]), [GRID, p.shape[-1]]) for p in pools)


def worst(case: Case, out: torch.Tensor, rows: list[int]) -> float:
    return max(float((out[i].double() - case.want(row)).abs().max()) for i, row in enumerate(rows))


@pytest.mark.parametrize("name", ROUNDS)
def test_every_layout(device: torch.device, name: str) -> None:
    case = Case.make(plan(*ROUNDS[name], taken=2), 4, 1, 16, device)
    out = case.run()
    edge = sorted({*range(0, case.plan.rows, 7), case.plan.rows - 1, *case.plan.seg_first_row.tolist()})
    assert worst(case, out[edge], edge) < LIMIT
    readouts = case.plan.readout_row.tolist()
    assert worst(case, case.run(readouts=True), readouts) < LIMIT


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 1, 16), (12, 2, 32), (8, 2, 64), (2, 2, 16), (5, 1, 16)])
def test_groups_and_head_sizes(device: torch.device, heads: int, kv_heads: int, dim: int) -> None:
    case = Case.make(plan(decision(70, 9), what_if(66, 3), taken=2), heads, kv_heads, dim, device)
    rows = list(range(0, case.plan.rows, 11))
    assert worst(case, case.run()[rows], rows) < LIMIT
    assert worst(case, case.run(readouts=True), case.plan.readout_row.tolist()) < LIMIT


def test_blocks_that_need_no_mask_keep_their_bits_with_one(device: torch.device) -> None:
    case = Case.make(plan(decision(130, 5), decision(3, 2, checkpoint=RESUMED), taken=2), 4, 2, 32, device)
    assert torch.equal(case.run(), case.run(always_mask=True))
    assert torch.equal(case.run(), case.run(bulk=True))
    assert torch.equal(case.run(readouts=True), case.run(always_mask=True, readouts=True))


def test_short_passes_have_low_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = AttentionConfig(64, 64, 4, 2), AttentionConfig(128, 64, 8, 2)
    for bulk in (False, True):
        assert attention_config(256, 2, SHORT, bulk=bulk) == replace(low, bulk=bulk)
        assert attention_config(256, 2, SHORT + 1, bulk=bulk) == replace(high, bulk=bulk)
        assert attention_config(128, 2, 1, bulk=bulk) == replace(low, bulk=bulk)
    for dim, size in ((256, 4), (64, 2), (32, 4)):
        assert attention_config(dim, size, 1) == attention_config(dim, size, 1 << 20)
    monkeypatch.setattr(attention, "SHORT", 0)
    assert attention_config(256, 2, 1) == high


@pytest.mark.parametrize(
    ("round_", "heads", "kv_heads"),
    [
        pytest.param(ROUNDS["resumed"], 2, 1, id="resumed"),
        pytest.param(ROUNDS["resumed"], 4, 2, id="resumed, two groups", marks=pytest.mark.bars),
        pytest.param(ROUNDS["what_if"], 4, 2, id="what_if", marks=pytest.mark.bars),
    ],
)
def test_tiles_of_any_height_give_the_same_answer(
    device: torch.device, round_: tuple[Request, ...], heads: int, kv_heads: int
) -> None:
    case = Case.make(plan(*round_, taken=2), heads, kv_heads, 32, device)
    usual = attention_config(32, 4, 1)
    for split in (NO_SPLIT, 64):
        out = case.run(first_split=split)
        for rows in (32, 128):
            other = case.run(first_split=split, config=replace(usual, rows=rows))
            torch.testing.assert_close(other, out, rtol=1e-5, atol=2e-6)  # a CPU's library sums other heights in other orders


@pytest.mark.parametrize(
    ("round_", "heads"),
    [
        pytest.param(FEWER, 4, id="mixed"),
        pytest.param(ROUNDS["resumed"], 6, id="resumed"),
        pytest.param(ROUNDS["mixed"], 4, id="long mixed", marks=pytest.mark.bars),
    ],
)
def test_spans_merge_to_the_same_answer(device: torch.device, round_: tuple[Request, ...], heads: int) -> None:
    case = Case.make(plan(*round_, taken=2), heads, 1, 16, device)
    split, whole = case.run(first_split=64), case.run()
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(case.run(first_split=64, readouts=True), case.run(readouts=True), rtol=1e-5, atol=2e-6)
    # Rows below the first split are summed in the same order, so they keep their bits; some row above it must not.
    p = case.plan
    keys = np.where(p.seg_kind[p.row_segment] == 0, p.positions + 1, p.seg_hist[p.row_segment])
    below = torch.from_numpy(keys <= 64).to(device)
    assert round_ is ROUNDS["resumed"] or below.any()
    assert torch.equal(split[below], whole[below])
    assert not torch.equal(split, whole)


@pytest.mark.parametrize("first_split", [64, 128, NO_SPLIT])
@pytest.mark.parametrize("tokens", [10, 16])
def test_tile_table_covers_every_row_and_span_once(device: torch.device, first_split: int, tokens: int) -> None:
    p = plan(*ROUNDS["mixed"], decision(700, 20), taken=2)
    capacity, spans = tile_capacity(p.seg_len, p.seg_start, p.seg_kind, p.seg_hist, tokens, first_split)
    table = tile_table(p, capacity + 5, tokens, first_split, device).cpu().numpy()
    used = table[table[:, 0] >= 0]
    assert (table[len(used) :, 0] == -1).all()
    assert len({tuple(t) for t in used.tolist()}) == len(used)
    keys = np.where(p.seg_kind[p.row_segment] == 0, p.positions + 1, p.seg_hist[p.row_segment])
    seen = np.zeros((p.rows, spans), int)
    for segment, first, row, span in used:
        assert row == p.seg_first_row[segment] + first
        seen[row : p.seg_first_row[segment] + min(first + tokens, p.seg_len[segment]), span] += 1
    want = np.array([[s == 0 or first_split << (s - 1) < k for s in range(spans)] for k in keys])
    assert (seen[want] == 1).all()
    assert seen.max() == 1
    reach = np.minimum(used[:, 1] + tokens, p.seg_len[used[:, 0]])
    end = np.where(p.seg_kind[used[:, 0]] == 0, p.seg_start[used[:, 0]] + reach, p.seg_hist[used[:, 0]])
    low = np.where(used[:, 3] == 0, 0, first_split << np.maximum(used[:, 3] - 1, 0))
    blocks = -(-(np.minimum(end, first_split << used[:, 3]) - low) // GRID)
    trunk = p.seg_kind[used[:, 0]] == 0
    assert (np.diff(blocks[trunk]) <= 0).all()
