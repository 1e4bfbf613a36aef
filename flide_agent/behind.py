"""What is done behind answers: checkpoints of requests outside sessions go to the store."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING

from flide_agent.store.report import Kind

if TYPE_CHECKING:
    from flide_engine.memory import Checkpoint

    from flide_agent.store import CheckpointStore
    from flide_agent.waiting import Waits

log = logging.getLogger("flide_agent.decide")


class Behind:
    """A state seen once stays on the device; one that came back is written to the disk. Thread-safe.

    What comes while a thread publishes is done by that thread: handing on costs more than publishing.
    """

    def __init__(self, store: CheckpointStore, threads: Executor) -> None:
        self._store, self._threads = store, threads
        self._waiting: deque[tuple[Waits, Mapping[int, Checkpoint]]] = deque()
        self._running: set[Future[None]] = set()
        self._lock = threading.Lock()

    def publish(self, answered: Waits, checkpoints: Mapping[int, Checkpoint]) -> None:
        """checkpoints: by position, one reference each, which this takes over."""
        if not checkpoints and not answered.m:
            return
        with self._lock:
            self._waiting.append((answered, checkpoints))
            if len(self._waiting) > 1:
                return
            future = self._threads.submit(self._work)
            self._running.add(future)
        future.add_done_callback(self._ended)

    async def settle(self) -> None:
        """Wait until nothing waits."""
        while self._running:
            await asyncio.gather(*map(asyncio.wrap_future, list(self._running)), return_exceptions=True)

    def _work(self) -> None:
        while True:
            answered, checkpoints = self._waiting[0]
            try:
                self._publish(answered, checkpoints)
            except Exception as error:
                log.error("publishing a checkpoint failed", exc_info=error)
            with self._lock:
                self._waiting.popleft()
                if not self._waiting:
                    return

    def _publish(self, answered: Waits, checkpoints: Mapping[int, Checkpoint]) -> None:
        if answered.m:
            self._store.resumed(answered.share_key, answered.tokens, answered.m, None)
        for checkpoint in checkpoints.values():
            self._store.publish(answered.share_key, answered.tokens, checkpoint, None, Kind.INNER)

    def _ended(self, future: Future[None]) -> None:
        with self._lock:
            self._running.discard(future)
