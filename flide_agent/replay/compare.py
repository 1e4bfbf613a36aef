"""The same questions to somebody else: another System One server that gets the whole state every time, or our own with nothing
kept."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from flide_agent.errors import FlideError, UnexpectedReply, Unreachable
from flide_agent.replay.moments import Asked
from flide_agent.replay.pack import probabilities
from flide_agent.replay.questions import Questions
from flide_agent.replay.records import Run, Wire
from flide_agent.replies import Answer, Reply

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

    def ask(self, run: Run, asked: Asked, answers: dict[str, Any]) -> Other:
        """What it said, or why it said nothing. Raises Unreachable when nobody is there, or no System One server."""


class Stateless:
    """POST /v1/systemone of a server, the whole history as the state each time.

    That route knows no candidates outside of sessions, so questions at `proposed` go with the action at the end of the state, in
    a request of their own; their answers agree with those on a candidate up to rounding.
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    def ask(self, run: Run, asked: Asked, answers: dict[str, Any]) -> Other:
        begun, replies = time.perf_counter(), []
        try:
            if asked.on_history:
                replies.append(self._one(run, asked.messages, asked.on_history))
            if asked.on_candidate:
                replies.append(self._one(run, [*asked.messages, *asked.candidate], asked.on_candidate))
        except FlideError as e:
            if isinstance(e, Unreachable | UnexpectedReply) or e.status in (401, 403, 404, 405):  # nor will it answer others
                raise Unreachable(f"--compare: {e.message}") from e
            return Other({}, 1000 * (time.perf_counter() - begun), None, False, 0.0, e.message)
        counts = [r.usage.input_tokens - r.usage.x_cached_tokens for r, _ in replies if r.usage.input_tokens is not None]
        computed = sum(counts) if len(counts) == len(replies) else None
        theirs = {name: a for r, _ in replies for name, a in r.answers.items()}
        return _other(theirs, sum(ms for _, ms in replies), computed, answers)

    def _one(self, run: Run, messages: list[Wire], questions: Questions) -> tuple[Reply, float]:
        # Tool schemas are part of what is read; the System One state has no place for them, a session of its own has.
        session = f"compare-{uuid.uuid4().hex[:12]}" if run.tools else None
        given = {"id": session, "tools": run.tools} if session else None
        begun = time.perf_counter()
        reply = self.client.systemone(messages, questions, session=given)
        milliseconds = 1000 * (time.perf_counter() - begun)
        if session:
            self.client.delete(session)
        return reply, milliseconds


class NoCache:
    """Our own service in this process, each time as a tenant of whom nothing is known."""

    def __init__(self, local: LocalService) -> None:
        self.unknown = local.as_tenant("replay-no-cache")
        self._one = threading.Lock()

    def ask(self, run: Run, asked: Asked, answers: dict[str, Any]) -> Other:
        with self._one:  # what is kept of it is deleted before the next, so that no two share anything
            session = uuid.uuid4().hex
            begun = time.perf_counter()
            try:
                reply = self.unknown.decide(
                    session,
                    messages=asked.messages,
                    questions=asked.questions,
                    candidates=asked.candidates,
                    tools=run.tools or None,
                )
                milliseconds = 1000 * (time.perf_counter() - begun)
                self.unknown.delete(session)
                theirs = asked.answers(reply)
            except FlideError as e:
                return Other({}, 1000 * (time.perf_counter() - begun), None, False, 0.0, e.message)
        return _other(theirs, milliseconds, reply.x_session.computed_tokens if reply.x_session else None, answers)


def _other(given: dict[str, Answer], milliseconds: float, computed: int | None, answers: dict[str, Any]) -> Other:
    theirs: dict[str, Any] = msgspec.to_builtins(given)
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
