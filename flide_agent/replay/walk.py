"""From runs to decisions: one session a run, the whole history at each step, the service finds what it has already computed."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from flide_agent.errors import DeadlineExceeded, FlideError, InvalidRequest, NotFound, UnexpectedReply, Unreachable
from flide_agent.replay.compare import Other, Side
from flide_agent.replay.questions import Questions
from flide_agent.replay.records import Problem, Run, Step
from flide_agent.replies import Reply


class Decides(Protocol):
    """What replay needs of a service: `client.Client` and `local.LocalService` both have it."""

    def decide(
        self,
        session: str,
        *,
        questions: Mapping[str, Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> Reply: ...

    def delete(self, session: str) -> None: ...


class Stopped(Exception):
    """The replay cannot go on: no service, or one that refuses the questions (then `questions` is true)."""

    def __init__(self, message: str, questions: bool) -> None:
        super().__init__(message)
        self.questions = questions


@dataclass(frozen=True, slots=True)
class Decision:
    """The answers at one step and what they cost. Tokens are the served model's; milliseconds are as the caller saw them.

    history_tokens: the trunk, P. m: where the history left what was computed before. computed_tokens: P - m + all branches.
    labels: what is known of the step, to compare with. phases: milliseconds in each part of the service. begun: seconds since
    the replay began. other: what the service that it is compared with said.
    """

    run: Run
    step: Step
    session: str
    answers: dict[str, Any]
    history_tokens: int
    m: int
    reused_tokens: int
    computed_tokens: int
    reason: str
    milliseconds: float
    service_milliseconds: float
    model: str
    untrained: bool
    labels: dict[str, Any] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    begun: float = 0.0
    prompt_format: str = ""
    other: Other | None = None

    def record(self) -> dict[str, Any]:
        """One line of the JSONL output; the keys are stable."""
        return {
            "kind": "decision",
            "file": self.run.file,
            "row": self.run.row,
            "run": self.run.name,
            "format": self.run.format,
            "step": self.step.index,
            "moment": "before",
            "source": self.step.source,
            "messages": len(self.step.messages),
            "history_tokens": self.history_tokens,
            "m": self.m,
            "reused_tokens": self.reused_tokens,
            "computed_tokens": self.computed_tokens,
            "reason": self.reason,
            "answers": self.answers,
            "milliseconds": round(self.milliseconds, 3),
            "service_milliseconds": round(self.service_milliseconds, 3),
            "session": self.session,
            "model": self.model,
            "untrained": self.untrained,
            "phases": self.phases,
            "labels": self.labels,
            "begun": round(self.begun, 6),
            **({"other": self.other.record()} if self.other is not None else {}),
        }


@dataclass(frozen=True, slots=True)
class Started:
    """A run begins; steps: how many of its steps are asked about."""

    run: Run
    steps: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A run is through, or its rest was given up."""

    run: Run


Event = Started | Decision | Ended | Problem
Wait = Callable[[Run, Step], None]


@dataclass
class Walk:
    """steps: (first, last) step to ask about, from 1, both included; None asks about all.

    wait: called before each question; paces a replay. side: asks the same elsewhere. warm: every run is walked once
    beforehand, unseen. sessions: the ids that were opened, so that whoever owns the service can delete them. Safe to share
    between threads, a run each.
    """

    service: Decides
    questions: Questions
    steps: tuple[int, int | None] = (1, None)
    prefix: str = field(default_factory=lambda: f"replay-{uuid.uuid4().hex[:12]}")
    sessions: list[str] = field(default_factory=list)
    label: Callable[[Run, Step], dict[str, Any]] = lambda run, step: step.labels
    wait: Wait | None = None
    side: Side | None = None
    warm: bool = False
    window: int | None = 64
    """Sessions of finished runs that the service keeps, so that later runs start from what they share; None keeps all."""
    start: float = field(default_factory=time.perf_counter)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _finished: deque[str] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def over(self, found: Iterable[Run | Problem]) -> Iterator[Event]:
        """Every run step by step. A step that is refused ends its run with a Problem; the others go on. Raises Stopped."""
        for item in found:
            if isinstance(item, Problem):
                yield item
            else:
                yield from self.one(item)

    def one(self, run: Run) -> Iterator[Event]:
        """One run. Raises Stopped."""
        first, last = self.steps
        steps = [s for s in run.steps if s.index >= first and (last is None or s.index <= last)]
        yield Started(run, len(steps))
        if steps and self.warm:
            for _ in self._through(run, steps, None):
                pass
        if steps:
            yield from self._through(run, steps, self.wait)
        yield Ended(run)

    def _through(self, run: Run, steps: list[Step], wait: Wait | None) -> Iterator[Event]:
        session = f"{self.prefix}-{next(self._numbers)}"
        self.sessions.append(session)
        for step in steps:
            if wait is not None:
                wait(run, step)
            try:
                yield self._decide(run, step, session)
            except FlideError as e:
                if _hopeless(e):
                    raise Stopped(e.message, isinstance(e, InvalidRequest)) from e
                rest = f"; its {steps[-1].index - step.index} further steps are left out" if step is not steps[-1] else ""
                yield Problem(run.file, f"step {step.index} was refused: {e.message}{rest}", run.row)
                break
        with self._lock:
            self._finished.append(session)
            old = self._finished.popleft() if self.window is not None and len(self._finished) > self.window else None
            if old is not None:
                self.sessions.remove(old)
        if old is not None:
            with suppress(NotFound):  # as in `forget`
                self.service.delete(old)

    def _decide(self, run: Run, step: Step, session: str) -> Decision:
        begun = time.perf_counter()
        reply = self.service.decide(session, messages=step.messages, questions=self.questions, tools=run.tools or None)
        milliseconds = 1000 * (time.perf_counter() - begun)
        done = reply.x_session
        if done is None:
            raise UnexpectedReply("the reply has no x_session: is this a flide-agent server?")
        answers = msgspec.to_builtins(reply.answers)
        return Decision(
            run=run,
            step=step,
            session=session,
            answers=answers,
            history_tokens=done.history_tokens,
            m=done.m,
            reused_tokens=done.reused_tokens,
            computed_tokens=done.computed_tokens,
            reason=done.reason,
            milliseconds=milliseconds,
            service_milliseconds=done.latency.total,
            model=reply.model,
            untrained=reply.x_untrained,
            labels=self.label(run, step),
            phases=msgspec.to_builtins(done.latency),
            begun=begun - self.start,
            prompt_format=reply.x_prompt_format,
            other=self.side.ask(run, step, self.questions, answers) if self.side is not None else None,
        )

    def forget(self) -> None:
        """Delete the sessions that this walk opened. Raises FlideError."""
        while self.sessions:
            with suppress(NotFound):  # a session whose first step was refused was never opened
                self.service.delete(self.sessions.pop())


def _hopeless(error: FlideError) -> bool:
    """Whether no other step can do better: nobody answers, or the questions themselves are refused."""
    if isinstance(error, InvalidRequest):
        return any("questions" in d.get("loc", ()) for d in error.details)
    return isinstance(error, (Unreachable, DeadlineExceeded, UnexpectedReply)) or error.status in (401, 403, 404, 405)
