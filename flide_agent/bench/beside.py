"""What stands beside a figure: the model's matrix products alone and its attention alone, at the shapes of the same round.

Products: the round's padded rows, the model's own weights; a captured graph on a GPU, one after the other on a CPU.
Attention: on a GPU the kernels' own times inside a pass, by the profiler; on a CPU the reference's attention over the same plan.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from flide_engine.models import FullLayer, LinearLayer
from flide_engine.reference.products import padded
from flide_engine.segments import Round

if TYPE_CHECKING:
    from flide_engine.engine import Engine
    from flide_engine.plan import RoundPlan

REPEATS = 10
ATTENTION = ("_fork_attention", "_merge_spans")
FAMILIES = {
    "_fork_attention": "attention",
    "_merge_spans": "attention",
    "_gdn_": "delta rule",
    "_conv_gate": "convolution and gates",
    "_add_rms_norm": "norms",
    "_gated_norm": "norms",
    "_silu_mul": "silu",
    "_key_value": "rope, K/V to pages",
    "_query": "rope, K/V to pages",
    "_label_logits": "label logits",
    "gemm": "products",
    "nvjet": "products",
    "cutlass": "products",
    "cublas": "products",
    "_fixed_order": "products",
}
"""Part of a kernel's name -> what it is a part of."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Milliseconds of one round. kernels: by family, on a GPU; empty on a CPU. busy_ms: during which any of them ran."""

    products_ms: float
    attention_ms: float
    rows: int
    padded_rows: int
    kernels: dict[str, float]
    busy_ms: float | None


class Yardstick:
    """Measures beside one engine, between its rounds. Products are timed once for each pair of row counts."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._known = engine, {(0, 0): 0.0}
        self._gpu = torch.device(engine.info.device).type == "cuda"

    def measure(self, round_: Round) -> Beside:
        """Of a round that the engine can run. Its checkpoints are given back."""
        prepared = self._engine.prepare(round_)
        try:
            plans = [planned.plan for _, planned in prepared.passes]
            products = sum(self.products_ms(p.rows, len(p.readout_row)) for p in plans)
            attention = 0.0 if self._gpu else sum(_cpu_attention_ms(self._engine, p) for p in plans)
        finally:
            self._engine.discard(prepared)
        rows, padded_rows = sum(p.rows for p in plans), sum(self._padded(p.rows) for p in plans)
        if not self._gpu:
            return Beside(products, attention, rows, padded_rows, {}, None)
        kernels, busy = self._kernels(round_)
        torch.cuda.empty_cache()  # what was measured here is no part of the engine's memory
        return Beside(products, kernels.get("attention", 0.0), rows, padded_rows, kernels, busy)

    def products_ms(self, rows: int, readouts: int) -> float:
        """Median time of all matrix products of a pass of so many rows and readouts."""
        if not rows:
            return 0.0
        at = (self._padded(rows), self._padded(max(1, readouts)))
        if at not in self._known:
            self._known[at] = self._time_products(*at)
        return self._known[at]

    def _padded(self, rows: int) -> int:
        if not self._gpu:
            return padded(rows)
        from flide_engine.cuda.capacity import row_capacity

        return row_capacity(rows)

    @torch.inference_mode()
    def _time_products(self, rows: int, readouts: int) -> float:
        jobs = products(self._engine.model.layers, rows, readouts)
        like = jobs[0][0]
        most = max(rows, readouts)
        x = {k: torch.randn(most, k, device=like.device, dtype=like.dtype) for k in {w.shape[1] for w, _ in jobs}}
        y = {n: torch.empty(most, n, device=like.device, dtype=like.dtype) for n in {w.shape[0] for w, _ in jobs}}

        def launch() -> None:
            for w, count in jobs:
                torch.mm(x[w.shape[1]][:count], w.t(), out=y[w.shape[0]][:count])

        return graph_ms(launch) if self._gpu else host_ms(launch)

    def _kernels(self, round_: Round) -> tuple[dict[str, float], float]:
        """Milliseconds of one round's kernels by family, and of the time that any of them ran."""
        release(self._engine.run(round_).results)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            release(self._engine.run(round_).results)
            torch.cuda.synchronize()
        found: dict[str, float] = defaultdict(float)
        spans: list[tuple[float, float]] = []
        for event in profile.events():
            if str(event.device_type).endswith("CUDA"):
                name = event.name.lower()
                family = next((f for part, f in FAMILIES.items() if part in name), "tables, copies, rest")
                found[family] += (event.time_range.end - event.time_range.start) / 1e3
                spans.append((event.time_range.start, event.time_range.end))
        return dict(found), union(spans) / 1e3


def products(layers: Sequence[LinearLayer | FullLayer], rows: int, readouts: int) -> list[tuple[torch.Tensor, int]]:
    """(weight, rows) of every matrix product of a pass; in the last layer only keys and values need all rows.

    What reads the same rows is one product here, though a pass may run it as two: the fastest that the same sums can be had.
    """
    jobs: list[tuple[torch.Tensor, int]] = []
    for i, layer in enumerate(layers):
        after = readouts if i + 1 == len(layers) else rows
        if isinstance(layer, LinearLayer):
            jobs += [(layer.in_all, rows), (layer.out, after)]
        elif i + 1 == len(layers):
            jobs += [(layer.qkv[layer.q.shape[0] :], rows), (layer.q, after), (layer.o, after)]
        else:
            jobs += [(layer.qkv, rows), (layer.o, after)]
        jobs += [(layer.gate_up, after), (layer.down, after)]
    return jobs


def graph_ms(launch: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median time of one replay of a captured graph, by events."""
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    times = []
    for _ in range(repeats):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b))
    return float(statistics.median(times))


def host_ms(launch: Callable[[], object], repeats: int = 3) -> float:
    """Median time on the host's clock, after one call unmeasured."""
    launch()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        launch()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


@torch.inference_mode()
def _cpu_attention_ms(engine: Engine, plan: RoundPlan) -> float:
    """The full-attention layers of one plan, reading the pools as they are. Writes only pages that the plan has taken."""
    from flide_engine.reference.attention import Attention, Rotary
    from flide_engine.reference.layout import layout

    model, memory = engine.model, engine.memory
    at, rotary = layout(plan), Rotary(model.config, memory.dtype)
    full = [layer for layer in model.layers if isinstance(layer, FullLayer)]
    if not full:
        return 0.0
    projected = torch.randn(at.rows, full[0].qkv.shape[0], dtype=memory.dtype)
    made = [Attention(model.config, layer, rotary, memory, i, at, projected) for i, layer in enumerate(full)]
    last = model.layers[-1] is full[-1]

    def launch() -> None:
        for i, attention in enumerate(made):
            if last and i + 1 == len(made):
                attention.readout_rows()
            else:
                attention.all_rows()

    return host_ms(launch, 1)


def union(spans: Sequence[tuple[float, float]]) -> float:
    """Length of what these (start, end) cover together."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def release(results: Sequence[Any]) -> None:
    """Give back the checkpoints of a round's results."""
    for result in results:
        for handle in result.checkpoints.values():
            handle.release()
