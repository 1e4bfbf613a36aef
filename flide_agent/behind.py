"""What is done behind answers: checkpoints of requests outside sessions go to the store."""

from __future__ import annotations

import asyncio
import logging
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

LATEST = 0.005
"""Seconds after an answer. Those who send it say when it has left; this is for those who do not."""
FEW = 4
"""Answers whose checkpoints the event loop publishes itself then: waking a thread takes about as long as two of them."""


class Behind:
    """A state seen once stays on the device; one that came back is written to the disk.

    It is done between an answer and the next request, where it holds up neither: a thread that did it meanwhile would take the
    interpreter from the one that plans a pass, which costs that one more than the work takes. `replied` and `settle` belong to one event
    loop, as does `publish` where there is one; `catch_up` is for every thread.
    """

    def __init__(self, store: CheckpointStore, threads: Executor) -> None:
        self._store, self._threads = store, threads
        self._waiting: deque[tuple[Waits, Mapping[int, Checkpoint]]] = deque()
        self._running: Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, answered: Waits, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Soon; at once for a thread that asks without an event loop. checkpoints: by position, one reference each, which this takes
        over."""
        if not checkpoints and not answered.m:
            return
        self._waiting.append((answered, checkpoints))
        if asyncio._get_running_loop() is None:
            self.catch_up()
        elif self._timer is None:
            self._wait()

    def replied(self) -> None:
        """An answer has been handed to its connection, which sends it before anything else."""
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)

    def catch_up(self) -> None:
        """Publish what waits, in this thread: before somebody looks for what was answered last."""
        while self._waiting:
            try:
                answered, checkpoints = self._waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self._publish(answered, checkpoints)
            except Exception as error:
                log.error("publishing a checkpoint failed", exc_info=error)

    async def settle(self) -> None:
        """Wait until nothing waits."""
        self._stop_timer()
        if self._running is not None:
            await asyncio.wrap_future(self._running)
        self.catch_up()

    def _begin(self) -> None:
        self._stop_timer()
        if len(self._waiting) <= FEW:
            self.catch_up()
        elif self._running is None or self._running.done():
            self._running = self._threads.submit(self.catch_up)
        else:
            self._wait()  # that thread may have seen the last already

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LATEST, self._begin)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _publish(self, answered: Waits, checkpoints: Mapping[int, Checkpoint]) -> None:
        if answered.m:
            self._store.resumed(answered.share_key, answered.tokens, answered.m, None)
        for checkpoint in checkpoints.values():
            self._store.publish(answered.share_key, answered.tokens, checkpoint, None, Kind.INNER)
