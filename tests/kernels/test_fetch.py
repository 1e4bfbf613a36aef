"""A pass's metadata by way of the mailbox: plans of many sizes in turn, around the ring, nothing beyond a plan's entries written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flide_engine.cuda.aside import Aside
from flide_engine.cuda.metadata import MetadataBlock, layout_of
from flide_engine.cuda.shape import shape_of
from flide_engine.kernels.fetch import BLOCK, MOST_PROGRAMS, RING, advance, fetch
from forest import decision, plan

HERE = pytest.mark.skipif(torch.cuda.is_available(), reason="addresses of host memory; the GPU suite fetches with every pass")


@HERE
def test_blocks_of_any_size_in_turn() -> None:
    rng = np.random.default_rng(0)
    mailbox, turn = torch.zeros((RING, 2), dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    sizes = [32, BLOCK, BLOCK + 32, 5 * BLOCK - 32, (MOST_PROGRAMS + 1) * BLOCK + 32, *rng.integers(1, 60, RING) * 32]
    for n, size in enumerate(map(int, sizes)):
        posted = torch.from_numpy(rng.integers(-(1 << 31), 1 << 31, size + 64).astype(np.int32))
        mailbox[n % RING] = torch.tensor([posted.data_ptr(), size])
        block = torch.full((size + 64,), 7, dtype=torch.int32)
        fetch(mailbox, turn, block, size)
        advance(turn)
        assert torch.equal(block[:size], posted[:size])
        assert bool((block[size:] == 7).all())
    assert int(turn) == len(sizes) % RING


@HERE
def test_staged_plans_arrive_in_the_order_in_which_they_are_posted() -> None:
    """Staged out of order, one dropped, one posted whose pass was never enqueued; twice around the ring."""
    block, aside = MetadataBlock(torch.device("cpu")), Aside(torch.device("cpu"))
    for n in range(2 * RING // 3):
        plans = [plan(decision(70 + n, 5)), plan(decision(3, 4, 9 + n)), plan(decision(200, 8))]
        staged = [block.stage(p, shape_of(p, 4096)) for p in plans]
        block.drop(staged[2])
        for i in (1, 0):
            block.reserve(staged[i])
            block.post(staged[i], 100 + i)
            if (n + i) % 4 == 0:
                block.failed()
                block.post(staged[i], 100 + i)
            block.fetch(staged[i].shape, aside)
            at = block.views(staged[i].shape)
            rows = plans[i].rows
            assert at.counts.tolist() == [len(plans[i].readout_row), 100 + i]
            assert at.token_ids[:rows].tolist() == plans[i].token_ids.tolist()
            assert at.row_segment.tolist() == plans[i].row_segment.tolist() + [-1] * (staged[i].shape.rows - rows)
            assert at.label_ids[: len(plans[i].label_ids)].tolist() == plans[i].label_ids.tolist()
            block.sent(staged[i], None)
    assert len(block._free) == 3, "blocks are used again"
    assert layout_of(staged[0].shape).tail % 32 == 0
