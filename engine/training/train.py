"""Train the default model on one GPU, within a time box.

    python -m training.train SHARDS OUT --minutes 9

Writes OUT/model.safetensors (bfloat16), config.json, temperatures.json (by type of question), figures.json (held-out part of our own
sources) and log.jsonl; OUT is a complete checkpoint again after every minute. Seeded: data order and start are the same for a seed,
the number of steps is not.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flide_engine.models.config import ModelConfig, read_json
from safetensors.torch import save_file

from flide_agent.default_model import DIRECTORY
from training import scores
from training.network import Network, losses
from training.shards import LENGTHS, Batches, Data, ahead, few, in_order

KEPT = ("eos_token_id", "pad_token_id")
"""What config.json of the default model says beyond the architecture."""


@dataclass(frozen=True)
class Plan:
    """minutes: the time box, evaluation left out; steps: at most so many. tokens: of trunks in a batch."""

    minutes: float = 9.0
    steps: int = 10**9
    tokens: int = 131072
    rate: float = 1.5e-3
    warm: int = 200
    language: float = 0.2
    seed: int = 20261130
    device: str = "cuda"


def rate(plan: Plan, step: int, part: float) -> float:
    """Warm-up by steps, then a cosine down to 3 % over the part of the time box that is gone."""
    return plan.rate * min(1.0, (step + 1) / plan.warm) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1.0, part))))


def longest(part: float) -> int:
    """Curriculum: short histories first, all of them from a quarter of the time on."""
    return LENGTHS[1] if part < 0.08 else LENGTHS[2] if part < 0.25 else LENGTHS[-1]


def train(network: Network, data: Data, plan: Plan, out: Path, watched: Watched | None = None) -> list[dict[str, Any]]:
    """Train in place until the time box or the steps are used up. Returns the log, which also goes to out/log.jsonl.

    A batch that does not fit the device's memory is left out, and later ones have half its tokens. A gradient that is not finite
    changes nothing. Raises FloatingPointError when that goes on; the last checkpoint in `out` is good then.
    """
    torch.manual_seed(plan.seed)
    network.to(plan.device).train()
    matrices = [v for _, v in network.named() if v.dim() > 1]
    others = [v for _, v in network.named() if v.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    cuda = plan.device.startswith("cuda")
    optimizer = torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.95), fused=cuda)
    batches = Batches(data, plan.tokens, plan.seed)
    reach, stop, log = [longest(0.0)], threading.Event(), Log(out / "log.jsonl")
    begin = saved = looked = time.monotonic()
    tokens = steps = 0
    gathered: list[torch.Tensor] = []
    try:
        for made in ahead(batches, reach, stop, cuda):
            now = time.monotonic()
            part = max((now - begin) / (60 * plan.minutes), steps / plan.steps)
            if part >= 1.0:
                break
            reach[0] = longest(part)
            if made.trunk.numel() > batches.tokens and len(made.trunk) > 1:
                continue  # made before the batches became smaller
            current = rate(plan, steps, part)
            for group in optimizer.param_groups:
                group["lr"] = current
            optimizer.zero_grad(set_to_none=True)
            try:
                batch = made.to(plan.device)
                with torch.autocast("cuda" if cuda else "cpu", torch.bfloat16, enabled=cuda):
                    total, answer, language = losses(network, batch, plan.language)
                total.backward()
            except torch.OutOfMemoryError:
                if len(made.trunk) == 1:
                    raise
                batches.tokens = made.trunk.numel() // 2
                total = answer = language = batch = None  # type: ignore[assignment] - free what the failed pass holds
                optimizer.zero_grad(set_to_none=True)
                torch.cuda.empty_cache()
                print(
                    f"out of memory at length {made.trunk.shape[1]}; going on with {batches.tokens} tokens a batch", flush=True
                )
                continue
            size = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            bad = ~torch.isfinite(size)
            if cuda:
                optimizer.found_inf = bad.float()  # type: ignore[attr-defined] - the fused step leaves the weights then, without waiting
            if cuda or not bool(bad):
                optimizer.step()
            steps += 1
            tokens += made.trunk.numel() + made.branch.numel()
            gathered.append(torch.stack([answer.detach(), language.detach(), bad.float()]))
            if len(gathered) == 20 or steps == 1:
                mean = torch.stack(gathered).mean(0).tolist()
                gathered.clear()
                told = {"answer": mean[0], "language": mean[1], "skipped": mean[2], "rate": current, "tokens": tokens}
                log.add({"step": steps - 1, "seconds": now - begin, **told, "length": made.trunk.shape[1]})
                if mean[2] == 1.0 and steps > 1:
                    raise FloatingPointError(f"no gradient is finite at step {steps}; the last checkpoint in {out} is good")
            if watched is not None and now - looked > watched.seconds:
                looked = now
                log.rows[-1] |= {"held": watched.look(network, plan)}
                print(json.dumps(log.rows[-1]), flush=True)
                network.train()
            if now - saved > 60:
                export(network, out, torch.bfloat16)
                saved = now
    finally:
        stop.set()
        log.write()
    export(network, out, torch.bfloat16)
    return log.rows


@dataclass
class Log:
    """Rows of figures, written as lines of JSON."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if len(self.rows) % 20 == 1:
            self.write()

    def write(self) -> None:
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
    parser.add_argument("shards", type=Path)
    parser.add_argument("out", type=Path)
    for name in ("minutes", "steps", "tokens", "rate", "warm", "language", "seed"):
        default = getattr(Plan, name)
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    plan = Plan(**{k: v for k, v in vars(a).items() if k not in ("shards", "out")})
    names = tuple(read_json(a.shards / "names.json")["names"])
    a.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    # Both at once: a missing held-out part must show before the time is spent.
    data, kept = (Data.load(sorted(a.shards.glob(f"{part}-*.npz"))) for part in ("train", "held"))
    print(f"{len(data.trunks)} trunks, {data.tokens:,} tokens, {sum(map(len, data.of)):,} questions", flush=True)
    network = Network(ModelConfig.read(DIRECTORY), plan.seed)
    train(network, data, plan, a.out, Watched(few(kept, 16), names))
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
