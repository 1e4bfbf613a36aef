"""What a training step costs on this machine, by batch length.

    python -m training.profile_step SHARDS... [--seconds 60] [--how graphs plain compiled]

For each length: milliseconds of the host and of the device, trunk tokens a second, the time to make a batch, and the ten kernels that take
longest. How: in graphs as training does it, plain, or in graphs with parts through torch.compile.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from flide_engine.models.config import ModelConfig
from torch.profiler import ProfilerActivity, profile

from flide_agent.default_model import DIRECTORY
from training.network import Network
from training.shards import Batches, Data, paths
from training.step import Step


def look(step: Step, length: int, steps: int = 6) -> dict[str, float]:
    """Mean figures of `steps` steps on one batch of a length."""
    made = time.perf_counter()
    batch = step.host()
    step.batches.fill(batch, 1, length)
    made = time.perf_counter() - made
    step.take(length, 0.0)
    wait(step)
    begin = time.perf_counter()
    for _ in range(steps):
        step.host().copy_(batch)
        step.take(length, 0.0)
    host = time.perf_counter() - begin
    wait(step)
    all_of = time.perf_counter() - begin
    tokens = step.batches.shape(length).rows * length
    return {
        "host_ms": 1e3 * host / steps,
        "device_ms": 1e3 * all_of / steps,
        "tokens_a_second": tokens * steps / all_of,
        "batch_ms": 1e3 * made,
    }


def wait(step: Step) -> None:
    if step.cuda:
        torch.cuda.synchronize()


def kernels(step: Step, length: int, most: int = 10) -> list[tuple[str, float, int]]:
    """(name, ms, calls) of the kernels of one step that take longest, and last of all of them together."""
    step.batches.fill(step.host(), 1, length)
    activity = ProfilerActivity.CUDA if step.cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        step.take(length, 0.0)
        wait(step)

    def spent(event: Any) -> float:
        return float(event.self_device_time_total if step.cuda else event.self_cpu_time_total) / 1e3

    rows = sorted(((e.key[:110], spent(e), int(e.count)) for e in seen.key_averages()), key=lambda row: -row[1])
    return [*rows[:most], ("all", sum(r[1] for r in rows), sum(r[2] for r in rows))]


def report(network: Network, data: Data, device: str, tokens: int, until: float, **how: bool) -> None:
    """Print all lengths, longest last, until the time is over."""
    begin = time.monotonic()
    step = Step(network, Batches(data, tokens, 0), device, 0.2, **how)
    step.prepare()
    memory = torch.cuda.max_memory_reserved() / 2**30 if step.cuda else 0.0
    print(f"{tokens} tokens, {how}: ready after {time.monotonic() - begin:.1f} s, {memory:.1f} GiB", flush=True)
    for length in step.batches.by_length:
        if time.monotonic() > until:
            print("the time is over")
            return
        print(f"{length}: " + ", ".join(f"{k} {v:,.1f}" for k, v in look(step, length).items()), flush=True)
    for length in (min(step.batches.by_length), max(step.batches.by_length)):
        if time.monotonic() > until:
            return
        for name, ms, calls in kernels(step, length):
            print(f"  {length} {ms:8.3f} ms {calls:5d} x {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[65536])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--how", choices=("graphs", "plain", "compiled"), nargs="+", default=["graphs"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    until = time.monotonic() + a.seconds
    torch.set_float32_matmul_precision("high")
    data = Data.load(paths(a.shards, "train"))
    for how in a.how:
        for tokens in a.tokens:
            report(
                Network(ModelConfig.read(DIRECTORY), 0),
                data,
                a.device,
                tokens,
                until,
                graphs=how != "plain",
                compile=how == "compiled",
            )


if __name__ == "__main__":
    main()
