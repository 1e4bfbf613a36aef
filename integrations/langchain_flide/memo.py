"""Verdicts that cannot be written to a graph's state: kept in the process, asked for once.

A tool's task cannot write state before it ends, yet parallel calls must share one dispatch and a resumed call must find the verdict that
it was interrupted with. Keys name thread, message and call, so runs do not mix. Bounded; a forgotten verdict is asked for again, and the
same history gives the same answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Memo(Generic[T]):
    """Values by key; of several that ask for one at a time, the first makes it. Thread-safe, also across event loops."""

    def __init__(self, size: int = 1024) -> None:
        self.size = size
        self._kept: OrderedDict[Hashable, Future[T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        future, mine = self._claim(key)
        if not mine:
            return future.result()
        try:
            future.set_result(make())
        except BaseException as e:
            self._drop(key, future, e)
            raise
        return future.result()

    async def aget(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        future, mine = self._claim(key)
        if not mine:
            return await asyncio.wrap_future(future)
        try:
            future.set_result(await make())
        except BaseException as e:
            self._drop(key, future, e)
            raise
        return future.result()

    def _claim(self, key: Hashable) -> tuple[Future[T], bool]:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key], False
            future: Future[T] = Future()
            self._kept[key] = future
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)
            return future, True

    def _drop(self, key: Hashable, future: Future[T], error: BaseException) -> None:
        with self._lock:
            if self._kept.get(key) is future:
                del self._kept[key]
        # Whoever waits has to ask again; a cancellation is not theirs.
        future.set_exception(error if isinstance(error, Exception) else RuntimeError("the decision was cancelled"))
