"""Figures of answers: balanced accuracy, calibration, temperatures, intervals by clusters."""

# ruff: noqa: E501 - rows of figures read best a line each
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """probabilities: one row of an answer each, of the same number of options; right: index of the right one; truth: the class that balance
    is kept over (the fact, not the shuffled place); cluster: the run that an answer comes from."""

    logits: Sequence[Floats]
    right: Sequence[int]
    truth: Sequence[str]
    cluster: Sequence[int]


def softmax(logits: Floats, temperature: float = 1.0) -> Floats:
    z = np.asarray(logits, np.float64) / temperature
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum())


def loss(answers: Answers, temperature: float = 1.0) -> float:
    """Mean negative log probability of the right answers."""
    table, right = _table(answers), np.array(answers.right)
    z = table / temperature
    z = z - z.max(1, keepdims=True)
    told = z[np.arange(len(right)), right] - np.log(np.exp(z).sum(1))
    return float(-np.maximum(told, np.log(1e-12)).mean())


def _table(answers: Answers) -> Floats:
    """Logits [n, most options], -inf where an answer has fewer."""
    out = np.full((len(answers.logits), max(map(len, answers.logits))), -np.inf)
    for row, z in zip(out, answers.logits, strict=True):
        row[: len(z)] = z
    return out


def temperature(answers: Answers) -> float:
    """The temperature of least loss in [0.25, 8], by a grid of 3 %."""
    grid = np.exp(np.linspace(np.log(0.25), np.log(8.0), 120))
    return float(grid[int(np.argmin([loss(answers, float(t)) for t in grid]))])


def type_of(name: str, answers: Answers) -> str:
    """As the kind of question is called on the wire. Here and not with the questions, which need more than a GPU machine may have."""
    return "noul" if len(answers.logits[0]) == 2 else "score" if name == "step_count" else "choice"


def together(some: Sequence[Answers]) -> Answers:
    """All of them as one."""
    return Answers(*([x for a in some for x in getattr(a, f.name)] for f in fields(Answers)))


def _hits(answers: Answers) -> npt.NDArray[np.bool_]:
    return np.array([int(np.argmax(z)) == r for z, r in zip(answers.logits, answers.right, strict=True)])


def _parts(answers: Answers) -> tuple[Floats, Floats]:
    """(part answered right, whether there is any) of each run (rows) and truth (columns)."""
    names, cluster = np.unique(np.array(answers.cluster), return_inverse=True)
    truths, truth = np.unique(np.array(answers.truth), return_inverse=True)
    hits, all_of = np.zeros((2, len(names), len(truths)))
    np.add.at(hits, (cluster, truth), _hits(answers))
    np.add.at(all_of, (cluster, truth), 1)
    return hits / np.maximum(all_of, 1), (all_of > 0).astype(np.float64)


def balanced_accuracy(answers: Answers) -> float:
    """Mean over the truths of the mean over the runs of the part answered right: a long run counts as much as a short one."""
    part, there = _parts(answers)
    return float(np.mean(part.sum(0) / there.sum(0)))


def majority(answers: Answers) -> float:
    """Accuracy of always giving the most frequent truth."""
    return float(np.unique(np.array(answers.truth), return_counts=True)[1].max() / len(answers.truth))


def accuracy(answers: Answers) -> float:
    return float(np.mean([int(np.argmax(z)) == r for z, r in zip(answers.logits, answers.right, strict=True)]))


def expected_calibration_error(answers: Answers, temperature: float = 1.0, bins: int = 10) -> float:
    """ECE of the top answer's probability over equal-width bins."""
    p = [softmax(z, temperature) for z in answers.logits]
    top = np.array([x.max() for x in p])
    hit = np.array([int(np.argmax(x)) == r for x, r in zip(p, answers.right, strict=True)], np.float64)
    place = np.minimum((top * bins).astype(int), bins - 1)
    return float(sum(abs(hit[place == b].mean() - top[place == b].mean()) * (place == b).mean() for b in np.unique(place)))


def _least_runs(answers: Answers) -> int:
    """How many runs hold the rarer truth of a yes/no question; of a choice, each of its three most frequent truths."""
    runs = sorted(_parts(answers)[1].sum(0), reverse=True)
    return int(runs[min(2, len(runs) - 1)])


def interval(answers: Answers, draws: int = 1000, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the balanced accuracy, by drawing whole runs with replacement (cluster bootstrap)."""
    rng = np.random.default_rng(seed)
    part, there = _parts(answers)
    times = rng.multinomial(len(part), np.full(len(part), 1 / len(part)), draws).astype(np.float64)
    with np.errstate(invalid="ignore"):
        parts = (times @ part) / (times @ there)  # nan for a truth that a draw does not hold
    found = np.nanmean(parts, 1)
    return float(np.percentile(found, 2.5)), float(np.percentile(found, 97.5))


def report(answers: Answers, temperature: float = 1.0) -> dict[str, float]:
    """Everything above in one row; least_runs: as `_least_runs` counts."""
    low, high = interval(answers)
    return {
        "n": len(answers.right), "runs": len(set(answers.cluster)), "least_runs": _least_runs(answers), "accuracy": accuracy(answers), "majority": majority(answers),
        "balanced": balanced_accuracy(answers), "low": low, "high": high, "ece": expected_calibration_error(answers, temperature), "loss": loss(answers, temperature),
    }  # fmt: skip
