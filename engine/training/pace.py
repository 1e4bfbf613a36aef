"""The log of a training, where its time goes, and an end to one that stands still."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Pace:
    """Times between two readings: the whole, and what was spent waiting for batches and for the device."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._waited = {"batches": 0.0, "device": 0.0}
        self._tokens = self._steps = 0

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """what: "batches" or "device"."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._waited[what] += time.monotonic() - begin

    def step(self, tokens: int) -> None:
        self._steps, self._tokens = self._steps + 1, self._tokens + tokens

    def read(self) -> dict[str, float]:
        """Since the last reading: tokens a second, milliseconds a step, and of those waiting for batches and for the device."""
        now, steps = time.monotonic(), max(1, self._steps)
        took = max(now - self._since, 1e-9)
        told = {"tokens_a_second": round(self._tokens / took), "step_ms": round(1e3 * took / steps, 2)}
        told |= {f"{what}_ms": round(1e3 * spent / steps, 2) for what, spent in self._waited.items()}
        self.skip()
        return told

    def skip(self) -> None:
        """Begin anew, so that what was done since (a look, a checkpoint) does not count."""
        self.__init__()  # type: ignore[misc]


@dataclass
class Log:
    """Rows of figures, written as lines of JSON and printed every ten seconds. after: behind the lines that are in the file already."""

    path: Path | None
    after: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    _before: str = ""
    _told: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.after and self.path is not None and self.path.exists():
            self._before = self.path.read_text(encoding="utf-8")

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if len(self.rows) % 20 == 1:
            self.write()
        if self.path is not None and time.monotonic() - self._told > 10.0:
            self.tell()

    def tell(self) -> None:
        self._told = time.monotonic()
        print(json.dumps(self.rows[-1]), flush=True)

    def write(self) -> None:
        if self.path is not None:
            self.path.write_text(self._before + "".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")


class Watchdog:
    """Ends the process, with exit code 3, when `alive` is not called for `seconds`: a device that hangs raises nothing."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._seen = seconds, time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def alive(self) -> None:
        self._seen = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._seconds / 4)):
            if time.monotonic() - self._seen > self._seconds:
                print(f"nothing moved for {self._seconds:.0f} s; this attempt ends", file=sys.stderr, flush=True)
                os._exit(3)
