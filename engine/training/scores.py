"""Figures of answers: balanced accuracy, calibration, temperatures, intervals by clusters."""

# ruff: noqa: E501 - rows of figures read best a line each
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    return float(
        np.mean([-np.log(max(softmax(z, temperature)[r], 1e-12)) for z, r in zip(answers.logits, answers.right, strict=True)])
    )


def temperature(answers: Answers) -> float:
    """The temperature of least loss in [0.25, 8], by a grid of 1 %, golden to the nearest."""
    grid = np.exp(np.linspace(np.log(0.25), np.log(8.0), 120))
    return float(grid[int(np.argmin([loss(answers, float(t)) for t in grid]))])


def balanced_accuracy(answers: Answers, weights: Floats | None = None) -> float:
    """Mean over the truths of the part answered right. weights: how often each answer counts."""
    w = np.ones(len(answers.right)) if weights is None else weights
    hit = np.array([int(np.argmax(z)) == r for z, r in zip(answers.logits, answers.right, strict=True)])
    truth = np.array(answers.truth)
    parts = [(w * hit)[truth == t].sum() / w[truth == t].sum() for t in np.unique(truth) if w[truth == t].sum() > 0]
    return float(np.mean(parts))


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


def interval(answers: Answers, draws: int = 500, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the balanced accuracy, by drawing whole runs with replacement (cluster bootstrap)."""
    rng = np.random.default_rng(seed)
    names, at = np.unique(np.array(answers.cluster), return_inverse=True)
    found = []
    for _ in range(draws):
        times = np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))
        weights = times[at].astype(np.float64)
        if weights.sum():
            found.append(balanced_accuracy(answers, weights))
    return float(np.percentile(found, 2.5)), float(np.percentile(found, 97.5))


def report(answers: Answers, temperature: float = 1.0) -> dict[str, float]:
    """Everything above in one row."""
    low, high = interval(answers)
    return {
        "n": len(answers.right), "runs": len(set(answers.cluster)), "accuracy": accuracy(answers), "majority": majority(answers),
        "balanced": balanced_accuracy(answers), "low": low, "high": high, "ece": expected_calibration_error(answers, temperature), "loss": loss(answers, temperature),
    }  # fmt: skip
