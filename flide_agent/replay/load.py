"""Several agents at once, and their pace."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flide_agent.replay.decision import Event
from flide_agent.replay.records import Problem, Run, Step
from flide_agent.replay.walk import Stopped, Walk

RECORDED = "recorded"
LONGEST_PAUSE = 600.0
"""Seconds between two recorded steps that are waited for; an agent that a person left waiting overnight is not."""


@dataclass(frozen=True, slots=True)
class Rate:
    """per_second: decisions of all agents together. recorded: each agent at the recorded times, this many times as fast."""

    per_second: float | None = None
    recorded: float | None = None

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Of "5", "0.5", "recorded" or "recorded*10". Raises ValueError."""
        try:
            if text.startswith(RECORDED):
                factor = text.removeprefix(RECORDED)
                value = float(factor.removeprefix("*")) if factor.startswith("*") else float("nan") if factor else 1.0
                if 0 < value < 1e9:
                    return cls(recorded=value)
            elif 0 < float(text) < 1e9:
                return cls(per_second=float(text))
        except ValueError:
            pass
        raise ValueError(f"{text!r} is no rate; write 5 (decisions a second), recorded or recorded*10")


class Pace:
    """Lets decisions begin when their time has come; `late` is how far behind the schedule the last one was, in seconds. timed: whether
    a step had a recorded time."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.late = 0.0
        self.timed = False
        self._lock = threading.Lock()
        self._next = 0.0
        self._last: dict[int, tuple[float, float]] = {}

    def __call__(self, run: Run, step: Step) -> None:
        now = time.perf_counter()
        if self.rate.per_second is not None:
            with self._lock:
                due = max(self._next, now - 1.0) if self._next else now  # after a standstill it does not rush by more than 1 s
                self._next = due + 1.0 / self.rate.per_second
        elif self.rate.recorded is not None and step.at is not None:
            self.timed = True
            before = self._last.get(id(run))
            due = now if before is None else before[0] + min(max(step.at - before[1], 0.0), LONGEST_PAUSE) / self.rate.recorded
            self._last[id(run)] = (due, step.at)
        else:
            due = now
        self.late = max(now - due, 0.0)
        if due > now:
            time.sleep(due - now)


def over(walk: Walk, found: Iterable[Run | Problem], agents: int) -> Iterator[Event]:
    """The events of `agents` runs at a time, as they happen. Raises Stopped, and what reading raises.

    The files are read by the agents as they need runs, so no more than one run each is in memory.
    """
    if agents == 1:
        yield from walk.over(found)
        return
    events: queue.Queue[Event | BaseException | None] = queue.Queue(maxsize=4 * agents)
    source, lock, stop = iter(found), threading.Lock(), threading.Event()

    def put(event: Event | BaseException | None) -> None:
        while not stop.is_set():
            try:
                events.put(event, timeout=0.2)
                return
            except queue.Full:
                continue

    def agent() -> None:
        try:
            while not stop.is_set():
                with lock:
                    item = next(source, None)
                if item is None:
                    return
                if isinstance(item, Problem):
                    put(item)
                    continue
                for event in walk.one(item):
                    put(event)
                    if stop.is_set():
                        return
        except BaseException as e:  # handed to the one who reads the events
            put(e)
        finally:
            put(None)

    threads = [threading.Thread(target=agent, name=f"agent-{i}", daemon=True) for i in range(agents)]
    for thread in threads:
        thread.start()
    left = agents
    try:
        while left:
            event = events.get()
            if event is None:
                left -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                yield event
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60.0)


__all__ = ["Pace", "Rate", "Stopped", "over"]
