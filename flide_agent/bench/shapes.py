"""Sizes of requests in tokens: read from a workloads file, or drawn from the means of the paper's Table 2."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

LEAST_STATE, LEAST_QUESTION = 32, 32
"""Tokens below which a text with a tag of its own, or a yes-or-no question, cannot be written."""
SEED = 20261129


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of a state and of each of its questions, chat frame included."""

    state: int
    questions: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.state + sum(self.questions)

    def scaled(self, factor: float) -> Shape:
        """The state scaled, the questions left alone."""
        return replace(self, state=max(LEAST_STATE, round(self.state * factor)))


@dataclass(frozen=True, slots=True)
class Workloads:
    """requests: by workload. agents: tokens appended at each step of each session. agent_questions: asked at every step.

    source: where the sizes come from, for the report.
    """

    source: str
    requests: Mapping[str, tuple[Shape, ...]]
    agents: tuple[tuple[int, ...], ...]
    agent_questions: tuple[int, ...]

    def scaled(self, factor: float) -> Workloads:
        """States and messages scaled for a slower machine; says so in `source`."""
        if factor == 1.0:
            return self
        requests = {name: tuple(s.scaled(factor) for s in shapes) for name, shapes in self.requests.items()}
        agents = tuple(tuple(max(LEAST_STATE, round(n * factor)) for n in steps) for steps in self.agents)
        return Workloads(f"{self.source}, states x {factor:g}", requests, agents, self.agent_questions)


@dataclass(frozen=True, slots=True)
class _Means:
    questions: float
    state: int
    stream: int
    spread: float


TABLE_2 = {
    "race_one": _Means(1, 250, 325, 0.35),
    "quality_one": _Means(1, 3355, 3443, 0.05),
    "di": _Means(5.4, 323, 1349, 1.2),
    "race_all": _Means(4.0, 255, 546, 0.35),
    "quality_all": _Means(18.1, 5835, 7454, 0.25),
    "multirc": _Means(47.6, 327, 2663, 0.25),
}
"""Mean questions, state and stream of the paper's workloads, and how far sizes spread (standard deviation of the logarithm)."""


def built_in(rows: int = 16, seed: int = SEED) -> Workloads:
    """`rows` requests a workload with Table 2's means, and sessions of agents that grow to about 2k to 30k tokens."""
    rng = random.Random(seed)
    requests = {name: _draw(rng, means, rows) for name, means in TABLE_2.items()}
    agents = tuple(_session(rng, length) for length in (4, 9, 21, 39, 80))
    return Workloads("built-in sizes with the means of the paper's Table 2", requests, agents, (48, 52, 60, 66, 74))


def _draw(rng: random.Random, means: _Means, rows: int) -> tuple[Shape, ...]:
    spread = 0.0 if means.questions == 1 else 0.25 if means.spread < 1 else 0.9
    counts = [min(64, n) for n in _to_mean([rng.lognormvariate(0, spread) for _ in range(rows)], means.questions, 1)]
    states = _to_mean([rng.lognormvariate(0, means.spread) for _ in range(rows)], means.state, LEAST_STATE)
    each = (means.stream - means.state) * rows / sum(counts)
    sizes = iter(_to_mean([rng.lognormvariate(0, 0.2) for _ in range(sum(counts))], each, LEAST_QUESTION))
    return tuple(Shape(p, tuple(next(sizes) for _ in range(n))) for p, n in zip(states, counts, strict=True))


def _to_mean(values: Sequence[float], mean: float, least: int) -> list[int]:
    factor = mean * len(values) / sum(values)
    return [max(least, round(v * factor)) for v in values]


def _session(rng: random.Random, steps: int) -> tuple[int, ...]:
    """A long opening (system prompt and task), then observations: most short, some a file's worth."""
    later = [round(rng.lognormvariate(5.0, 0.6)) if rng.random() < 0.65 else rng.randint(700, 1700) for _ in range(steps - 1)]
    return (rng.randint(1900, 2400), *(max(64, n) for n in later))


def read(path: Path) -> Workloads:
    """A file {workload: [{"state": n, "questions": [n, ...]}], "agents": [{"steps": [{"append": n}]}], "agent_questions": [n]}.

    Raises ValueError naming what is wrong.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as e:
        raise ValueError(f"{path.name}: {e}") from e
    if not isinstance(raw, dict):
        raise ValueError(f"{path.name}: an object of workloads is needed")
    requests: dict[str, tuple[Shape, ...]] = {}
    for name, rows in raw.items():
        if name in ("agents", "agent_questions"):
            continue
        try:
            requests[name] = tuple(Shape(_size(r["state"]), tuple(_size(q) for q in r["questions"])) for r in rows)
        except (TypeError, KeyError, ValueError) as e:
            raise ValueError(f'{path.name}: {name} is no list of {{"state": n, "questions": [n, ...]}} ({e})') from e
        if not requests[name] or not all(s.questions for s in requests[name]):
            raise ValueError(f"{path.name}: {name} has no request, or one without a question")
    try:
        agents = tuple(tuple(_size(step["append"]) for step in session["steps"]) for session in raw.get("agents", ()))
        questions = tuple(_size(n) for n in raw.get("agent_questions", ()))
    except (TypeError, KeyError, ValueError) as e:
        raise ValueError(f'{path.name}: agents must be a list of {{"steps": [{{"append": n}}]}} ({e})') from e
    return Workloads(path.name, requests, agents, questions or (48, 52, 60, 66, 74))


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is no number of tokens")
    return value


def median(shapes: Sequence[Shape]) -> Shape:
    """The request whose stream has the median length."""
    return sorted(shapes, key=lambda s: s.tokens)[len(shapes) // 2]
