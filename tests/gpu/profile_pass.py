"""Where a pass's time goes: per kernel (time, bytes, FLOPs, share), beside the model's matrix products alone in the same run.

    python tests/gpu/profile_pass.py WORKLOADS.json [0.8b 4b 9b]

Of each workload the request of median size runs alone. Kernel times are the profiler's over an eager pass; `graph` is one replay of
the pass captured as a graph, `products` one replay of its matrix products alone (same rows, same weights), `run()` and `eager` the
engine's run() on the host clock with graphs and without; digest: of the logits, to compare commits by. Bytes are what a kernel
must read and write once. Prints Markdown.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[1] / "kernels"), str(Path(__file__).parent)]

import numpy as np
import torch
from bench_attention import median_ms
from flide_engine.cuda.full import key_value_rows
from flide_engine.cuda.metadata import DeviceRound
from flide_engine.cuda.shape import shape_of
from flide_engine.engine import Engine
from flide_engine.models import LinearLayer
from flide_engine.plan import RoundPlan
from flide_engine.segments import Kind, Readout, Request, Round, Segment
from quick import quick_engine

WORKLOADS = ("race_one", "quality_one", "race_all", "quality_all", "multirc")
FAMILIES = (
    "_add_rms_norm", "_conv_gate", "_gdn_intra", "_gdn_scan", "_gated_norm", "_gdn_branch", "_key_value", "_query", "_fork_attention",
    "_merge_spans", "_silu_mul", "_label_logits",
)  # fmt: skip


def request_of(shape: dict[str, Any], seed: int) -> Request:
    rng = np.random.default_rng(seed)

    def draw(n: int) -> np.ndarray:
        return rng.integers(1000, 200_000, n).astype(np.int32)

    labels = tuple(range(30, 34))
    n = int(shape["state"])
    saves = (n // 64 * 64,) if n >= 64 else ()
    questions = [Segment(draw(q), 0, Kind.LOCAL, readouts=(Readout(q - 1, labels),)) for q in shape["questions"]]
    return Request((Segment(draw(n), saves=saves), *questions))


def median_request(shapes: list[dict[str, Any]]) -> Request:
    order = sorted(shapes, key=lambda s: s["state"] + sum(s["questions"]))
    return request_of(order[len(order) // 2], 0)


def costs(engine: Engine, plan: RoundPlan) -> dict[str, tuple[float, float]]:
    """(bytes, FLOPs) of one pass by kernel family."""
    c, t, r = engine.model.config, plan.rows, len(plan.readout_row)
    keys = np.where(plan.seg_kind[plan.row_segment] == 0, plan.positions + 1, plan.seg_hist[plan.row_segment]).astype(float)
    local = plan.seg_kind[plan.row_segment] != 0
    own = np.arange(t) - plan.seg_first_row[plan.row_segment] + 1 + plan.seg_locals[plan.row_segment, :, 1].sum(1)
    pairs = keys + local * own
    full, linear = c.full_layers, c.linear_layers
    nv, nk, dk, dv = c.gdn_value_heads, c.gdn_key_heads, c.gdn_key_dim, c.gdn_value_dim
    trunk = int((~local).sum())
    if shape_of(plan, engine._forward._first_split).one_branch:  # type: ignore[attr-defined]
        trunk = t  # the walk over the trunk takes the branch along
    row = c.heads * c.head_dim
    core = 2 * (2 * nk * dk + nv * dv) + 2 * nv * 64 * 2 + 8 * nv
    step = 2 * nv * (3 * dk * dv + 2 * 64 * dv)
    out: dict[str, tuple[float, float]] = {
        "_add_rms_norm": ((2 * c.layers - 1) * t * c.hidden * 8.0, 0.0),
        "_conv_gate": (linear * t * (c.conv_channels * 4 + 12.0 * nv), linear * t * c.conv_channels * 8.0),
        "_gdn_intra": (linear * t * (nk * dk * 4.0 + nv * (8 + 8 + 256)), linear * t * nv * (4.0 * 64 * dk + 8 * 64 * 64)),
        "_gdn_scan": (linear * trunk * (core + 4.0 * nv * dv), linear * trunk * float(step)),
        "_gdn_branch": (linear * (t - trunk) * (core + 4.0 * nv * dv), linear * (t - trunk) * float(step)),
        "_gated_norm": (linear * t * nv * dv * 8.0, 0.0),
        "_key_value": (full * t * c.kv_heads * c.head_dim * 8.0, 0.0),
        "_query": ((full - 1) * t * row * 4.0, 0.0),
        "_fork_attention": (
            (full - 1) * (t * row * 6.0 + 4.0 * c.kv_heads * c.head_dim * t),
            4.0 * row * (pairs.sum() * (full - 1) + pairs[plan.readout_row].sum()),
        ),
        "_silu_mul": ((c.layers - 1) * t * c.mlp * 6.0, 0.0),
        "_label_logits": (len(plan.label_ids) * c.hidden * 2.0 + 4.0 * r * c.hidden, 2.0 * len(plan.label_ids) * c.hidden),
        "products": (0.0, 0.0),
    }
    moved = flops = 0.0
    for i, layer in enumerate(engine.model.layers):
        for w, rows in zip(_weights(layer, i + 1 == c.layers), _rows(layer, t, r, i + 1 == c.layers), strict=True):
            moved += 2.0 * (w.numel() + rows * (w.shape[0] + w.shape[1]))
            flops += 2.0 * rows * w.numel()
    out["products"] = (moved, flops)
    return out


def _weights(layer: Any, last: bool) -> list[torch.Tensor]:
    if isinstance(layer, LinearLayer):
        return [layer.in_all, layer.out, layer.gate_up, layer.down]
    first = [key_value_rows(layer), layer.q] if last else [layer.qkv]
    return [*first, layer.o, layer.gate_up, layer.down]


def _rows(layer: Any, rows: int, readouts: int, last: bool) -> list[int]:
    if not last:
        return [rows] * 4
    return [rows, readouts, readouts, readouts] if isinstance(layer, LinearLayer) else [rows, *[readouts] * 4]


def products_alone(engine: Engine, at: DeviceRound) -> float:
    """Median ms of one graph replay of all matrix products of the pass at its capacities."""
    jobs = []
    for i, layer in enumerate(engine.model.layers):
        last = i + 1 == len(engine.model.layers)
        for w, rows in zip(_weights(layer, last), _rows(layer, at.shape.rows, at.shape.readouts, last), strict=True):
            jobs.append((w, rows))
    x = {k: torch.randn(at.shape.rows, k, device="cuda", dtype=torch.bfloat16) for k in {w.shape[1] for w, _ in jobs}}
    y = {n: torch.empty(at.shape.rows, n, device="cuda", dtype=torch.bfloat16) for n in {w.shape[0] for w, _ in jobs}}
    return median_ms(lambda: [torch.mm(x[w.shape[1]][:rows], w.t(), out=y[w.shape[0]][:rows]) for w, rows in jobs], 10)


def kernel_times(engine: Engine, request: Request) -> dict[str, tuple[float, int]]:
    """(us, launches) by family over one eager pass."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        engine.run(Round((request,)))
        torch.cuda.synchronize()
    out: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for event in profile.key_averages():
        if event.self_device_time_total <= 0:
            continue
        family = next((f for f in FAMILIES if event.key.startswith(f)), None)
        if family is None:
            matrix = any(part in event.key.lower() for part in ("gemm", "nvjet", "cutlass", "cublas", "_fixed_order"))
            family = "products" if matrix else "tables, copies, rest"
        us, count = out[family]
        out[family] = (us + event.self_device_time_total, count + event.count)
    return out


