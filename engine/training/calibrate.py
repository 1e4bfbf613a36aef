"""Temperatures by question, from few answers: each is drawn towards that of its type.

They are fitted on the development source and on runs of our own that were not trained on, never on the sources that are judged. The
development source is unlike anything in training and makes a model look less sure than it may be elsewhere, our own runs make it look too
sure: both weigh the same. The development decisions come from a handful of runs and some questions have a few answers only, so every run
counts once, and a question's temperature leaves that of its type only as far as its runs agree on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from training import scores

GRID = np.exp(np.linspace(math.log(0.5), math.log(6.0), 100))
PULL = 1.0
"""Loss, summed over runs, that a temperature e times that of its type (or e times 1, for a type) has to make good."""


def _by_run(answers: scores.Answers) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The mean loss of each run, summed over the runs, at every temperature of GRID."""
    total = np.zeros(len(GRID))
    for run in sorted(set(answers.cluster)):
        own = [i for i, c in enumerate(answers.cluster) if c == run]
        part = scores.Answers(*([getattr(answers, n)[i] for i in own] for n in ("logits", "right", "truth", "cluster")))
        total += [scores.loss(part, float(t)) for t in GRID]
    return total


def _least(cost: np.ndarray[tuple[int], np.dtype[np.float64]], centre: float) -> float:
    return float(GRID[int(np.argmin(cost + PULL * np.log(GRID / centre) ** 2))])


def temperatures(development: Mapping[str, scores.Answers], own: Mapping[str, scores.Answers]) -> dict[str, float]:
    """By type of question, and by question. own: answers on runs of our own, which weigh as many runs as the development source has."""
    costs, types = {}, {}
    for name in {*development, *own}:
        dev, mine = development.get(name), own.get(name)
        cost = np.zeros(len(GRID)) if dev is None else _by_run(dev)
        if mine is not None:
            many = len(set(mine.cluster))
            cost = cost + _by_run(mine) * (min(many, len(set(dev.cluster)) if dev is not None else many) / many)
        costs[name] = cost
        types[name] = scores.type_of(name, dev or own[name])
    found = {
        kind: _least(sum((costs[n] for n in sorted(costs) if types[n] == kind), np.zeros(len(GRID))), 1.0)
        for kind in set(types.values())
    }
    return found | {name: _least(costs[name], found[types[name]]) for name in sorted(costs)}
