"""What other threads have finished, brought to an event loop: many at a time, since each call into a loop wakes it."""

from __future__ import annotations

import asyncio
from collections import deque


class Arrivals:
    """Futures of one loop, settled with None."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._came: deque[asyncio.Future[None]] = deque()
        self._told = False

    def add(self, future: asyncio.Future[None]) -> None:
        """Settle it soon. From any thread; without effect once the loop is closed."""
        self._came.append(future)
        if not self._told and not self.loop.is_closed():
            self._told = True
            self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._told = False  # before the look: who comes after it calls again
        while self._came:
            future = self._came.popleft()
            if not future.done():
                future.set_result(None)
