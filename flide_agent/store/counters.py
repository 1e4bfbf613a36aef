"""Counts since the start, added to from any thread."""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """Names are fields of StoreStats."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self._counts[name] += n

    def report(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
