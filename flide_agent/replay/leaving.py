"""Sessions of finished runs are deleted beside the replay: a deletion waits for the store's disk, decisions need not."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import Protocol

from flide_agent.errors import FlideError

MOST = 256
"""Sessions that wait to be deleted; when the disk is that far behind, the replay waits for it."""


class Deletes(Protocol):
    """What is needed of a service."""

    def delete(self, session: str) -> None: ...


class Leaving:
    """Deletes sessions in the order given, in a thread that starts with the first. A session that cannot be deleted stays: the
    service's own limits apply to it."""

    def __init__(self, service: Deletes) -> None:
        self._service = service
        self._waiting: queue.Queue[str | None] = queue.Queue(MOST)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, session: str) -> None:
        """Delete it soon."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leaving", daemon=True)
                self._thread.start()
        self._waiting.put(session)

    def close(self, *, deleting: bool = True) -> None:
        """Wait until all that were given are deleted, or, without deleting, until the one is that is being deleted."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            with suppress(queue.Empty):
                while not deleting:
                    self._waiting.get_nowait()
            self._waiting.put(None)
            thread.join()

    def _run(self) -> None:
        while (session := self._waiting.get()) is not None:
            with suppress(FlideError):
                self._service.delete(session)
