"""Which trunks were answered lately, by their chain keys: tells where a new one parts from them though nothing is saved there."""

from __future__ import annotations

import threading
from collections.abc import Sequence

LIMIT = 1 << 18
"""Grid positions remembered: 16 million tokens of different trunks, about 25 MB."""


class Trails:
    """A bounded set of grid positions; the oldest go first. Keys are chains, so a position tells of all before it. Thread-safe."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._seen: dict[bytes, None] = {}
        self._lock = threading.Lock()

    def add(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in reversed(keys):  # the start of a trunk is what most others share: it is forgotten last
                self._seen.pop(key[:16], None)
                self._seen[key[:16]] = None
            while len(self._seen) > self._limit:
                del self._seen[next(iter(self._seen))]

    def agree(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, belong to a remembered trunk."""
        with self._lock:
            for n in range(len(keys), 0, -1):
                if keys[n - 1][:16] in self._seen:
                    return n
        return 0
