"""Sessions of finished runs are deleted beside the replay: a deletion waits for the store's disk, decisions need not."""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
from contextlib import suppress
from typing import Protocol

from flide_agent.errors import FlideError

MOST = 64
"""Sessions that wait to be deleted; when the disk is that far behind, the replay waits for it."""
THREADS = 32
"""Deletions at once: each waits for all that the store has to write before it, so together they wait once."""

TRIM = 4
"""Deletions after which memory is given back."""
_LIBC = ctypes.CDLL(None)


class Deletes(Protocol):
    """What is needed of a service."""

    def delete(self, session: str) -> None: ...


class Leaving:
    """Deletes sessions in threads that start with the first. A session that cannot be deleted stays: the service's own limits
    apply to it."""

    def __init__(self, service: Deletes) -> None:
        self._service = service
        self._waiting: queue.Queue[str | None] = queue.Queue(MOST)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._count = itertools.count(1)

    def put(self, session: str) -> None:
        """Delete it soon."""
        with self._lock:
            if not self._threads:
                self._threads = [threading.Thread(target=self._run, name=f"leaving-{i}", daemon=True) for i in range(THREADS)]
                for thread in self._threads:
                    thread.start()
        self._waiting.put(session)

    def close(self, *, deleting: bool = True) -> None:
        """Wait until all that were given are deleted, or, without deleting, until those are that are being deleted."""
        with self._lock:
            threads, self._threads = self._threads, []
        if threads and not deleting:
            with suppress(queue.Empty):
                while True:
                    self._waiting.get_nowait()
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join()

    def _run(self) -> None:
        while (session := self._waiting.get()) is not None:
            with suppress(FlideError):
                self._service.delete(session)
            if next(self._count) % TRIM == 0:
                trim()


def trim() -> None:
    """Give free memory back to the system. What threads free lies between what they keep, and glibc alone returns none of it:
    without this a process that replays thousands of runs holds twice what it uses."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
