"""Decisions for threads of this process: the thread that asks reads, waits for the engine and finishes, without an event loop between.

The loop hands a step on eight times; here it is the engine's thread and back.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from flide_agent.asks import Ask
from flide_agent.decide import Decider, Decision
from flide_agent.decision import Times
from flide_agent.line import Admission

T = TypeVar("T")


class Direct(Decider):
    """A Decider that threads without an event loop may ask as well.

    `decide_here` is for one step of a session at a time, also beside what the event loop does with it: the caller sees to that.
    """

    def decide_here(self, tenant: str, ask: Ask) -> Decision:
        """`decide` in the calling thread, which waits. Raises FlideError."""
        return _at_once(self.decide(tenant, ask))

    async def _decide(self, tenant: str, ask: Ask, admission: Admission | None) -> Decision:
        if asyncio._get_running_loop() is not None:
            return await super()._decide(tenant, ask, admission)
        times = Times(ask.arrived)
        ready = self._prepare(tenant, ask, admission, times)
        try:
            done = ready.place.result()
        finally:
            ready.release()
        times.mark("engine")
        times.parts["queue"] = 1e3 * done.queued
        times.parts["engine"] -= times.parts["queue"]
        return self._finish(tenant, ready, done, times)


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("it waits for something that only an event loop brings")


class Turns:
    """Who comes one after the other: by key, the next once the last is through. Thread-safe."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], threading.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def of(self, key: tuple[str, str]) -> threading.Lock:
        """The lock to hold; it is forgotten when nobody does."""
        with self._lock:
            lock = self._locks.get(key)
            if lock is None:
                lock = self._locks[key] = threading.Lock()
            return lock


class Hand:
    """A thread that works for the main thread, which alone is interrupted by signals: nothing is left half done then."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hand", daemon=True)
        self._closed = False

    def start(self) -> None:
        self._thread.start()

    def __call__(self, work: Callable[[], T]) -> T:
        """What `work` gives; it is done by the calling thread itself unless that is the main one. Raises RuntimeError once closed."""
        if threading.current_thread() is not threading.main_thread():
            return work()
        if self._closed:
            raise RuntimeError("the service is closed")
        future: Future[T] = Future()
        self._jobs.put((work, future))
        return future.result()

    def close(self, seconds: float) -> None:
        """End it once what it was given is done, or after so long."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, future = job
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del job, work, future  # not until the next job comes
