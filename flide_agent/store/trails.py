"""Which trunks were answered lately, by their chain keys: tells where a new one parts from them though nothing is saved there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice

LIMIT = 1 << 18
"""Grid positions remembered: 16 million tokens of different trunks, about 25 MB."""


class Trails:
    """A bounded set of grid positions; the oldest go first. Keys are chains, so a position tells of all before it. Thread-safe."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._seen: dict[bytes, None] = {}
        self._last: Sequence[bytes] = ()
        self._grown = False
        self._lock = threading.Lock()

    def add(self, keys: Sequence[bytes]) -> None:
        """keys: a trunk's, which the caller leaves as they are."""
        with self._lock:
            n = len(self._last)
            if 0 < n <= len(keys) and keys[n - 1] == self._last[-1]:  # the last trunk goes on: what it had is there
                self._seen.update(dict.fromkeys(key[:16] for key in keys[n:]))
                self._last, self._grown = keys, True
            else:
                self._settle()
                self._last = keys
                self._renew()
            if len(self._seen) > self._limit:
                self._settle()
                # One way through what is gone at the dict's front, and that not at each step.
                for key in list(islice(self._seen, len(self._seen) - self._limit + self._limit // 64)):
                    del self._seen[key]

    def _settle(self) -> None:
        """Order as if all of the last trunk had been added with its last keys."""
        if self._grown:
            self._renew()

    def _renew(self) -> None:
        short = [
            key[:16] for key in reversed(self._last)
        ]  # the start of a trunk is what most others share: it is forgotten last
        for key in short:
            self._seen.pop(key, None)
        self._seen.update(dict.fromkeys(short))
        self._grown = False

    def agree(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, belong to a remembered trunk."""
        with self._lock:
            for n in range(len(keys), 0, -1):
                if keys[n - 1][:16] in self._seen:
                    return n
        return 0
