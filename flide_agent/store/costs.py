"""What a checkpoint is worth: the seconds that keeping it is expected to save, for each byte that dropping it would free.

    value = p(kind, idle) x (seconds to have it again without it) / (bytes really freed)

Having it again means computing from the nearest ancestor that survives or, for a device copy of what is on disk too, loading.
Both speeds are learned from what the engine and the disk did. p falls with the kind and with the time since the last use; its
shape follows the published hit rates of agent sessions after 1, 5 and 60 minutes of idleness.
"""

from __future__ import annotations

import threading

from flide_agent.store.report import Kind

WEIGHTS = {Kind.INNER: 0.25, Kind.OLD: 0.5, Kind.RUNG: 1.0, Kind.FORK: 2.0, Kind.STEP: 4.0, Kind.PREFIX: 8.0}
IDLE = 60.0
"""Seconds without use after which a checkpoint is half as likely to be used again."""
FADE = 0.9
LEAST_TOKENS = 64
LEAST_LOADS = 8
UNKNOWN_TOKEN = 1e-4
"""Seconds to compute a token while nothing was measured; only ratios matter then."""
UNKNOWN_LOAD = 0.1
"""Loading costs this part of computing while no load was measured."""


class Speed:
    """Amount a second over the last measurements, the newer ones counting more."""

    def __init__(self) -> None:
        self._sums = (0.0, 0.0)  # replaced as one, so that reading needs no lock
        self.count = 0

    def add(self, amount: float, seconds: float) -> None:
        self.count += 1
        whole, took = self._sums
        self._sums = FADE * whole + amount, FADE * took + seconds

    def seconds(self, amount: float) -> float | None:
        """For so much; None while nothing was measured."""
        whole, took = self._sums
        return amount * took / whole if whole and took else None


class Costs:
    """Thread-safe. A position's cost is taken as linear in its tokens, which holds for the lengths of agent histories."""

    def __init__(self) -> None:
        self._prefill, self._disk, self._host = Speed(), Speed(), Speed()
        self._lock = threading.Lock()

    def computed(self, tokens: int, seconds: float) -> None:
        """The engine computed so many tokens in so long. Short runs say more about the launch than about tokens and are passed over."""
        if tokens >= LEAST_TOKENS and seconds > 0:
            with self._lock:
                self._prefill.add(tokens, seconds)

    def loaded(self, disk: int, host: int, seconds: float) -> None:
        """So many bytes were brought to the device from disk and from the host in so long; where both had a part, the disk took it."""
        if seconds > 0:
            with self._lock:
                if disk:
                    self._disk.add(disk, seconds)
                elif host:
                    self._host.add(host, seconds)

    def compute_seconds(self, tokens: int) -> float | None:
        return self._prefill.seconds(tokens)

    def load_seconds(self, disk: int, host: int = 0) -> float | None:
        """For so many bytes; None while nothing was measured."""
        if not host:
            return self._disk.seconds(disk) if disk else None
        parts = [speed.seconds(size) for speed, size in ((self._disk, disk), (self._host, host)) if size]
        known = [seconds for seconds in parts if seconds is not None]
        return sum(known) if known else None

    def worth_loading(self, disk: int, host: int, tokens: int) -> bool:
        """Whether so many bytes can be had in less time than so many tokens computed; True while too little was measured to say,
        since one slow moment must not decide it."""
        if any(size and speed.count < LEAST_LOADS for speed, size in ((self._disk, disk), (self._host, host))):
            return True
        load, compute = self.load_seconds(disk, host), self.compute_seconds(tokens)
        return load is None or compute is None or load < compute

    def value(self, kind: Kind, idle: float, tokens: int, reload: int, freed: int) -> float:
        """idle: seconds since its last use. tokens: from the survivor to it. reload: bytes of a copy below this tier, 0 without
        one. freed: bytes that dropping it gives back."""
        seconds = self.compute_seconds(tokens)
        if seconds is None:
            seconds = tokens * UNKNOWN_TOKEN
        if reload:
            load = self.load_seconds(reload)
            seconds = min(seconds, seconds * UNKNOWN_LOAD if load is None else load)
        return WEIGHTS[kind] / (1 + idle / IDLE) * seconds / max(1, freed)
