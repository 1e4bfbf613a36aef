"""From runs to decisions: one session a run, a history at each step, the service finds what it has already computed."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from flide_agent.errors import DeadlineExceeded, FlideError, InvalidRequest, NotFound, UnexpectedReply, Unreachable
from flide_agent.replay.compare import Side
from flide_agent.replay.decision import Decision, Ended, Event, Started
from flide_agent.replay.heard import Ear
from flide_agent.replay.history import Histories
from flide_agent.replay.leaving import Leaving
from flide_agent.replay.moments import AFTER, Asked, Plan
from flide_agent.replay.questions import Questions
from flide_agent.replay.records import Problem, Run, Step
from flide_agent.replay.tail import Tail
from flide_agent.replies import Reply

if TYPE_CHECKING:
    from flide_agent.client import Client


class Decides(Protocol):
    """What replay needs of a service: `client.Client` and `local.LocalService` both have it."""

    def decide(
        self,
        session: str,
        *,
        questions: Mapping[str, Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]] | None = None,
        candidates: Mapping[str, Any] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> Reply: ...

    def delete(self, session: str) -> None: ...


class Past(Protocol):
    """Decisions of an earlier replay. requests: the highest number of a request in it. seconds: how long it had run."""

    requests: int
    seconds: float

    def take(self, run: Run, step: Step, moment: str, histories: Histories) -> Decision | None:
        """The decision, where it is known; given once. Raises Stopped when it is not about this step as it is now."""


class Stopped(Exception):
    """The replay cannot go on: no service, or one that refuses the questions (then `questions` is true)."""

    def __init__(self, message: str, questions: bool) -> None:
        super().__init__(message)
        self.questions = questions


Wait = Callable[[Run, Step], None]
WINDOW = 32
"""Finished runs whose sessions stay: what runs have in common, such as a system prompt, is in each of them."""


@dataclass
class Walk:
    """steps: (first, last) step to ask about, from 1, both included; None asks about all. every: of those each n-th, from the
    first on. moments: of a question, "before" where it is not named. needing: those that are not asked before the agent's first
    message.

    wait: called before each question; paces a replay. side: asks the same elsewhere. warm: every run is walked once
    beforehand, unseen. sessions: the ids that were opened, so that whoever owns the service can delete them. Safe to share
    between threads, a run each.
    """

    service: Decides
    questions: Questions
    steps: tuple[int, int | None] = (1, None)
    every: int = 1
    moments: Mapping[str, str] = field(default_factory=dict)
    needing: Collection[str] = ()
    prefix: str = field(default_factory=lambda: f"replay-{uuid.uuid4().hex[:12]}")
    sessions: list[str] = field(default_factory=list)
    label: Callable[[Run, Step, str], dict[str, Any]] = lambda run, step, moment: labels_at(step, moment)
    wait: Wait | None = None
    side: Side | None = None
    warm: bool = False
    window: int | None = WINDOW
    """Sessions of finished runs that the service keeps, so that later runs start from what they share; None keeps all."""
    start: float = field(default_factory=time.perf_counter)
    past: Past | None = None
    """What an earlier replay was answered; it is not asked again."""
    inside: bool = False
    """The service is in this process: messages need not be read anew at each step."""
    served: bool = False
    """The service is a `client.Client`: messages that the server has need not be sent anew at each step."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _requests: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    plan: Plan = field(init=False)
    _leaving: Leaving = field(init=False)
    _finished: deque[str] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.plan = Plan(self.questions, self.moments, self.needing)
        self._leaving = Leaving(self.service)
        if self.past is not None:
            self._requests = itertools.count(self.past.requests + 1)
            self.start -= self.past.seconds

    def over(self, found: Iterable[Run | Problem]) -> Iterator[Event]:
        """Every run step by step. A step that is refused ends its run with a Problem; the others go on. Raises Stopped."""
        for item in found:
            if isinstance(item, Problem):
                yield item
            else:
                yield from self.one(item)

    def one(self, run: Run) -> Iterator[Event]:
        """One run. Raises Stopped."""
        chosen = selected(run.steps, self.steps, self.every)
        todo: list[tuple[list[Decision], Asked | None]] = []
        histories = Histories(run)
        for messages, parts in self.plan.parts(chosen):
            known = [(p, self.past.take(run, *p, histories) if self.past is not None else None) for p in parts]
            left = [p for p, decision in known if decision is None]
            done = [replace(d, labels=self.label(run, *part)) for part, d in known if d is not None]
            todo.append((done, self.plan.asked(messages, left) if left else None))
        yield Started(run, len(chosen), sum(len(done) + (len(asked.parts) if asked else 0) for done, asked in todo))
        if self.warm:
            for _ in self._through(run, [([], asked) for _, asked in todo], None, histories):
                pass
        yield from self._through(run, todo, self.wait, histories)
        yield Ended(run)

    def _through(
        self, run: Run, todo: list[tuple[list[Decision], Asked | None]], wait: Wait | None, histories: Histories
    ) -> Iterator[Event]:
        session, ear, tail = "", Ear() if self.inside else None, Tail() if self.served else None
        for done, asked in todo:
            yield from done
            if asked is None:
                continue
            if not session:
                session = f"{self.prefix}-{next(self._numbers)}"
                self.sessions.append(session)
            if wait is not None:
                wait(run, asked.step)
            try:
                yield from self._decide(run, asked, session, ear, tail, histories)
            except FlideError as e:
                if _hopeless(e):
                    raise Stopped(e.message, isinstance(e, InvalidRequest)) from e
                at = asked.step.index
                left = len({s.index for _, a in todo if a is not None for s, _ in a.parts if s.index > at})
                rest = f"; its {left} further steps are left out" if left else ""
                yield Problem(run.file, f"step {at} was refused: {e.message}{rest}", run.row)
                break
        if session:
            self._finish(session)

    def _finish(self, session: str) -> None:
        with self._lock:
            self._finished.append(session)
            old = self._finished.popleft() if self.window is not None and len(self._finished) > self.window else None
            if old is not None:
                self.sessions.remove(old)
        if old is not None:
            self._leaving.put(old)

    def _decide(
        self, run: Run, asked: Asked, session: str, ear: Ear | None, tail: Tail | None, histories: Histories
    ) -> list[Decision]:
        begun = time.perf_counter()
        # No candidates, no keyword: any service of System One's shape will do then.
        more: dict[str, Any] = {"candidates": asked.candidates} if asked.candidates else {}
        more["tools"] = run.tools or None
        if tail is not None:
            reply = tail.decide(cast("Client", self.service), session, asked.messages, asked.questions, **more)
        else:
            messages = asked.messages if ear is None else ear.hear(asked.messages)
            reply = self.service.decide(session, messages=messages, questions=asked.questions, **more)
        milliseconds = 1000 * (time.perf_counter() - begun)
        done = reply.x_session
        if done is None:
            raise UnexpectedReply("the reply has no x_session: is this a flide-agent server?")
        answers: dict[str, Any] = msgspec.to_builtins(asked.answers(reply))
        other = self.side.ask(run, asked, answers) if self.side is not None else None
        number, phases = next(self._requests), msgspec.to_builtins(done.latency)
        return [
            Decision(
                run=run,
                step=step,
                session=session,
                answers={name: answers[name] for name in self.plan.at[moment] if name in answers},
                history_tokens=done.history_tokens,
                m=done.m,
                reused_tokens=done.reused_tokens,
                computed_tokens=done.computed_tokens,
                reason=done.reason,
                milliseconds=milliseconds,
                service_milliseconds=done.latency.total,
                model=reply.model,
                untrained=reply.x_untrained,
                labels=self.label(run, step, moment),
                phases=phases,
                begun=begun - self.start,
                prompt_format=reply.x_prompt_format,
                other=other,
                moment=moment,
                request=number,
                first=i == 0,
                questions=self.plan.digest,
                out_of_scope={n: why for n, why in reply.x_out_of_scope.items() if n in self.plan.at[moment]},
                histories=histories,
            )
            for i, (step, moment) in enumerate(asked.parts)
        ]

    def leave(self) -> None:
        """Touch the service no more; what is in it stays."""
        self._leaving.close(deleting=False)

    def forget(self) -> None:
        """Delete the sessions that this walk opened. Raises FlideError."""
        self._leaving.close()
        while self.sessions:
            with suppress(NotFound):  # a session whose first step was refused was never opened
                self.service.delete(self.sessions.pop())


def selected(steps: list[Step], between: tuple[int, int | None], every: int) -> list[Step]:
    """The steps that are asked about: from the first to the last (None: to the end), each n-th from the first on."""
    first, last = between
    return [s for s in steps if s.index >= first and (last is None or s.index <= last) and (s.index - first) % every == 0]


def labels_at(step: Step, moment: str) -> dict[str, Any]:
    """What the file knows of a step at a moment."""
    return step.then if moment == AFTER else step.labels


def _hopeless(error: FlideError) -> bool:
    """Whether no other step can do better: nobody answers, or the questions themselves are refused, or any candidate."""
    if isinstance(error, InvalidRequest):
        places = [d.get("loc", ()) for d in error.details]
        return any("questions" in loc or list(loc) == ["body", "x_candidates"] for loc in places)
    return isinstance(error, (Unreachable, DeadlineExceeded, UnexpectedReply)) or error.status in (401, 403, 404, 405)
