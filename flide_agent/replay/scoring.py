"""Answers against reference labels: accuracy, AUROC, calibration, thresholds at a target error, each with an interval.

It is a comparison with what a file or a label file says, not a judgement of what is true. Steps of one run depend on each
other, so intervals are percentiles over resampled runs (over resampled steps where there is one run alone).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flide_agent.replay.pack import tempered

BINS = 10
LEAST = 10
"""Labelled answers that an interval is taken from."""
_SEED = 20_260
_Z = 1.959963984540054
Interval = tuple[float, float]


@dataclass
class Sample:
    """The labelled answers of one question. runs: number of the run that each belongs to; answers: probabilities by option;
    right: the option that the label names."""

    kind: str
    runs: list[int] = field(default_factory=list)
    answers: list[dict[str, float]] = field(default_factory=list)
    right: list[str] = field(default_factory=list)

    def add(self, run: int, answer: dict[str, float], right: str) -> None:
        self.runs.append(run)
        self.answers.append(answer)
        self.right.append(right)

    def __len__(self) -> int:
        return len(self.right)


def score(sample: Sample, *, temperature: float = 1.0, target_error: float = 0.05, resamples: int = 200) -> dict[str, Any]:
    """All figures of one question, JSON-able. Numbers that cannot be had (one class alone) are null."""
    import numpy as np

    answers = [tempered(a, temperature) for a in sample.answers]
    p, hit = _events(sample, answers)
    correct = np.array([max(a, key=lambda k: a[k]) == r for a, r in zip(answers, sample.right, strict=True)], dtype=float)
    out: dict[str, Any] = {"n": len(sample), "runs": len(set(sample.runs)), "kind": sample.kind, "temperature": temperature}
    if not len(sample):
        return out
    counts: dict[str, int] = {}
    for r in sample.right:
        counts[r] = counts.get(r, 0) + 1
    out["labels"] = dict(sorted(counts.items()))
    draws = _draws(np.array(sample.runs), resamples)
    areas = _areas(sample, answers)
    figures: dict[str, Callable[[Any], float]] = {
        "accuracy": lambda i: float(correct[i].mean()),
        "auroc": lambda i: _mean_auroc([(a[i], b[i]) for a, b in areas]),
        "ece": lambda i: ece(p[i], hit[i]),
    }
    whole = np.arange(len(sample))
    for name, figure in figures.items():
        out[name] = _number(figure(whole))
        out[f"{name}_interval"] = _interval([figure(i) for i in draws])
    out["reliability"] = reliability(p, hit)
    found = threshold_at(p, hit, target_error)
    if found is not None:
        cut, fired, caught, error = found
        others = [
            t[0] for t in (threshold_at(p[i], hit[i], target_error) for i in draws[: max(resamples // 2, 1)]) if t is not None
        ]
        out["threshold"] = {
            "target_error": target_error,
            "value": _number(cut),
            "interval": _interval(others),
            "fires": fired,
            "share": fired / len(sample),
            "caught": _number(caught),
            "error": _number(error),
            "error_interval": wilson(round(error * fired), fired),
        }
    return out


def auroc(p: Any, positive: Any) -> float:
    """Area under the ROC curve, ties counted half; nan when there is one class alone."""
    import numpy as np

    positive = positive.astype(bool)
    n1 = int(positive.sum())
    n0 = len(positive) - n1
    if not n1 or not n0:
        return math.nan
    _, inverse, counts = np.unique(p, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - n1 * (n1 + 1) / 2) / (n1 * n0))


def ece(p: Any, hit: Any, bins: int = BINS) -> float:
    """Expected calibration error over equal bins of [0, 1]."""
    import numpy as np

    which = np.minimum((p * bins).astype(int), bins - 1)
    n = np.bincount(which, minlength=bins)
    gap = np.abs(np.bincount(which, weights=p, minlength=bins) - np.bincount(which, weights=hit, minlength=bins))
    return float(gap[n > 0].sum() / max(len(p), 1))


def reliability(p: Any, hit: Any, bins: int = BINS) -> list[dict[str, Any]]:
    """For each bin with answers: how many, their mean probability, how often they were right, and a Wilson interval of that."""
    out = []
    for b in range(bins):
        inside = (p >= b / bins) & ((p < (b + 1) / bins) | (b == bins - 1))
        n = int(inside.sum())
        if n:
            k = int(hit[inside].sum())
            out.append({"n": n, "mean": float(p[inside].mean()), "share": k / n, "interval": wilson(k, n)})
    return out


def threshold_at(p: Any, hit: Any, target_error: float) -> tuple[float, int, float, float] | None:
    """The lowest cut at which of all answers at or over it at most the target share is wrong.

    Returns cut, how many are over it, the share of all hits that are, and the error among them; None when no cut does.
    """
    import numpy as np

    order = np.argsort(-p, kind="stable")
    ranked, hits = p[order], np.cumsum(hit[order])
    n = np.arange(1, len(p) + 1)
    last = np.append(ranked[1:] != ranked[:-1], True)  # equal probabilities fire together
    good = np.flatnonzero(last & (1 - hits / n <= target_error + 1e-12))
    if not len(good):
        return None
    k = int(good[-1])
    return float(ranked[k]), k + 1, float(hits[k] / hits[-1]) if hits[-1] else math.nan, float(1 - hits[k] / n[k])


def temperature_of(sample: Sample) -> tuple[float, float, float]:
    """The temperature of the smallest mean negative log likelihood of the labels, that figure with it, and at temperature 1.

    Golden section on log T in [-3, 3]; the likelihood of temperature scaling has one minimum.
    """

    def loss(t: float) -> float:
        return -sum(
            math.log(max(tempered(a, math.exp(t)).get(r, 0.0), 1e-300))
            for a, r in zip(sample.answers, sample.right, strict=True)
        ) / len(sample)

    low, high, ratio = -3.0, 3.0, (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = loss(a), loss(b)
    for _ in range(40):
        if fa <= fb:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = loss(a)
        else:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = loss(b)
    best = (low + high) / 2
    return math.exp(best), loss(best), loss(0.0)


def wilson(k: int, n: int) -> Interval | None:
    """95 % interval of a share of k in n."""
    if n == 0:
        return None
    share, z2 = k / n, _Z * _Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def _events(sample: Sample, answers: list[dict[str, float]]) -> tuple[Any, Any]:
    """What is calibrated: P(yes) and whether it was yes; of others the largest probability and whether it was right."""
    import numpy as np

    if sample.kind == "noul":
        return np.array([a["true"] for a in answers]), np.array([r == "true" for r in sample.right], dtype=float)
    tops = [max(a, key=lambda k: a[k]) for a in answers]
    p = np.array([a[t] for a, t in zip(answers, tops, strict=True)])
    return p, np.array([t == r for t, r in zip(tops, sample.right, strict=True)], dtype=float)


def _areas(sample: Sample, answers: list[dict[str, float]]) -> list[tuple[Any, Any]]:
    """(scores, is it) of every option that some label names; of a noul that is yes alone."""
    import numpy as np

    names = ["true"] if sample.kind == "noul" else sorted(set(sample.right))
    right = np.array(sample.right)
    return [(np.array([a.get(n, 0.0) for a in answers]), right == n) for n in names]


def _mean_auroc(areas: list[tuple[Any, Any]]) -> float:
    found = [x for x in (auroc(p, y) for p, y in areas) if not math.isnan(x)]
    return sum(found) / len(found) if found else math.nan


def _draws(runs: Any, count: int) -> list[Any]:
    import numpy as np

    if len(runs) < LEAST:
        return []
    rng = np.random.default_rng(_SEED)
    names = np.unique(runs)
    if len(runs) > 20_000:
        count = min(count, 50)
    if len(names) == 1:
        return [rng.integers(0, len(runs), len(runs)) for _ in range(count)]
    members = [np.flatnonzero(runs == n) for n in names]
    return [np.concatenate([members[j] for j in rng.integers(0, len(names), len(names))]) for _ in range(count)]


def _interval(values: list[float]) -> Interval | None:
    ranked = sorted(v for v in values if not math.isnan(v))
    if len(ranked) < 10:
        return None
    return ranked[int(0.025 * (len(ranked) - 1))], ranked[math.ceil(0.975 * (len(ranked) - 1))]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
