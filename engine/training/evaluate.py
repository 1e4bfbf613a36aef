# ruff: noqa: E501 - rows of figures read best a line each
"""A model's figures on the held-out sources.

    python -m training.evaluate MODEL_DIR JUDGE_DIR [--device cuda]

MODEL_DIR: model.safetensors, config.json and, where there is one, temperatures.json. JUDGE_DIR: what training.held_out wrote. Per question
and per source (and per history length): balanced accuracy with the 95 % interval by drawing whole runs, ECE, the majority baseline; in how
many orders of the options, and after how many planted instructions, the answer is another. Writes MODEL_DIR/held_out.json, and the logits
of every answer, in the order of judge.json, to held_out_logits.json.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flide_engine.models.config import ModelConfig
from safetensors.torch import load_file

from training import scores
from training.network import Network
from training.shards import LENGTHS, Data, bucket
from training.shards import rows as made_of

LEAST_RUNS = 5
"""With fewer runs for a truth a question is not judged: an interval by drawing runs says nothing then. Of a choice, three truths need them."""
LONG = (1024, 4096, 8192)
"""History lengths that figures are given for: up to each of them, from the one before."""


@dataclass(frozen=True)
class Table:
    """logits[i]: of branch i over its options; asked[i]: what it is (the records of judge.json)."""

    logits: list[np.ndarray[Any, Any]]
    right: list[int]
    asked: list[dict[str, Any]]


def load(directory: Path) -> Network:
    """The network with the weights of a directory, float32."""
    network = Network(ModelConfig.read(directory), 0)
    stored = load_file(directory / "model.safetensors")
    with torch.no_grad():
        for name, value in network.named():
            value.copy_(stored[f"model.{name}"].float())
    return network


@torch.no_grad()
def table(network: Network, judge: Path, device: str, most: int = 128) -> Table:
    """Every branch of a judge shard, at most `most` at a time beside their trunk; float32."""
    data = Data.load([judge / "judge.npz"])
    asked = json.loads((judge / "judge.json").read_text(encoding="utf-8"))["asked"]
    network.to(device).eval()
    logits: list[np.ndarray[Any, Any]] = []
    right: list[int] = []
    for t, trunk in enumerate(data.trunks):
        for at in range(0, len(data.of[t]), most):
            some = data.of[t][at : at + most]
            # Later tokens change nothing for a fork, so the trunk is as long as the farthest one needs.
            length = min(bucket(len(trunk)), -(-int(some[:, 0].max()) // 64) * 64)
            batch = made_of(data, [t], [some], length)
            found = network(batch.to(device))[1].cpu().double().numpy()
            for i in range(len(some)):
                logits.append(found[i, : int((batch.labels[i] >= 0).sum())])
                right.append(int(batch.right[i]))
    if len(asked) != len(logits):
        raise ValueError(
            f"{judge}: {len(asked)} records for {len(logits)} branches; make both with one call of training.held_out"
        )
    return Table(logits, right, asked)


def answers(t: Table, chosen: list[int]) -> scores.Answers:
    runs = {run: i for i, run in enumerate(sorted({a["run"] for a in t.asked}))}
    return scores.Answers(
        [t.logits[i] for i in chosen],
        [t.right[i] for i in chosen],
        [t.asked[i]["truth"] for i in chosen],
        [runs[t.asked[i]["run"]] for i in chosen],
    )


def figures(t: Table, temperatures: dict[str, float]) -> dict[str, Any]:
    """name -> {all, by source, by length, reversed wording, order_changes, planted_changes}; parts of fewer than 20 answers are left out."""
    out: dict[str, Any] = {}
    names = sorted({a["name"] for a in t.asked})
    for name in names:
        mine = [i for i, a in enumerate(t.asked) if a["name"] == name]
        plain = [i for i in mine if t.asked[i]["test"] == "plain"]
        heat = temperatures.get(scores.type_of(name, answers(t, mine)), 1.0)
        groups: dict[str, list[int]] = defaultdict(list)
        groups["all"] = plain
        groups["reversed"] = [i for i in mine if t.asked[i]["test"] == "reversed"]
        for i in plain:
            groups[f"source {t.asked[i]['source']}"].append(i)
            groups[f"up to {next((n for n in LONG if t.asked[i]['tokens'] <= n), LENGTHS[-1])} tokens"].append(i)
        row: dict[str, Any] = {key: scores.report(answers(t, some), heat) for key, some in groups.items() if len(some) >= 20}
        row["options"] = len(t.asked[mine[0]]["options"])
        row["order_changes"] = changes(t, [i for i in mine if t.asked[i]["test"] == "order"])
        row["planted_changes"] = changes(t, [i for i in mine if t.asked[i]["test"] == "planted"])
        out[name] = row
    return out


def changes(t: Table, chosen: list[int]) -> float | None:
    """The part of answers that name another option than their twin's, wherever it stands."""
    pairs = [(i, t.asked[i]["twin"]) for i in chosen if t.asked[i]["twin"] >= 0]
    named = [t.asked[i]["options"][int(np.argmax(t.logits[i]))] for i in range(len(t.asked))]
    return float(np.mean([named[i] != named[j] for i, j in pairs])) if pairs else None


def passed(row: dict[str, Any]) -> bool:
    """The bar of a shipped question: it was judged, and lacks nothing."""
    return row.get("all") is not None and not missed(row)


def missed(row: dict[str, Any]) -> list[str]:
    """What a judged question lacks: runs enough of each truth, lower end of the interval, calibration, stability."""
    whole, least = row["all"], 0.65 if row["options"] > 2 else 0.80
    out = [] if whole["least_runs"] >= LEAST_RUNS else [f"runs of the rarer answer {whole['least_runs']} of {LEAST_RUNS}"]
    out += [] if whole["low"] >= least else [f"lower end {whole['low']:.3f} of {least:.2f}"]
    out += [] if whole["ece"] <= 0.08 else [f"ECE {whole['ece']:.3f} over 0.08"]
    for key, what in (("order_changes", "another order changes"), ("planted_changes", "planted instructions change")):
        if row[key] is not None and row[key] > 0.05:
            out.append(f"{what} {row[key]:.1%}, over 5 %")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("judge", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    heats = a.model / "temperatures.json"
    temperatures = json.loads(heats.read_text(encoding="utf-8")) if heats.exists() else {}
    judged = table(load(a.model), a.judge, a.device)
    found = figures(judged, temperatures)
    logits = [[round(float(x), 4) for x in row] for row in judged.logits]
    (a.model / "held_out_logits.json").write_text(json.dumps(logits) + "\n", encoding="utf-8")
    (a.model / "held_out.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, row in found.items():
        print(
            f"{name}: {'PASSED' if passed(row) else 'not passed'}; order {row['order_changes']}, planted {row['planted_changes']}"
        )
        for key, part in row.items():
            if isinstance(part, dict):
                print(f"  {key}: " + ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in part.items()))


if __name__ == "__main__":
    main()
