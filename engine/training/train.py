"""Train the default model on one GPU, within a time box.

    python -m training.train SHARDS... OUT --minutes 8 [--gpus 2]

Writes OUT/model.safetensors (bfloat16), config.json, temperatures.json (by type of question), figures.json (held-out part of our own
sources) and log.jsonl; OUT is a complete checkpoint again after every minute. Seeded: data order and start are the same for a seed,
the number of steps is not. With --state FILE the state is written there with every checkpoint, and a call that finds it goes on from it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from flide_engine.models.config import ModelConfig, read_json

from flide_agent.default_model import DIRECTORY
from training import saved, scores
from training.feed import Feed
from training.network import Network
from training.pace import Log, Pace, Watchdog
from training.shards import LENGTHS, Batches, Data, few, in_order, paths
from training.step import AHEAD, Flat, Step

HANGS = 120.0
"""Seconds without a step after which a training on a GPU ends itself; compiling takes longer."""
JUDGED = 300
"""Held-out trunks of our own of each length that the last figures are taken from, at most."""


@dataclass(frozen=True)
class Plan:
    """minutes: the time box, evaluation left out; steps: at most so many. tokens: of trunks in a batch, on each GPU. every: steps between
    looks at the losses. feeders: processes that make batches, for each GPU. graphs, compile: see training.step; without effect on a CPU.
    curriculum: short histories first. state: the file to go on from and to keep the state in."""

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
    curriculum: bool = True
    state: Path | None = None


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
            torch.cuda.set_device(torch.device(device).index or 0)
        if self.ranks > 1:
            method = f"file://{self.place}"
            dist.init_process_group("nccl" if cuda else "gloo", init_method=method, rank=self.rank, world_size=self.ranks)


def train(
    network: Network, data: Data, plan: Plan, out: Path, watched: Watched | None = None, team: Team | None = None
) -> list[dict[str, Any]]:
    """Train in place until the time box or the steps are used up. Returns the log, which also goes to out/log.jsonl.

    Batches that do not fit the device's memory get half the tokens. A gradient that is not finite changes nothing. Raises
    FloatingPointError when that goes on; the last checkpoint in `out` is good then. Where plan.state holds a state, the training goes on
    from there, the rest of it in plan.minutes.
    """
    team = team or Team()
    first = team.rank == 0
    torch.manual_seed(plan.seed)
    begin = kept = looked = time.monotonic()
    done = saved.read(plan.state)
    batches = Batches(data, plan.tokens, plan.seed + done.steps)
    log = Log(out / "log.jsonl" if first else None, done.steps > 0)
    steps, tokens, since, pace = done.steps, done.tokens, 0, Pace()
    dog = Watchdog(HANGS * (4 if plan.compile else 1)) if plan.device.startswith("cuda") else None
    with (
        Feed(batches, plan.feeders, team.rank) as feed,
        dog or nullcontext(),
    ):  # before the device is used, and threads: it forks
        team.meet(plan.device)
        network.train()
        step = Step(network, batches, plan.device, plan.language, plan.graphs, plan.compile, team.ranks)
        step.prepare()
        saved.restore(step.flat, plan.state)
        feed.begin()
        pace.skip()

        def keep() -> None:
            saved.export(network, out, torch.bfloat16)
            if plan.state is not None:
                saved.keep(step.flat, plan.state, saved.Done(min(1.0, team.part.value), steps, tokens))

        try:
            while steps < team.last.value:
                now = time.monotonic()
                if dog is not None:
                    dog.alive()
                if first:
                    gone = (now - begin) / (60 * plan.minutes) if plan.minutes > 0 else 1.0
                    team.part.value = max(done.part + (1.0 - done.part) * gone, steps / plan.steps)
                    if team.part.value >= 1.0:
                        # The others may be some steps ahead, so all go on for as many.
                        team.last.value = min(team.last.value, steps + (2 * AHEAD if team.ranks > 1 else 0))
                        if steps >= team.last.value:
                            break
                feed.longest.value = longest(team.part.value if plan.curriculum else 1.0)
                with pace.waiting("device"):
                    room = step.host()
                with pace.waiting("batches"):
                    length = feed.next(room)
                current = rate(plan, steps, team.part.value)
                step.take(length, current if first else 0.0)
                steps, since = steps + 1, since + 1
                taken = team.ranks * step.batches.shape(length).rows * length
                tokens += taken
                pace.step(taken)
                if since == plan.every or steps == done.steps + 1:
                    answer, language, bad = step.read(since)
                    since = 0
                    told = {"answer": answer, "language": language, "skipped": bad, "rate": current, "tokens": tokens}
                    told |= {"length": length, **pace.read()}
                    log.add({"step": steps - 1, "seconds": round(time.monotonic() - begin, 2), **told})
                    if bad == 1.0 and steps > done.steps + 1:
                        raise FloatingPointError(f"no gradient is finite at step {steps}; the last checkpoint in {out} is good")
                if first and watched is not None and log.rows and now - looked > watched.seconds:
                    looked = now
                    log.rows[-1] |= {"held": watched.look(network, plan)}
                    log.tell()
                    network.train()
                    pace.skip()
                if first and now - kept > 60 and since < 2:  # just read, so the weights are known to be finite
                    keep()
                    kept = now
                    pace.skip()
        finally:
            log.write()
        if first:
            keep()
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
            other.kill()
        (out / "meeting").unlink(missing_ok=True)


@dataclass(frozen=True)
class Watched:
    """A small part of the held-out runs of our own, looked at every `seconds` of training. Their time is part of the box."""

    data: Data
    names: tuple[str, ...]
    seconds: float = 60.0

    def look(self, network: Network, plan: Plan) -> dict[str, float]:
        """Balanced accuracy by question; nothing where it does not fit the memory beside the training."""
        try:
            found = answers(network, self.data, plan, self.names)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return {}
        return {name: round(scores.balanced_accuracy(some), 3) for name, some in sorted(found.items())}


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
    parser.add_argument(
        "--start", type=Path, help="the directory of weights to go on from, with histories of all lengths at once"
    )
    parser.add_argument(
        "--often", nargs="+", default=[], metavar="QUESTION=TIMES", help="questions drawn more often than others"
    )
    parser.add_argument("--feeders", type=int, default=5)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--gpus", type=int, default=1)
    for name in ("graphs", "compile"):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=getattr(Plan, name))
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a look that starts CUDA would spoil the forked processes
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    cuda = a.device.startswith("cuda")
    chosen = {k: v for k, v in vars(a).items() if k in Plan.__dataclass_fields__} | {"compile": a.compile and cuda}
    plan = Plan(**chosen, curriculum=a.start is None)
    names = tuple(read_json(a.shards[0] / "names.json")["names"])
    a.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    # Both at once: a missing held-out part must show before the time is spent.
    data, kept = (Data.load(paths(a.shards, part)) for part in ("train", "held"))
    for name, times in (pair.split("=") for pair in a.often):
        data.rarity[names.index(name)] *= float(times)
    print(f"{len(data.trunks)} trunks, {data.tokens:,} tokens, {sum(map(len, data.of)):,} questions", flush=True)
    network = Network(ModelConfig.read(DIRECTORY), plan.seed) if a.start is None else saved.load(a.start)
    watched = Watched(few(kept, 16), names)
    if saved.read(plan.state).part >= 1.0:
        saved.restore(Flat(network, plan.device), plan.state)
    elif a.gpus > 1:
        together(network, data, plan, a.out, watched, a.gpus)
    else:
        train(network, data, plan, a.out, watched)
    held = answers(network, few(kept, JUDGED), plan, names)
    by_type = {t: [some for name, some in held.items() if scores.type_of(name, some) == t] for t in ("noul", "choice", "score")}
    found = {t: scores.temperature(scores.together(some)) for t, some in by_type.items() if some}
    figures = {name: scores.report(some, found[scores.type_of(name, some)]) for name, some in sorted(held.items())}
    (a.out / "temperatures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (a.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, row in figures.items():
        print(name, {k: round(v, 3) for k, v in row.items()})


if __name__ == "__main__":
    main()
