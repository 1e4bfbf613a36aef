# ruff: noqa: E501 - rows of figures read best a line each
"""A model's figures on the held-out sources.

    python -m training.evaluate MODEL_DIR JUDGE_DIR --own SHARDS... [--sources development]

MODEL_DIR: model.safetensors, config.json. JUDGE_DIR: what training.held_out wrote. Per question and per source (and per history length):
balanced accuracy with the 95 % interval by drawing whole runs, ECE, the majority baseline; in how many orders of the options (in the
product's prompts, and `raw`, in prompts that have them as asked), and after how many planted instructions, the answer is another. Judged are the sources of JUDGED; the others are the development source, which the
temperatures are fitted on beside runs of our own (`calibrate`), and its figures stand beside, as `development`. Writes MODEL_DIR/held_out.json, temperatures.json, and
the logits of every answer, in the order of judge.json, to held_out_logits.json. --sources development: answers that source alone and
prints its figures, so that a checkpoint can be chosen without a look at those that are judged. figures.json: of held-out runs of our own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flide_engine.engine import Engine
from flide_engine.segments import FROM_CHECKPOINT, GRID, Kind, Readout, Request, Round, Segment

from training import calibrate, scores
from training.shards import LENGTHS, Data, few, paths

JUDGED = ("swe-agent", "mini-swe-agent", "nebius", "tau-bench")
"""The sources that questions have to pass on. All others are for development and calibration."""
FORKS = 12
"""Decisions of a history that are asked in one round."""
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


def table(model: Path, device: str, judge: Path, development: bool = False, workers: int = 1) -> Table:
    """Every branch of a judge shard, as the engine answers it: a history is run once, and its questions fork from it.

    development: that source alone, as it is: nothing planted, nothing repeated. workers: processes."""
    data = Data.load([judge / "judge.npz"])
    asked = json.loads((judge / "judge.json").read_text(encoding="utf-8"))["asked"]
    firsts = np.cumsum([0, *map(len, data.of)])
    if len(asked) != firsts[-1]:
        raise ValueError(
            f"{judge}: {len(asked)} records for {firsts[-1]} branches; make both with one call of training.held_out"
        )
    chosen: list[int] = []
    for t in range(len(data.trunks)):
        one = asked[firsts[t]]
        if not development or (one["source"] not in JUDGED and one["test"] != "planted" and one["history"] != "repeated"):
            chosen.append(t)
    kept = [i for t in chosen for i in range(firsts[t], firsts[t + 1])]
    logits = [z for some in _all(model, device, data, chosen, workers) for z in some]
    right = np.concatenate([rows[:, 2] for rows in data.of])
    place = {old: new for new, old in enumerate(kept)}
    return Table(logits, right[kept].tolist(), [asked[i] | {"twin": place.get(asked[i]["twin"], -1)} for i in kept])


def own_runs(model: Path, device: str, folders: Sequence[Path], of_each: int, workers: int = 1) -> dict[str, scores.Answers]:
    """Answers on runs of our own that were not trained on, by question: at most `of_each` histories of each length up to 2,048."""
    names = json.loads((folders[0] / "names.json").read_text(encoding="utf-8"))["names"]
    data = few(Data.load(paths(folders, "held")), of_each)
    chosen = [t for t, trunk in enumerate(data.trunks) if len(trunk) <= 2048]
    gathered: dict[str, list[tuple[np.ndarray[Any, Any], int, str, int]]] = defaultdict(list)
    for t, some in zip(chosen, _all(model, device, data, chosen, workers), strict=True):
        for z, (_, _, right, kind) in zip(some, data.of[t].tolist(), strict=True):
            gathered[names[kind]].append((z, right, str(right), t))
    return {name: scores.Answers(*(list(x) for x in zip(*rows, strict=True))) for name, rows in sorted(gathered.items())}


def _all(model: Path, device: str, data: Data, chosen: Sequence[int], workers: int) -> list[list[np.ndarray[Any, Any]]]:
    """`_of_trunk` of the chosen trunks, in their order."""
    if workers == 1:
        return _some(model, device, data, chosen)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = list(pool.map(_some, *zip(*[(model, device, data, chosen[w::workers]) for w in range(workers)], strict=True)))
    return [parts[i % workers][i // workers] for i in range(len(chosen))]


def _some(model: Path, device: str, data: Data, chosen: Sequence[int]) -> list[list[np.ndarray[Any, Any]]]:
    if device == "cpu":
        torch.set_num_threads(1)
    engine = Engine.load(str(model), device=device, dtype=torch.float32)
    return [_of_trunk(engine, data, t) for t in chosen]


def _of_trunk(engine: Engine, data: Data, t: int) -> list[np.ndarray[Any, Any]]:
    """The label logits of a trunk's branches, in order. Rounds of a few forks: each goes on from where the last one ended."""
    tokens, rows = data.trunks[t].astype(np.int32), data.of[t]
    out: list[np.ndarray[Any, Any]] = [np.zeros(0)] * len(rows)
    forks = sorted({int(f) for f in rows[:, 0]})
    held, at = None, 0
    for first in range(0, len(forks), FORKS):
        segments: list[Segment] = []
        places: list[tuple[int, int]] = []  # (segment, row of `rows`)
        root, begin = FROM_CHECKPOINT, at
        for fork in forks[first : first + FORKS]:
            start = fork // GRID * GRID
            if start > at:
                segments.append(Segment(tokens[at:start], root, Kind.TRUNK, (start,)))
                root, at = len(segments) - 1, start
            tail = root
            if fork > start:
                segments.append(Segment(tokens[start:fork], root, Kind.LOCAL))
                tail = len(segments) - 1
            for i in np.flatnonzero(rows[:, 0] == fork).tolist():
                question = data.questions[rows[i, 1]].astype(np.int32)
                labels = tuple(int(x) for x in data.labels[rows[i, 1]] if x >= 0)
                places.append((len(segments), i))
                segments.append(Segment(question, tail, Kind.LOCAL, readouts=(Readout(len(question) - 1, labels),)))
        found = engine.run(Round((Request(tuple(segments), checkpoint=held),))).results[0]
        for segment, i in places:
            out[i] = np.asarray(found.logits[segment][0], np.float64)
        if at > begin:
            if held is not None:
                held.release()
            last = max(i for i, s in enumerate(segments) if s.kind is Kind.TRUNK)
            held = found.checkpoints[last, at]
            for key, other in found.checkpoints.items():
                if key != (last, at):
                    other.release()
    if held is not None:
        held.release()
    return out


