"""Sums over a replay, for people and as the last record of the JSONL."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from flide_agent.replay.decision import Decision, Event, Started
from flide_agent.replay.records import Problem
from flide_agent.replay.text import line

UNTRAINED = "untrained: random weights, so these answers mean nothing yet"
SIZES = ((4096, "under 4k"), (8192, "4k to 8k"), (12288, "8k to 12k"), (math.inf, "over 12k"))
"""History tokens in classes."""


@dataclass
class Beside:
    """Sums over what was asked elsewhere too."""

    asked: int = 0
    same: int = 0
    failed: int = 0
    error: str = ""
    """Why the first of them was not answered."""
    apart: float = 0.0
    computed: int = 0
    own_computed: int = 0
    """Of the decisions whose other side tells what it computed."""
    milliseconds: array[float] = field(default_factory=lambda: array("d"))

    def add(self, d: Decision) -> None:
        if d.other is None:
            return
        self.asked += 1
        if d.other.error:
            self.failed += 1
            self.error = self.error or d.other.error
            return
        self.same += d.other.same
        self.apart = max(self.apart, d.other.apart)
        self.milliseconds.append(d.other.milliseconds)
        if d.other.computed_tokens is not None:
            self.computed += d.other.computed_tokens
            self.own_computed += d.computed_tokens

    def record(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "same": self.same,
            "failed": self.failed,
            "error": self.error,
            "apart": self.apart,
            "computed_tokens": self.computed,
            "own_computed_tokens": self.own_computed,
            "milliseconds": percentiles(self.milliseconds),
        }


@dataclass
class Totals:
    """Sums over a replay. A request may decide several moments; tokens, forks and milliseconds are of requests."""

    runs: int = 0
    steps: int = 0
    """Of these runs, also those that are not asked about."""
    decisions: int = 0
    requests: int = 0
    reused: int = 0
    computed: int = 0
    untrained: bool = False
    guesses: int = 0
    """Answers that the model's card does not speak for."""
    first: float = math.inf
    last: float = 0.0
    models: set[str] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)
    milliseconds: array[float] = field(default_factory=lambda: array("d"))
    service: array[float] = field(default_factory=lambda: array("d"))
    by_size: dict[str, array[float]] = field(default_factory=dict)
    beside: Beside = field(default_factory=Beside)
    problems: list[Problem] = field(default_factory=list)

    def add(self, event: Event) -> None:
        if isinstance(event, Started):
            self.runs += 1
            self.steps += len(event.run.steps)
        elif isinstance(event, Problem):
            self.problems.append(event)
        elif isinstance(event, Decision):
            self.decisions += 1
            self.untrained = self.untrained or event.untrained
            self.guesses += len(event.out_of_scope)
            self.models.add(event.model)
            if event.first:
                self._add_request(event)

    def _add_request(self, d: Decision) -> None:
        self.requests += 1
        self.reused += d.reused_tokens
        self.computed += d.computed_tokens
        self.reasons[d.reason] += 1
        self.milliseconds.append(d.milliseconds)
        self.service.append(d.service_milliseconds)
        size = next(name for most, name in SIZES if d.history_tokens < most)
        self.by_size.setdefault(f"{'warm' if d.m else 'cold'}, {size}", array("d")).append(d.milliseconds)
        self.first = min(self.first, d.begun)
        self.last = max(self.last, d.begun + d.milliseconds / 1000)
        self.beside.add(d)

    def _sizes(self) -> list[tuple[str, array[float]]]:
        """Cold before warm, and short histories before long ones."""
        order = [f"{state}, {size}" for state in ("cold", "warm") for _, size in SIZES]
        return [(k, self.by_size[k]) for k in order if k in self.by_size]

    @property
    def share(self) -> float:
        """Tokens reused over tokens that the same decisions read without reuse."""
        return self.reused / max(self.reused + self.computed, 1)

    @property
    def per_second(self) -> float:
        """Decisions a second, from the first question to the last answer."""
        return self.decisions / max(self.last - self.first, 1e-9) if self.decisions else 0.0

    def percentile(self, p: float) -> float:
        """Nearest rank, in milliseconds; nan without decisions."""
        return percentile(sorted(self.milliseconds), p)

    def record(self) -> dict[str, Any]:
        return {
            "kind": "summary",
            "runs": self.runs,
            "decisions": self.decisions,
            "requests": self.requests,
            "problems": len(self.problems),
            "computed_tokens": self.computed,
            "computed_without_reuse": self.computed + self.reused,
            "reuse": round(self.share, 6),
            "reasons": dict(self.reasons),
            "milliseconds": percentiles(self.milliseconds),
            "models": sorted(self.models),
            "untrained": self.untrained,
            "out_of_scope": self.guesses,
            "service_milliseconds": percentiles(self.service),
            "milliseconds_by_size": {k: {"n": len(v), **percentiles(v)} for k, v in self._sizes()},
            "decisions_per_second": round(self.per_second, 3),
            **({"compared": self.beside.record()} if self.beside.asked else {}),
        }

    def lines(self) -> list[str]:
        """The summary for people."""
        out = [
            f"{counted(self.decisions, 'decision')} in {counted(self.runs, 'run')}"
            + (f", {counted(self.requests, 'request')}" if self.requests != self.decisions else "")
            + (f", model {line(', '.join(sorted(self.models)), 80)}" if self.models else "")
        ]
        if self.decisions:
            whole = self.computed + self.reused
            out.append(f"tokens    {self.computed:,} computed, {whole:,} without reuse: {self.share:.1%} reused")
            out.append("forks     " + ", ".join(f"{line(r, 20)} {n}" for r, n in self.reasons.most_common()))
            p50, p95, p99, top = (self.percentile(p) for p in (50, 95, 99, 100))
            out.append(
                f"latency   p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms, max {top:.1f} ms; {self.per_second:.1f} decisions/s"
            )
            for name, some in self._sizes() if len(self.by_size) > 1 else ():
                ranked = sorted(some)
                out.append(
                    f"  {name:<16} n {len(some):<6} p50 {percentile(ranked, 50):.1f} ms, p95 {percentile(ranked, 95):.1f} ms"
                )
        if self.beside.asked:
            b = self.beside
            out.append(
                f"compared  {b.same} of {b.asked} requests equal to the last bit, at most {b.apart:.3g} apart, {b.failed} not answered"
                + (f" (the first: {line(b.error, 200)})" if b.failed else "")
            )
            if b.computed:
                saved = b.computed - b.own_computed  # below 0 where the other side goes on from what this one left there
                more = f": {saved:,} saved ({saved / b.computed:.1%})" if saved > 0 else ""
                out.append(f"          {b.own_computed:,} tokens computed here, {b.computed:,} there{more}")
            if b.milliseconds:
                out.append(f"          latency there p50 {percentile(sorted(b.milliseconds), 50):.1f} ms")
        if self.guesses:
            out.append(
                f"{counted(self.guesses, 'answer')} with a ? out of scope: not a question of the model's card, or too long a history"
            )
        if self.untrained:
            out.append(UNTRAINED)
        if self.problems:
            out.append(f"{counted(len(self.problems), 'problem')}, see above")
        return out


def percentile(ranked: list[float], p: float) -> float:
    """Nearest rank of sorted values; nan of none."""
    return ranked[max(math.ceil(p / 100 * len(ranked)), 1) - 1] if ranked else math.nan


def percentiles(values: array[float]) -> dict[str, float]:
    ranked = sorted(values)
    return {f"p{p}": round(percentile(ranked, p), 3) for p in (50, 90, 95, 99, 100)} if ranked else {}


def counted(n: int, thing: str) -> str:
    """A number of things in words."""
    return f"{n} {thing}{'' if n == 1 else 's'}"
