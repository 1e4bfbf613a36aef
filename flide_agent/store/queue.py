"""What waits for the writer's thread, in the order it came, and who waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flide_agent.store.jobs import Job, Put, Rows, Task
from flide_agent.store.removal import Removal

MAX_PUTS = 256
MAX_BATCH = 128
MAX_BATCH_BYTES = 128 << 20
LINGER = 0.1
"""Seconds that jobs of a store which goes with its process come together: what the first ones say is often void before it is over."""


class Queue:
    """Bounded: checkpoints by MAX_PUTS; whoever has rows waits once, however many they become. Thread-safe; one thread takes.

    patience: checkpoints up to which a first job waits LINGER for others; 0: none waits.
    """

    def __init__(self, patience: int = 0) -> None:
        self._patience = patience
        self._jobs: deque[Job] = deque()
        self._puts = self._flushes = self._ripe = 0
        self._asleep = self._gathering = False
        self._rows: set[Rows] = set()
        self._busy = self._closing = self._stuck = False
        self._wake = threading.Condition()

    def put(self, put: Put) -> bool:
        """False when it is full or closing."""
        with self._wake:
            if self._closing or self._puts >= MAX_PUTS:
                return False
            self._puts += 1
            self._jobs.append(put)
            self._come()
        return True

    def add(self, job: Rows | Removal | Task) -> None:
        """Rows that wait already stay where they are. Nothing is taken any more once it closes."""
        with self._wake:
            if self._closing or (isinstance(job, Rows) and job in self._rows):
                return
            if isinstance(job, Rows):
                self._rows.add(job)
            self._jobs.append(job)
            self._come()

    def withdraw(self, job: Rows) -> None:
        """Rows that need not be written any more."""
        with self._wake:
            if job in self._rows:
                self._rows.discard(job)
                self._jobs.remove(job)

    def depth(self) -> int:
        """Jobs that wait or are being done."""
        with self._wake:
            return len(self._jobs) + self._busy

    def flush(self, timeout: float) -> bool:
        """Wait until nothing waits; False after timeout (s)."""
        with self._wake, self._hurried():
            return self._wake.wait_for(lambda: not self._jobs and not self._busy, timeout)

    def close(self, timeout: float) -> None:
        """Take nothing more, once nothing waits, after timeout (s), or when the taker is stuck."""
        with self._wake, self._hurried():
            self._wake.wait_for(lambda: (not self._jobs and not self._busy) or self._stuck, timeout)
            self._closing = True
            self._wake.notify_all()

    def _come(self) -> None:
        """A job has come: the taker is woken if it waits for just that. Busy, it looks by itself."""
        if self._asleep or (self._gathering and self._due()):
            self._wake.notify_all()

    def _due(self) -> bool:
        """Whether what waits is to be done without waiting for more."""
        return self._closing or self._flushes > 0 or self._puts >= self._patience or len(self._jobs) >= MAX_BATCH

    @contextmanager
    def _hurried(self) -> Iterator[None]:
        """Nothing waits for more meanwhile."""
        self._flushes += 1
        self._wake.notify_all()
        try:
            yield
        finally:
            self._flushes -= 1

    # --- for the thread that takes ---

    def take(self) -> list[Job] | None:
        """The next jobs of one batch, when there are any; None once it closes. `done` follows."""
        with self._wake:
            self._asleep = True
            self._wake.wait_for(lambda: bool(self._jobs) or self._closing)
            self._asleep = False
            if self._patience and self._ripe <= 0:  # what has waited once does not wait again behind a batch that ended early
                self._gathering = True
                self._wake.wait_for(self._due, LINGER)
                self._gathering = False
                self._ripe = len(self._jobs)
            if self._closing:
                return None
            self._busy = True
            return self._batch()

    def _batch(self) -> list[Job]:
        """A Task is a batch of its own, since it has to see the ones before it committed."""
        jobs: list[Job] = []
        size = 0
        while self._jobs and len(jobs) < MAX_BATCH and size < MAX_BATCH_BYTES:
            if jobs and (isinstance(self._jobs[0], Task) or isinstance(jobs[0], Task)):
                break
            job = self._jobs.popleft()
            self._ripe -= 1
            jobs.append(job)
            if isinstance(job, Rows):
                self._rows.discard(job)  # from now on it has to wait again
            if isinstance(job, Put):
                self._puts -= 1
                checkpoint = job.checkpoint
                size += 0 if checkpoint is None else checkpoint.state_bytes
        return jobs

    def done(self, pause: float = 0.0) -> None:
        """The batch is. pause: seconds until another one is worth a try; cut short when it closes."""
        with self._wake:
            self._busy, self._stuck = False, pause > 0
            self._wake.notify_all()
            if pause > 0:
                self._wake.wait_for(lambda: self._closing, pause)

    def back(self, jobs: Sequence[Rows | Removal]) -> None:
        """Jobs of a batch that failed: they are the next ones."""
        with self._wake:
            again = [job for job in jobs if isinstance(job, Removal) or job not in self._rows]
            self._jobs.extendleft(reversed(again))
            self._rows.update(job for job in again if isinstance(job, Rows))

    def rest(self) -> list[Job]:
        """All that is left, after it closed."""
        with self._wake:
            left = list(self._jobs)
            self._jobs.clear()
            self._rows.clear()
            return left
