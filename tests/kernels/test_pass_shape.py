"""Shapes of passes and the metadata block: what a captured graph relies on."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flide_engine.cuda.metadata import block_size, device_round, fill, layout_of
from flide_engine.cuda.shape import PassShape, power_of_four, power_of_two, shape_of
from flide_engine.engine import Engine
from flide_engine.kernels.tiles import FIRST_SPLIT
from flide_engine.plan import RoundPlan, plan_round
from flide_engine.segments import Kind, Request, Round, Segment
from forest import decision
from test_cuda_pass import Here, InterpretedForward, branch, engine, history, tokens

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from forests import random_forest

SPLIT = 128


def planned(*requests: Request) -> RoundPlan:
    return plan_round(Round(requests), lambda p, s: (np.arange(p, dtype=np.int32), np.arange(s, dtype=np.int32))).plan


def block_of(plan: RoundPlan, shape: PassShape) -> np.ndarray:
    layout = layout_of(shape)
    block = np.full(block_size(plan, layout), -(1 << 30), np.int32)
    fill(block, plan, layout)
    return block


def test_capacities_hold_and_waste_little() -> None:
    for n in range(1, 5000):
        assert n <= power_of_two(n) < 2 * n
        assert n <= power_of_four(n, 16) < max(17, 4 * n)
    assert [power_of_four(n) for n in (0, 1, 2, 4, 5, 16, 17)] == [1, 1, 4, 4, 16, 16, 64]


@pytest.mark.parametrize("seed", range(25))
def test_block_holds_the_plan(seed: int) -> None:
    """Every array stands at its place in its capacity, with padding that names no row, page, slot or segment."""
    plan = planned(*random_forest(np.random.default_rng(seed), 1000, most=200).requests)
    shape = shape_of(plan, SPLIT)
    at = device_round(shape, layout_of(shape), torch.from_numpy(block_of(plan, shape)))
    held = {name: getattr(at, name).numpy() for name in ("token_ids", "positions", "row_segment", "kv_dst", "readout_row", "label_ids",
            "conv_prev", "seg_state_in", "seg_state_out", "save_pos", "save_slot", "label_ptr", "save_ptr")}  # fmt: skip
    names = {"seg_first_row": "first_row", "seg_len": "length", "seg_start": "start", "seg_kind": "kind", "seg_hist": "hist",
             "seg_locals": "locals"}  # fmt: skip
    held |= {name: getattr(at.segments, field).numpy() for name, field in names.items()}
    tail = held.pop("label_ids")
    assert np.array_equal(tail[: len(plan.label_ids)], plan.label_ids)
    pages = at.segments.page_table.numpy()
    assert pages.shape == (len(tail), 1)
    assert np.shares_memory(pages, tail)
    for table, own in zip(at.segments.table.numpy(), plan.seg_table, strict=False):
        assert table >= len(plan.label_ids)
        assert np.array_equal(pages[table : table + plan.page_table.shape[1], 0], plan.page_table[own])
    for name, got in held.items():
        want = plan.arrays()[name]
        assert np.array_equal(got[tuple(slice(n) for n in want.shape)], want), name
        rest = got[len(want) :]
        if name.endswith("_ptr"):
            assert (rest == want[-1]).all(), name
        elif name in ("row_segment", "kv_dst", "conv_prev", "seg_state_in", "seg_state_out", "save_slot"):
            assert (rest == -1).all(), name
        else:
            assert (rest == (int(Kind.LOCAL) if name == "seg_kind" else 0)).all(), name
    assert at.counts[0].item() == len(plan.readout_row)
    listed = [set(t.numpy().tolist()) - {-1} for t in (*at.trunks, *at.locals)]
    assert set().union(*listed) == set(range(len(plan.seg_len)))
    assert sum(map(len, listed)) == len(plan.seg_len)
    assert shape.tiles(32) >= sum(-(-n // 32) for n in plan.seg_len.tolist())
    assert shape.chunks >= sum(-(-n // 64) for n in plan.seg_len.tolist())
    assert shape.saves >= len(plan.save_pos)
    assert shape.most_labels >= np.diff(plan.label_ptr).max()


def test_shapes_are_few() -> None:
    """Rounds of any mix of a workload's requests meet few shapes; what varies freely does not count."""
    rng, shapes = np.random.default_rng(0), set()
    for _ in range(400):
        mix = [decision(int(rng.integers(140, 540)), int(rng.integers(40, 130))) for _ in range(rng.integers(1, 13))]
        shapes.add(shape_of(planned(*mix), FIRST_SPLIT))
    assert len(shapes) < 60


