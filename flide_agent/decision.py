"""What a decision is when it is made: the reply, and what is known about how it came about."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from flide_agent.card import Card


@dataclass(frozen=True, slots=True)
class Served:
    """The model as clients see it. context: tokens that one trunk with one branch may have. released: day of its files.

    card: what it was trained and judged for, None where it says nothing of that.
    """

    name: str
    untrained: bool
    context: int
    released: date
    card: Card | None = None


@dataclass(slots=True)
class Times:
    """Milliseconds by part, in order: each `mark` closes one part."""

    start: float
    last: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)

    def mark(self, part: str, at: float | None = None) -> None:
        """at: of time.perf_counter, when that was; None is now."""
        now = time.perf_counter() if at is None else at
        self.parts[part] = 1e3 * (now - (self.last or self.start))
        self.last = now


@dataclass(frozen=True, slots=True)
class Decision:
    """An answered request. reply: as JSON-able data; {} where another process writes it. parts: milliseconds, in order. tier: of the
    checkpoint, "" for none. questions: how many were asked.

    saved: position of the deepest new checkpoint, m when there is none. started, seconds: wall time of its beginning, and how
    long it took. common: tokens shared with the session's last history.
    """

    tenant: str
    reply: dict[str, Any]
    parts: dict[str, float]
    started: float
    seconds: float
    m: int
    saved: int
    computed_tokens: int
    tier: str
    session: str = ""
    reason: str = ""
    common: int = 0
    questions: int = 0
