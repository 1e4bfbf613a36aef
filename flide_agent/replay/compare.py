"""The same questions to somebody else: another System One server that gets the whole state every time, or our own with nothing
kept."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from flide_agent.errors import FlideError
from flide_agent.replay.pack import probabilities
from flide_agent.replay.questions import Questions
from flide_agent.replay.records import Run, Step
from flide_agent.replies import Reply

if TYPE_CHECKING:
    from flide_agent.client import Client
    from flide_agent.local import LocalService

NO_CACHE = "no-cache"


@dataclass(frozen=True, slots=True)
class Other:
    """What the other side said to one decision. same: every answer equal to the last bit. apart: largest difference of a
    probability. computed_tokens: what it computed, where it tells. error: why it did not answer; then the rest means nothing."""

    answers: dict[str, Any]
    milliseconds: float
    computed_tokens: int | None
    same: bool
    apart: float
    error: str = ""

    def record(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "milliseconds": round(self.milliseconds, 3),
            "computed_tokens": self.computed_tokens,
            "same": self.same,
            "apart": self.apart,
            "error": self.error,
        }


class Side(Protocol):
    """Who is asked beside."""

    def ask(self, run: Run, step: Step, questions: Questions, answers: dict[str, Any]) -> Other: ...


class Stateless:
    """POST /v1/systemone of a server, the whole history as the state each time."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def ask(self, run: Run, step: Step, questions: Questions, answers: dict[str, Any]) -> Other:
        # Tool schemas are part of what is read; the System One state has no place for them, a session of its own has.
        session = f"compare-{uuid.uuid4().hex[:12]}" if run.tools else None
        given = {"id": session, "tools": run.tools} if session else None
        begun = time.perf_counter()
        try:
            reply = self.client.systemone(step.messages, questions, session=given)
            milliseconds = 1000 * (time.perf_counter() - begun)
            if session:
                self.client.delete(session)
        except FlideError as e:
            return Other({}, 1000 * (time.perf_counter() - begun), None, False, 0.0, e.message)
        tokens = reply.usage.input_tokens
        computed = None if tokens is None else tokens - reply.usage.x_cached_tokens
        return _other(reply, milliseconds, computed, answers)


class NoCache:
    """Our own service in this process, each time as a tenant of whom nothing is known."""

    def __init__(self, local: LocalService) -> None:
        self.unknown = local.as_tenant("replay-no-cache")
        self._one = threading.Lock()

    def ask(self, run: Run, step: Step, questions: Questions, answers: dict[str, Any]) -> Other:
        with self._one:  # what is kept of it is deleted before the next, so that no two share anything
            session = uuid.uuid4().hex
            begun = time.perf_counter()
            try:
                reply = self.unknown.decide(session, messages=step.messages, questions=questions, tools=run.tools or None)
                milliseconds = 1000 * (time.perf_counter() - begun)
                self.unknown.delete(session)
            except FlideError as e:
                return Other({}, 1000 * (time.perf_counter() - begun), None, False, 0.0, e.message)
        return _other(reply, milliseconds, reply.x_session.computed_tokens if reply.x_session else None, answers)


def _other(reply: Reply, milliseconds: float, computed: int | None, answers: dict[str, Any]) -> Other:
    theirs: dict[str, Any] = msgspec.to_builtins(reply.answers)
    return Other(theirs, milliseconds, computed, theirs == answers, apart(answers, theirs))


def apart(one: dict[str, Any], two: dict[str, Any]) -> float:
    """Largest difference between two sets of answers in the probability of an option; 1 where one lacks a question or option."""
    if set(one) != set(two):
        return 1.0
    worst = 0.0
    for name, answer in one.items():
        if answer["type"] != two[name]["type"]:
            return 1.0
        p, q = probabilities(answer), probabilities(two[name])
        worst = max([worst, *(abs(p.get(k, -1.0) - q.get(k, -1.0)) for k in set(p) | set(q))])
    return min(worst, 1.0)