def development(t: Table) -> dict[str, scores.Answers]:
    """The plain questions of the development source, choices in all orders, by name."""
    names = sorted({a["name"] for a in t.asked})
    of = {
        n: [
            i for i, a in enumerate(t.asked) if a["name"] == n and a["source"] not in JUDGED and a["test"] in ("plain", "order")
        ]
        for n in names
    }
    return {name: answers(t, some) for name, some in of.items() if some}


def answers(t: Table, chosen: list[int]) -> scores.Answers:
    runs = {run: i for i, run in enumerate(sorted({a["run"] for a in t.asked}))}
    return scores.Answers(
        [t.logits[i] for i in chosen],
        [t.right[i] for i in chosen],
        [t.asked[i]["truth"] for i in chosen],
        [runs[t.asked[i]["run"]] for i in chosen],
    )


def figures(t: Table, temperatures: dict[str, float]) -> dict[str, Any]:
    """name -> {all, development, by source, by length, reversed wording, order_changes, raw_order_changes, planted_changes}; parts of fewer than 20 answers are
    left out. All but `development` is of the sources in JUDGED; temperatures: by question, or by type."""
    out: dict[str, Any] = {}
    names = sorted({a["name"] for a in t.asked})
    for name in names:
        own = [i for i, a in enumerate(t.asked) if a["name"] == name]
        mine = [i for i in own if t.asked[i]["source"] in JUDGED]
        plain = [i for i in mine if t.asked[i]["test"] == "plain"]
        heat = temperatures.get(name, temperatures.get(scores.type_of(name, answers(t, own)), 1.0))
        groups: dict[str, list[int]] = defaultdict(list)
        groups["development"] = [i for i in own if t.asked[i]["test"] == "plain" and t.asked[i]["source"] not in JUDGED]
        groups["all"] = plain
        groups["reversed"] = [i for i in mine if t.asked[i]["test"] == "reversed"]
        for i in plain:
            groups[f"source {t.asked[i]['source']}"].append(i)
            groups[f"up to {next((n for n in LONG if t.asked[i]['tokens'] <= n), LENGTHS[-1])} tokens"].append(i)
        row: dict[str, Any] = {key: scores.report(answers(t, some), heat) for key, some in groups.items() if len(some) >= 20}
        row["options"] = len(t.asked[own[0]]["options"])
        for key, test in (("order_changes", "order"), ("raw_order_changes", "raw"), ("planted_changes", "planted")):
            row[key] = changes(t, [i for i in mine if t.asked[i]["test"] == test])
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
    """What a judged question lacks: runs enough of each truth, lower end of the interval, calibration, stability in the product's prompts."""
    whole, least = row["all"], 0.65 if row["options"] > 2 else 0.80
    out = [] if whole["least_runs"] >= LEAST_RUNS else [f"runs of the rarer answer {whole['least_runs']} of {LEAST_RUNS}"]
    if row["options"] == 2 and whole["majority"] == 1.0:
        out.append("one answer alone occurs")
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
    parser.add_argument("--own", type=Path, nargs="+", required=True, help="folders of training.pack, for their held-out part")
    parser.add_argument("--of-each", type=int, default=40, help="histories of our own, of each length")
    parser.add_argument("--sources", choices=("all", "development"), default="all")
    parser.add_argument("--workers", type=int, default=1, help="processes; more than one on a CPU only")
    a = parser.parse_args()
    alone = a.sources == "development"
    own = own_runs(a.model, a.device, a.own, a.of_each, a.workers)
    judged = table(a.model, a.device, a.judge, alone, a.workers)
    temperatures = calibrate.temperatures(development(judged), own)
    found = figures(judged, temperatures)
    mine = {name: scores.report(some, temperatures[name]) for name, some in own.items()}
    if alone:
        for name, row in mine.items():
            print(
                f"{name}: temperature {temperatures[name]:.2f}; own runs {row}; development {found.get(name, {}).get('development')}"
            )
        return
    rounded = [[round(float(x), 4) for x in row] for row in judged.logits]
    (a.model / "held_out_logits.json").write_text(json.dumps(rounded) + "\n", encoding="utf-8")
    for name, value in (("temperatures", temperatures), ("held_out", found), ("figures", mine)):
        (a.model / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    for name, row in found.items():
        print(
            f"{name}: {'PASSED' if passed(row) else 'not passed'}; order {row['order_changes']}, raw {row['raw_order_changes']}, planted {row['planted_changes']}"
        )
        for key, part in row.items():
            if isinstance(part, dict):
                print(f"  {key}: " + ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in part.items()))


if __name__ == "__main__":
    main()
