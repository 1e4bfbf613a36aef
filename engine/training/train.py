"""Train the default model on one GPU, within a time box.

    python -m training.train SHARDS... OUT --minutes 8 [--gpus 2]

Writes OUT/model.safetensors (bfloat16), config.json, temperatures.json (by type of question), figures.json (held-out part of our own
sources) and log.jsonl; OUT is a complete checkpoint again after every minute. Seeded: data order and start are the same for a seed,
the number of steps is not.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from flide_engine.models.config import ModelConfig, read_json
from safetensors.torch import save_file

from flide_agent.default_model import DIRECTORY
from training import scores
from training.feed import Feed
from training.network import Network
from training.shards import LENGTHS, Batches, Data, few, in_order, paths
from training.step import AHEAD, Step

KEPT = ("eos_token_id", "pad_token_id")
"""What config.json of the default model says beyond the architecture."""


@dataclass(frozen=True)
class Plan:
    """minutes: the time box, evaluation left out; steps: at most so many. tokens: of trunks in a batch, on each GPU. every: steps between
    looks at the losses. feeders: processes that make batches, for each GPU. graphs, compile: see training.step; without effect on a CPU."""

    minutes: float = 9.0
    steps: int = 10**9
    tokens: int = 65536
    rate: float = 1.5e-3
    warm: int = 200
    language: float = 0.2
    seed: int = 20261130
    device: str = "cuda"
    every: int = 20
    feeders: int = 0
    graphs: bool = True
    compile: bool = False


def rate(plan: Plan, step: int, part: float) -> float:
    """Warm-up by steps, then a cosine down to 3 % over the part of the time box that is gone."""
    return plan.rate * min(1.0, (step + 1) / plan.warm) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1.0, part))))


def longest(part: float) -> int:
    """Curriculum: short histories first, all of them from a quarter of the time on."""
    return LENGTHS[1] if part < 0.08 else LENGTHS[2] if part < 0.25 else LENGTHS[-1]


@dataclass(frozen=True)
class Team:
    """The processes of one training, a GPU each. place: a file by which they find each other. part, last: shared numbers; rank 0 writes how
    much of the training is gone and before which step all stop."""

    rank: int = 0
    ranks: int = 1
    place: Path | None = None
    part: Any = field(default_factory=lambda: RawValue("d", 0.0))
    last: Any = field(default_factory=lambda: RawValue("q", 2**62))

    def meet(self, device: str) -> None:
        cuda = device.startswith("cuda")
        if cuda:
            torch.cuda.set_device(device)
        if self.ranks > 1:
            method = f"file://{self.place}"
            dist.init_process_group("nccl" if cuda else "gloo", init_method=method, rank=self.rank, world_size=self.ranks)


def train(
    network: Network, data: Data, plan: Plan, out: Path, watched: Watched | None = None, team: Team | None = None
) -> list[dict[str, Any]]:
    """Train in place until the time box or the steps are used up. Returns the log, which also goes to out/log.jsonl.

    A batch that does not fit the device's memory is left out, and later ones have half its tokens. A gradient that is not finite
    changes nothing. Raises FloatingPointError when that goes on; the last checkpoint in `out` is good then.
    """
    team = team or Team()
    first = team.rank == 0
    torch.manual_seed(plan.seed)
    begin = saved = looked = time.monotonic()
    batches = Batches(data, plan.tokens, plan.seed)
    log = Log(out / "log.jsonl" if first else None)
    steps = tokens = since = 0
    with Feed(batches, plan.feeders, team.rank) as feed:  # before the device is used: it forks
        team.meet(plan.device)
        network.train()
        step = Step(network, batches, plan.device, plan.language, plan.graphs, plan.compile, team.ranks)
        step.prepare()
        feed.begin()
        try:
            while steps < team.last.value:
                now = time.monotonic()
                if first:
                    team.part.value = max((now - begin) / (60 * plan.minutes), steps / plan.steps)
                    if team.part.value >= 1.0:
                        # The others may be some steps ahead, so all go on for as many.
                        team.last.value = min(team.last.value, steps + (2 * AHEAD if team.ranks > 1 else 0))
                        if steps >= team.last.value:
                            break
                feed.longest.value = longest(team.part.value)
                length = feed.next(step.host())
                current = rate(plan, steps, team.part.value)
                step.take(length, current if first else 0.0)
                steps, since = steps + 1, since + 1
                tokens += team.ranks * step.batches.shape(length).rows * length
                if since == plan.every or steps == 1:
                    answer, language, bad = step.read(since)
                    since = 0
                    told = {"answer": answer, "language": language, "skipped": bad, "rate": current, "tokens": tokens}
                    log.add({"step": steps - 1, "seconds": time.monotonic() - begin, **told, "length": length})
                    if bad == 1.0 and steps > 1:
                        raise FloatingPointError(f"no gradient is finite at step {steps}; the last checkpoint in {out} is good")
                if first and watched is not None and log.rows and now - looked > watched.seconds:
                    looked = now
                    log.rows[-1] |= {"held": watched.look(network, plan)}
                    print(json.dumps(log.rows[-1]), flush=True)
                    network.train()
                if first and now - saved > 60 and since < 2:  # just read, so the weights are known to be finite
                    export(network, out, torch.bfloat16)
                    saved = now
        finally:
            log.write()
    if first:
        export(network, out, torch.bfloat16)
    return log.rows


def together(network: Network, data: Data, plan: Plan, out: Path, watched: Watched | None, gpus: int) -> None:
    """Train on several GPUs of this machine, a process each; this process is the first of them."""
    context = multiprocessing.get_context("fork")
    first = Team(0, gpus, (out / "meeting").resolve())
    (out / "meeting").unlink(missing_ok=True)

    def work(rank: int) -> None:
        own = replace(plan, device=f"cuda:{rank}" if plan.device.startswith("cuda") else plan.device)
        train(network, data, own, out, watched if rank == 0 else None, replace(first, rank=rank))

    others = [context.Process(target=work, args=(rank,)) for rank in range(1, gpus)]
    for other in others:
        other.start()
    try:
        work(0)
        for other in others:
            other.join(20)
    finally:
        for other in others:
            other.terminate()
        (out / "meeting").unlink(missing_ok=True)


@dataclass
class Log:
    """Rows of figures, written as lines of JSON."""

    path: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if len(self.rows) % 20 == 1:
            self.write()

    def write(self) -> None:
        if self.path is not None:
            self.path.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")


@dataclass(frozen=True)
class Watched:
    """A small part of the held-out runs of our own, looked at every `seconds` of training. Their time is part of the box."""

    data: Data
    names: tuple[str, ...]
    seconds: float = 30.0

    def look(self, network: Network, plan: Plan) -> dict[str, float]:
        """Balanced accuracy by question."""
        found = answers(network, self.data, plan, self.names)
        return {name: round(scores.balanced_accuracy(some), 3) for name, some in sorted(found.items())}


def export(network: Network, out: Path, dtype: torch.dtype) -> None:
    """Write model.safetensors and config.json, the file in place at once. A_log and dt_bias stay float32, as the engine keeps them."""
    tensors = {}
    for name, value in network.named():
        kept = value.detach().float() if name.endswith(("A_log", "dt_bias")) else value.detach().to(dtype)
        tensors[f"model.{name}"] = kept.cpu().contiguous()
    staging = out / "model.safetensors.part"
    save_file(tensors, staging, {"format": "pt"})
    staging.rename(out / "model.safetensors")
    config = network.config.to_json() | {k: v for k, v in read_json(DIRECTORY / "config.json").items() if k in KEPT}
    config["dtype"] = str(dtype).removeprefix("torch.")
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def answers(network: Network, data: Data, plan: Plan, names: tuple[str, ...]) -> dict[str, scores.Answers]:
    """The network's answers on every trunk of `data`, by question."""
    network.to(plan.device).eval()
    gathered: dict[str, list[tuple[np.ndarray[Any, Any], int, str, int]]] = defaultdict(list)
    cluster = 0
    cuda = plan.device.startswith("cuda")
    for made, _ in in_order(data, max(1, plan.tokens // 2)):
        with torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=cuda):
            logits = network(made.to(plan.device))[1].float().cpu().numpy()
        for i, (right, kind) in enumerate(zip(made.right.tolist(), made.kind.tolist(), strict=True)):
            options = int((made.labels[i] >= 0).sum())
            gathered[names[kind]].append(
                (logits[i, :options].astype(np.float64), right, str(right), cluster + int(made.owner[i]))
            )
        cluster += len(made.trunk)
    return {name: scores.Answers(*(list(x) for x in zip(*rows, strict=True))) for name, rows in gathered.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path, nargs="+", help="a folder of training.pack, or several")
    parser.add_argument("out", type=Path)
    for name in ("minutes", "steps", "tokens", "rate", "warm", "language", "seed", "every"):
        default = getattr(Plan, name)
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--feeders", type=int, default=5)
    parser.add_argument("--gpus", type=int, default=1)
    for name in ("graphs", "compile"):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=getattr(Plan, name))
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a look that starts CUDA would spoil the forked processes
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    cuda = a.device.startswith("cuda")
    chosen = {k: v for k, v in vars(a).items() if k not in ("shards", "out", "gpus")} | {"compile": a.compile and cuda}
    plan = Plan(**chosen)
    names = tuple(read_json(a.shards[0] / "names.json")["names"])
    a.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    # Both at once: a missing held-out part must show before the time is spent.
    data, kept = (Data.load(paths(a.shards, part)) for part in ("train", "held"))
    print(f"{len(data.trunks)} trunks, {data.tokens:,} tokens, {sum(map(len, data.of)):,} questions", flush=True)
    network = Network(ModelConfig.read(DIRECTORY), plan.seed)
    watched = Watched(few(kept, 16), names)
    if a.gpus > 1:
        together(network, data, plan, a.out, watched, a.gpus)
    else:
        train(network, data, plan, a.out, watched)
    held = answers(network, kept, plan, names)
    by_type = {t: [some for name, some in held.items() if scores.type_of(name, some) == t] for t in ("noul", "choice", "score")}
    found = {t: scores.temperature(scores.together(some)) for t, some in by_type.items() if some}
    figures = {name: scores.report(some, found[scores.type_of(name, some)]) for name, some in sorted(held.items())}
    (a.out / "temperatures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (a.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, row in figures.items():
        print(name, {k: round(v, 3) for k, v in row.items()})


if __name__ == "__main__":
    main()
