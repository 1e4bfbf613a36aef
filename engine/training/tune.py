"""Train the shipped weights on with new data, on the CPU, within a time box.

    python -m training.tune SHARDS... OUT --start MODEL_DIR --minutes 40 [--beside OTHER_OUT]

Short histories and a low rate: what is to be learnt stands in the last messages. OUT holds model.safetensors (a moving average of the
weights, bfloat16), config.json and log.jsonl, and is a complete checkpoint again after every two minutes. Several such processes, a core
and a seed each, may share their work: each takes over half of the other's weights (--beside) whenever those are newer.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flide_engine.models.config import read_json
from flide_engine.segments import GRID
from safetensors.torch import load_file, save_file

from training import saved
from training.network import Network, losses
from training.pieces import compiled
from training.shards import WIDTH, Batches, Data, paths
from training.step import Flat

OFTEN = {"last_command_failed": 10.0, "last_tool_kind": 3.0, "last_program": 2.0, "last_changed_file": 2.0, "empty_output": 1.5}
"""How much more often than others these questions are drawn."""
SHARED = "shared.safetensors"


@dataclass(frozen=True)
class Plan:
    """minutes: the time box. tokens: of trunks in a batch; shortest, longest: of a trunk's bucket of lengths. average: what a step keeps
    of the averaged weights.
    narrow: every second batch has branches of half the width, twice as many: cheaper, but of short questions alone, and all that there are.
    sharing: seconds between looks at the other process; keeping: between checkpoints."""

    minutes: float = 40.0
    tokens: int = 3072
    shortest: int = 0
    longest: int = 2048
    rate: float = 3e-4
    warm: int = 20
    language: float = 0.1
    seed: int = 0
    average: float = 0.98
    narrow: bool = False
    sharing: float = 90.0
    keeping: float = 120.0


class Average:
    """Weights averaged over steps; what is exported. Young averages follow faster."""

    def __init__(self, flat: Flat, keep: float) -> None:
        self.values, self.keep, self.steps = flat.values.clone(), keep, 0

    def add(self, flat: Flat) -> None:
        self.steps += 1
        self.values.lerp_(flat.values, max(1.0 - self.keep, 1.0 / (self.steps + 1)))

    def export(self, network: Network, flat: Flat, out: Path) -> None:
        own = flat.values.clone()
        flat.values.copy_(self.values)
        saved.export(network, out, torch.bfloat16)
        flat.values.copy_(own)


def weigh(data: Data, names: list[str]) -> None:
    """Draw the questions of OFTEN more often, in place."""
    rarity = data.rarity
    for name, times in OFTEN.items():
        if names.index(name) < len(rarity):
            rarity[names.index(name)] *= times


def tune(network: Network, data: Data, plan: Plan, out: Path, beside: Path | None = None, compile: bool = True) -> None:
    """Train in place until the time box is used up; OUT as the module says."""
    torch.manual_seed(plan.seed)
    both = [Batches(data, plan.tokens, plan.seed, told=512, width=width) for width in (GRID if plan.narrow else WIDTH, WIDTH)]
    for batches in both:
        batches.by_length = {n: some for n, some in batches.by_length.items() if plan.shortest <= n <= plan.longest}
    if compile:
        network.pieces = compiled()
    flat = Flat(network, "cpu")
    average = Average(flat, plan.average)
    begin = kept = looked = time.monotonic()
    taken, steps, tokens = 0.0, 0, 0
    with (out / "log.jsonl").open("a", encoding="utf-8") as log:
        while (part := (time.monotonic() - begin) / (60 * plan.minutes)) < 1.0:
            batch = both[steps % 2].make(steps, plan.longest)
            rate = plan.rate * min(1.0, (steps + 1) / plan.warm) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * part)))
            with torch.autocast("cpu", torch.bfloat16):
                found = losses(network, batch, plan.language)
            flat.gather(*found)
            flat.grad[-1] = rate
            flat.update()
            average.add(flat)
            steps, tokens = steps + 1, tokens + batch.trunk.numel()
            now = time.monotonic()
            if steps % 10 == 0:
                answer, language, bad = (flat.sums / 10).tolist()
                flat.sums.zero_()
                told = {"step": steps, "seconds": round(now - begin, 1), "cpu": round(time.process_time(), 1), "tokens": tokens}
                log.write(json.dumps(told | {"rate": rate, "answer": answer, "language": language, "skipped": bad}) + "\n")
                log.flush()
            if now - looked > plan.sharing:
                looked, taken = now, _share(flat, out, beside, taken)
            if now - kept > plan.keeping:
                kept = now
                average.export(network, flat, out)
    average.export(network, flat, out)
    print(f"{steps} steps, {tokens:,} tokens of histories, {time.process_time():.0f} s of CPU time", flush=True)


def _share(flat: Flat, out: Path, beside: Path | None, taken: float) -> float:
    """Give the weights away, and go half-way to the other's where they are newer than those taken last. Returns their time."""
    save_file({"values": flat.values}, out / f"{SHARED}.part")
    (out / f"{SHARED}.part").rename(out / SHARED)
    other = beside / SHARED if beside is not None else None
    if other is not None and other.exists() and other.stat().st_mtime > taken:
        taken = other.stat().st_mtime
        flat.values.lerp_(load_file(other)["values"], 0.5)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path, nargs="+", help="a folder of training.pack, or several")
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", type=Path, required=True, help="the directory of the weights to go on from")
    parser.add_argument("--beside", type=Path, help="OUT of another such process")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    for name, default in Plan().__dict__.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    a = parser.parse_args()
    plan = Plan(**{name: getattr(a, name) for name in Plan.__dataclass_fields__})
    a.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    data = Data.load(paths(a.shards, "train"))
    weigh(data, read_json(a.shards[0] / "names.json")["names"])
    print(
        f"{len(data.trunks)} trunks, {data.tokens:,} tokens, {int(np.sum([len(b) for b in data.of])):,} questions", flush=True
    )
    tune(saved.load(a.start), data, plan, a.out, a.beside, a.compile)


if __name__ == "__main__":
    main()
