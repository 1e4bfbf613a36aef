"""Fork attention alone at head size 256: launch configurations against each other and against SDPA, each in a captured graph.

`python tests/gpu/bench_attention.py` prints a table and checks every configuration's output against the first one's.
"""

# ruff: noqa: B023 - every closure is called before its loop goes on

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path += [str(Path(__file__).parents[1] / "kernels")]

from flide_engine.kernels.attention import AttentionConfig, Partials, fork_attention, merge_spans
from flide_engine.kernels.tiles import tile_capacity
from forest import Stored, decision, plan, segments
from test_attention import tile_table
from triton.tools.tensor_descriptor import TensorDescriptor

DIM = 256


def median_ms(launch: Callable[[], object], repeats: int = 30) -> float:
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
    return float(np.median(times))


def bench(name: str, p: object, heads: int, kv_heads: int, configs: list[AttentionConfig], first_split: int) -> None:
    device, group = torch.device("cuda"), heads // kv_heads
    at = segments(p, device)
    pages = int(p.page_table.max()) + 1
    g = torch.Generator(device="cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, device=device, dtype=torch.bfloat16)

    q, both = random(p.rows, heads, DIM), random(p.rows, (2 * heads + 2 * kv_heads) * DIM)
    k_local, k_pages, v_pages = (
        random(p.rows, kv_heads, DIM),
        random(pages, kv_heads, 64, DIM),
        random(pages, kv_heads, 64, DIM),
    )
    gate, v_local = both[:, DIM:], both[:, -kv_heads * DIM :]
    keys = np.where(p.seg_kind[p.row_segment] == 0, p.positions + 1, p.seg_hist[p.row_segment]).astype(np.float64)
    local = p.seg_kind[p.row_segment] != 0
    own = np.arange(p.rows) - p.seg_first_row[p.row_segment] + 1
    flops = 4 * heads * DIM * float((keys + local * own).sum())
    want = None
    for config in configs:
        tokens = config.tokens(group)
        count, spans = tile_capacity(p.seg_len, p.seg_start, p.seg_kind, p.seg_hist, tokens, first_split)
        tiles = tile_table(p, count, tokens, first_split, device)
        out = torch.full_like(q, torch.nan)
        shape = (spans if spans > 1 else 0, p.rows, heads)
        partials = Partials(*(torch.empty(s, device=device) for s in ((*shape, DIM), shape, shape)))
        blocks = tuple(TensorDescriptor.from_tensor(x.view(-1, DIM), [64, DIM]) for x in (k_pages, v_pages))
        row_segment, positions = (torch.from_numpy(x).to(device) for x in (p.row_segment, p.positions))

        def launch() -> None:
            fork_attention(
                q, gate, k_local, v_local, k_pages, v_pages, tiles, at, out, partials, config=config, tokens_a_tile=tokens,
                scale=DIM**-0.5, first_split=first_split, blocks=blocks if config.bulk else None,
            )  # fmt: skip
            if spans > 1:
                merge_spans(gate, row_segment, positions, at, partials, out, first_split=first_split)

        try:
            ms = median_ms(launch)
        except Exception as error:  # a configuration that does not fit is a row of the table
            print(f"{name:28} {config!s:75} {type(error).__name__}: {str(error)[:80]}", flush=True)
            continue
        want = out.clone() if want is None else want
        same = "same bits" if torch.equal(out, want) else f"differs by {float((out.float() - want.float()).abs().max()):.2g}"
        print(f"{name:28} {config!s:75} {ms:.4f} ms {flops / ms / 1e9:6.0f} TFLOP/s {same}", flush=True)


def main() -> None:
    configs = [
        AttentionConfig(128, 64, 8, 2),
        AttentionConfig(128, 64, 8, 2, bulk=True),
        AttentionConfig(64, 64, 4, 2, bulk=True),
        AttentionConfig(128, 32, 8, 3, bulk=True),
        AttentionConfig(128, 32, 8, 4),
    ]
    for heads, kv_heads in ((16, 4), (8, 2)):
        t = 4096
        bench(f"trunk {t}, {heads}/{kv_heads}", plan(decision(t)), heads, kv_heads, configs, 1 << 20)
        q, k, v = (torch.randn(1, n, t, DIM, device="cuda", dtype=torch.bfloat16) for n in (heads, kv_heads, kv_heads))
        ms = median_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
        print(f"SDPA {t}, {heads}/{kv_heads}: {ms:.4f} ms {2 * heads * DIM * t * (t + 1) / ms / 1e9:.0f} TFLOP/s", flush=True)
        ms = median_ms(
            lambda: F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1), is_causal=True)
        )
        print(f"SDPA without GQA, copies counted: {ms:.4f} ms", flush=True)
    few = configs[:2]
    for history in (4096, 12288, 24576):
        held = Stored(history, np.arange(1000, 1000 + history // 64, dtype=np.int32), 0)
        step = plan(decision(300, 60, 60, 60, 60, 60, checkpoint=held))
        for split in (1 << 20, 8192, 4096):
            bench(f"step at {history}, split {split}", step, 16, 4, few, split)
    long = plan(decision(7000, *([38] * 12)))
    for split in (1 << 20, 8192, 4096):
        bench(f"7,000 + 12 x 38, split {split}", long, 16, 4, few, split)
    bench("300 + 74", plan(decision(300, 74)), 16, 4, few, 8192)


if __name__ == "__main__":
    main()