def test_tile_table_has_room_for_every_span() -> None:
    """Histories of several key spans: the table of a shape holds what the plan needs."""
    from flide_engine.kernels.tiles import tile_capacity

    for seed in range(20):
        plan = planned(*random_forest(np.random.default_rng(seed), 1000, most=700).requests)
        shape = shape_of(plan, SPLIT)
        need, spans = tile_capacity(plan.seg_len, plan.seg_start, plan.seg_kind, plan.seg_hist, 16, SPLIT)
        assert shape.tiles(16) >= need
        assert spans <= shape.spans < 2 * spans


def test_plans_of_one_shape_share_layout_and_differ_in_content() -> None:
    a, b = planned(decision(300, 40, 38, 20)), planned(decision(310, 25, 33, 21))
    assert shape_of(a, SPLIT) == shape_of(b, SPLIT)
    assert not np.array_equal(block_of(a, shape_of(a, SPLIT)), block_of(b, shape_of(b, SPLIT)))
    assert shape_of(planned(decision(400, 40, 38)), SPLIT) != shape_of(a, SPLIT)


class Replaying(InterpretedForward):
    """Passes of a shape that came before go through the views and buffers of its first plan, as a captured graph does."""

    stale = False

    def launch(self, plan: RoundPlan):  # type: ignore[no-untyped-def]
        shape = shape_of(plan, self._first_split)
        layout = layout_of(shape)
        self.kept = getattr(self, "kept", {})
        if shape not in self.kept:
            self._workspace.reserve(shape)
            block = torch.empty(layout.tail + 4096, dtype=torch.int32)
            self.kept[shape] = (block, device_round(shape, layout, block), torch.empty(4096))
            self.fresh = True
        block, at, logits = self.kept[shape]
        if self.fresh or not self.stale:
            fill(block.numpy(), plan, layout)
        self.fresh = False
        with torch.inference_mode():
            self.enqueue(at, logits)
        return Here(logits[: len(plan.label_ids)].clone())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite replays graphs themselves")
@pytest.mark.parametrize("saves", [False, pytest.param(True, marks=pytest.mark.bars)], ids=["resumed", "with saves"])
def test_a_pass_through_the_views_of_another_plan_of_its_shape(saves: bool) -> None:
    """What a replay does, in the interpreter: after a shorter plan, and after a longer one; with the metadata left stale the answers
    differ. saves: trunks from the beginning that are long enough for a checkpoint, in place of resumed ones."""

    def request(on: Engine, trunk: int, own: int, seed: int) -> Round:
        segments = branch(own, seed + 1), branch(3, seed + 2)
        if saves:
            return Round((Request((Segment(tokens(trunk + 60, seed), saves=(64,)), *segments)),))
        return Round((Request((Segment(tokens(trunk, seed)), *segments), history(on)),))

    def answer(on: Engine, *plan: int) -> torch.Tensor:
        return torch.from_numpy(on.run(request(on, *plan)).results[0].logits[1][0])

    plans = ((12, 5, 0), (18, 9, 10), (12, 5, 20))
    one, replaying = engine("dummy:small"), engine("dummy:small")
    assert len({shape_of(planned(*request(one, *plan).requests), 4096) for plan in plans}) == 1
    want = [answer(one, *plan) for plan in plans]
    replaying._forward.__class__ = Replaying
    got = [answer(replaying, *plan) for plan in plans]
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    replaying._forward.stale = True  # type: ignore[attr-defined]
    assert not torch.equal(answer(replaying, *plans[1]), want[1])
