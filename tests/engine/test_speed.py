"""Bars of the CPU engine that are about time and memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine
from flide_engine.segments import GRID, Kind, Readout, Request, Round, Segment

from flide_agent.default_model import DIRECTORY

HISTORY, NEW, QUESTIONS, QUESTION = 10_000, 300, 5, 60


def median_seconds(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median wall seconds of each function, taken in turns so that a slow moment of the machine meets all of them."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for f, t in zip(functions, times, strict=True):
            begin = time.perf_counter()
            f()
            t.append(time.perf_counter() - begin)
    return [float(np.median(t)) for t in times]


def attention_to_history(engine: Engine, keys: int, queries: int) -> Callable[[], None]:
    """The attention of `queries` rows to `keys` history keys alone, in all full-attention layers: scores, softmax, values."""
    config = engine.model.config
    group = config.heads // config.kv_heads
    q = torch.randn(config.kv_heads, group * GRID, config.head_dim)
    k, v = torch.randn(2, config.kv_heads, keys, config.head_dim)

    @torch.inference_mode()
    def run() -> None:
        for _ in range(config.full_layers * -(-queries // GRID)):
            torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    return run


@pytest.mark.bars
def test_bar_a_step_costs_its_new_tokens(bar: Callable[..., None]) -> None:
    """10k tokens of history, 300 new ones, 5 questions of 60: at most 1.3 x (a fresh request of 600 + attention to the history)."""
    engine = Engine.load(str(DIRECTORY), memory_bytes=512 << 20)
    rng = np.random.default_rng(0)

    def tokens(n: int) -> np.ndarray:
        return rng.integers(0, engine.info.vocab_size, n).astype(np.int32)

    labels = tuple(range(20, 25))
    branches = [Segment(tokens(QUESTION), 0, Kind.LOCAL, (), (Readout(QUESTION - 1, labels),)) for _ in range(QUESTIONS)]
    m = HISTORY // GRID * GRID
    history = tokens(m)
    held = engine.run(Round((Request((Segment(history, saves=(m,)),)),))).results[0].checkpoints[0, m]
    new = tokens(NEW)
    step = Round((Request((Segment(new), *branches), held),))
    fresh = Round((Request((Segment(new), *branches)),))
    rows = NEW + QUESTIONS * QUESTION
    times = median_seconds(
        [lambda: engine.run(step), lambda: engine.run(fresh), attention_to_history(engine, m, rows)], repeats=15
    )
    print(f"\nstep {times[0] * 1e3:.1f} ms, fresh {times[1] * 1e3:.1f} ms, attention to the history {times[2] * 1e3:.1f} ms")
    held.release()
    bar(
        "step_10k_over_fresh_and_attention",
        times[0] / (times[1] + times[2]),
        limit=1.3,
        step_ms=times[0] * 1e3,
        fresh_ms=times[1] * 1e3,
        attention_ms=times[2] * 1e3,
    )


PEAK = """
import resource, sys
import numpy as np
from flide_agent.default_model import DIRECTORY
from flide_engine.engine import Engine
from flide_engine.segments import Kind, Readout, Request, Round, Segment

engine = Engine.load(str(DIRECTORY), memory_bytes=512 << 20)
rng = np.random.default_rng(0)
tokens = lambda n: rng.integers(0, engine.info.vocab_size, n).astype(np.int32)
branches = [Segment(tokens(60), 0, Kind.LOCAL, (), (Readout(59, (1, 2)),)) for _ in range(5)]
result = engine.run(Round((Request((Segment(tokens(12_000), saves=(11_968,)), *branches)),)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2, result.passes)
"""


@pytest.mark.bars
def test_bar_12k_history_within_2_gib(bar: Callable[..., None]) -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, timeout=300)
    peak, passes = done.stdout.split()
    bar("peak_gib_of_a_12k_history", float(peak), limit=2.0, passes=int(passes))
