"""What the dispatcher has done since it started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Counters:
    """per_round: requests in a round -> how many rounds had so many. overlapped: rounds put behind one that still ran. Tokens are
    rows of the engine."""

    rounds: int = 0
    requests: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    expired: int = 0
    slices: int = 0
    relieved: int = 0
    retried_alone: int = 0
    overlapped: int = 0
    tokens_computed: int = 0
    tokens_shared: int = 0
    tokens_reused: int = 0
    engine_seconds: float = 0.0
    per_round: Counter[int] = field(default_factory=Counter)

    def report(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in self.__slots__ if name != "per_round"}
        return out | {"requests_per_round": {str(n): c for n, c in sorted(self.per_round.items())}}
