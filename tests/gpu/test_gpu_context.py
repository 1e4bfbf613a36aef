"""A request of the model's whole context: bounded memory beside the pools, and a resumed last step with the same bits."""

from __future__ import annotations

import time

import numpy as np
import torch
from flide_engine.segments import Kind, Readout, Request, Round, Segment


def test_whole_context() -> None:
    from quick import quick_engine

    engine = quick_engine("0.8b", torch.bfloat16, 16 << 30)
    rng = np.random.default_rng(0)
    n, m = engine.info.max_context - 200, engine.info.max_context - 1024
    trunk = rng.integers(0, engine.info.vocab_size, n).astype(np.int32)
    question = Segment(
        rng.integers(0, engine.info.vocab_size, 50).astype(np.int32), 0, Kind.LOCAL, readouts=(Readout(49, (5, 6, 7)),)
    )
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    fresh = engine.run(Round((Request((Segment(trunk, saves=(m,)), question)),)))
    grown = (torch.cuda.max_memory_allocated() - before) / 2**20
    print(
        f"\n{n} tokens in {fresh.passes} passes, {time.perf_counter() - began:.1f} s, {grown:.0f} MiB beside weights, pools and workspace"
    )
    checkpoint = fresh.results[0].checkpoints[0, m]
    for _ in range(3):
        began = time.perf_counter()
        step = engine.run(Round((Request((Segment(trunk[m:]), question), checkpoint),)))
        print(f"resumed at {m}: {step.tokens} rows, {1e3 * (time.perf_counter() - began):.1f} ms")
        assert np.array_equal(step.results[0].logits[1][0], fresh.results[0].logits[1][0])
    assert np.isfinite(fresh.results[0].logits[1][0]).all()
    assert grown < 1024
