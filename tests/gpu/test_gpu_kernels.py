"""Fork attention as it is launched for real models (head size 256 and 128, groups 4 and 6, bfloat16 and float32) against float64, and with
low tiles against high ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flide_engine.cuda import CudaForward
from flide_engine.engine import Engine, RequestResult
from flide_engine.kernels import attention
from flide_engine.kernels.attention import SHORT
from flide_engine.segments import Request, Round
from forest import Stored, decision, plan, what_if
from forests import random_forest
from test_attention import NO_SPLIT, Case
from test_gpu_bits import Tally, check_ways

RESUMED = Stored(128, np.array([1, 0], np.int32), 0)
MIXED = (decision(130, 65, 40), what_if(), decision(3, 2, checkpoint=RESUMED), decision(640, 30, 1))
LIMITS = {torch.float32: 3e-5, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(8, 2, 256), (16, 4, 256), (24, 4, 256), (24, 4, 128), (8, 2, 128), (8, 2, 64), (12, 2, 32), (6, 1, 16)],
)
def test_every_configuration(dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    case = Case.make(plan(*MIXED, taken=2), heads, kv_heads, dim, torch.device("cuda"), dtype)
    rows = list(range(0, case.plan.rows, 17))
    readouts = case.plan.readout_row.tolist()
    for split in (NO_SPLIT, 64):
        out, read = case.run(first_split=split), case.run(first_split=split, readouts=True)
        worst = max(float((out[row].double() - case.want(row)).abs().max()) for row in rows)
        worst = max([worst, *(float((read[i].double() - case.want(row)).abs().max()) for i, row in enumerate(readouts))])
        assert worst < LIMITS[dtype], (split, worst)
        assert torch.equal(out, case.run(first_split=split, always_mask=True))
        assert torch.equal(out, case.run(first_split=split, bulk=True))
        for bulk in (False, True):
            assert torch.equal(out, case.run(first_split=split, bulk=bulk, query_rows=1)), "low tiles"
        assert torch.equal(read, case.run(first_split=split, always_mask=True, readouts=True))


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_a_row_keeps_its_bits_wherever_its_tile_starts(dtype: torch.dtype) -> None:
    """The same trunk in one piece and in two: the second piece's tiles start elsewhere, and its rows must not notice."""
    device = torch.device("cuda")
    whole = Case.make(plan(decision(300, 40), taken=8), 24, 4, 256, device, dtype)
    held = Stored(192, whole.plan.page_table[0, :3], 0)
    part = plan(decision(108, 40, checkpoint=held), taken=8)
    part.page_table[0, :5] = whole.plan.page_table[0, :5]
    cut = Case(part, *(t[192:] for t in (whole.q, whole.gate, whole.k_local, whole.v_local)), whole.k_pages, whole.v_pages)
    assert torch.equal(cut.run(), whole.run()[192:])


def test_low_tiles_and_high_ones_have_the_same_bits(rounds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.8B over random rounds around SHORT: always high, always low, and as chosen; eagerly, captured and replayed; logits and states."""
    from quick import quick_engine  # imports CUDA code, which collection on a CPU machine must not

    engine = quick_engine("0.8b", torch.bfloat16, memory_bytes=2 << 30)
    model, memory = engine.model, engine.memory
    ways = [
        (0, engine),
        *((short, Engine(model, memory, CudaForward(model, memory, 4096), 4096)) for short in (1 << 40, SHORT)),
    ]

    def run(which: int, *requests: Request) -> tuple[RequestResult, ...]:
        monkeypatch.setattr(attention, "SHORT", ways[which][0])
        return tuple(ways[which][1].run(Round(requests)).results)

    tally, before = Tally(), memory.free()
    for seed in rounds[: max(12, len(rounds) // 4)]:
        rng = np.random.default_rng(seed)
        forest = random_forest(rng, engine.info.vocab_size, most=(80, 300, 900)[seed % 3])
        check_ways(engine, run, (1, 2, 0, 1, 2), forest, tally, f"round {seed}")
    assert memory.free() == before
    chosen: Any = ways[2][1]._forward
    assert {chosen._workspace.attention(s).rows for s in chosen.graphs._graphs} == {64, 128}, "rounds on both sides"
    print(f"\n{engine.info.model}: {tally.made} comparisons equal")