def best_ms(engine: Engine, request: Request, times: int = 5) -> float:
    """Engine.run on the host clock."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        engine.run(Round((request,)))
        found.append(time.perf_counter() - began)
    return 1e3 * min(found)


@torch.inference_mode()
def profile(engine: Engine, name: str, request: Request) -> str:
    forward: Any = engine._forward
    graphs, forward.graphs = forward.graphs, None
    for _ in range(2):
        result = engine.run(Round((request,)))
    eager = best_ms(engine, request, 3)
    kernels = kernel_times(engine, request)
    forward.graphs = graphs
    for _ in range(3):
        replayed = engine.run(Round((request,)))
    run = best_ms(engine, request)
    forward.graphs = None  # nothing borrowed: the figures are those of the pass's own shape
    prepared = engine.prepare(Round((request,)))
    assert len(prepared.passes) == 1, "profile requests that fit one pass"
    plan = prepared.passes[0][1].plan
    shape = shape_of(plan, forward._first_split)
    landing = forward._landings.take(len(plan.label_ids))
    forward._block.post(prepared.staged.pop(), landing.at)
    forward._block.fetch(shape, forward._aside)
    at = forward._block.views(shape)
    replay = median_ms(lambda: forward.enqueue(at, forward._landings.buffer), 10)
    landing.launched(None)
    flat = np.concatenate([x for s in result.results[0].logits for x in s])
    again = np.concatenate([x for s in replayed.results[0].logits for x in s])
    same = bool(np.array_equal(flat, landing.result()) and np.array_equal(flat, again))
    digest = hashlib.sha256(flat.tobytes()).hexdigest()[:12]
    alone = products_alone(engine, at)
    engine.discard(prepared)
    forward.graphs = graphs
    theory = costs(engine, plan)
    total = sum(us for us, _ in kernels.values())
    print(
        f"\n**{engine.info.model}, {name}**: {plan.rows} rows (capacity {shape.rows}), {len(plan.readout_row)} questions. "
        f"graph {replay:.3f} ms, products {alone:.3f} ms, ratio {replay / alone:.2f}; run() {run:.2f} ms, eager {eager:.2f} ms; "
        f"kernels {total / 1e3:.3f} ms; graph and eager bits {'equal' if same else 'DIFFER'}, digest {digest}\n"
    )
    print("| kernel | launches | ms | share | GB | GB/s | GFLOP | TFLOP/s |\n|---|---|---|---|---|---|---|---|")
    for family, (us, count) in sorted(kernels.items(), key=lambda x: -x[1][0]):
        moved, flops = theory.get(family, (0.0, 0.0))
        print(
            f"| {family.lstrip('_')} | {count} | {us / 1e3:.3f} | {100 * us / total:.1f} % | {moved / 1e9:.3f} | {moved / us / 1e3:.0f} "
            f"| {flops / 1e9:.1f} | {flops / us / 1e6:.0f} |"
        )
    return f"| {engine.info.model} | {name} | {plan.rows} | {replay:.3f} | {alone:.3f} | {replay / alone:.2f} | {run:.2f} | {eager:.2f} |"


def main() -> None:
    shapes = json.loads(Path(sys.argv[1]).read_text())
    summary = []
    for size in sys.argv[2:] or ["0.8b", "4b", "9b"]:
        engine = quick_engine(size, torch.bfloat16, 4 << 30, 8192)
        for shape in engine.self_test.slower:
            print(f"{size}: {shape}")
        for name in WORKLOADS:
            summary.append(profile(engine, name, median_request(shapes[name])))
        del engine
        torch.cuda.empty_cache()
    print(
        "\n| model | workload | rows | graph ms | products ms | ratio | run() ms | eager ms |\n|---|---|---|---|---|---|---|---|"
    )
    print("\n".join(summary))


if __name__ == "__main__":
    main()
