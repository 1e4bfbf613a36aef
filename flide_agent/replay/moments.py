"""The three moments of a step, and which questions of a run go together in one request.

before: the agent has not spoken yet. proposed: its message is there and not carried out. after: its result is there.

A step's `before` and `proposed` are one request: the same history, with the agent's message as a candidate on it.

`after` of one step and `before` of the next are questions about the same history wherever a history only grows: what a step saw,
its action and what came back is what the next one sees. Then both are one request as well, and labels are those of the next step.
It is not so where the history was rewritten in between (elided observations, a condensation, a summary, a removed message), where
the next step is not asked about (`--steps`, `--every`), or after the last one: there `after` is a request of its own, on the
history that the step saw with its action and result. Histories are compared, not assumed.

A question that needs an action, such as which tool was used last, is not asked about a history in which the agent has not spoken
yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flide_agent.errors import UnexpectedReply
from flide_agent.replay.questions import Questions
from flide_agent.replay.records import Step, Wire
from flide_agent.replies import Answer, Reply

BEFORE, PROPOSED, AFTER = "before", "proposed", "after"
MOMENTS = (BEFORE, PROPOSED, AFTER)
CANDIDATE = "action"
"""The name of the agent's message among the candidates."""

Part = tuple[Step, str]
"""A moment of a step: one decision."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. messages: the history. on_history: questions about it. candidate: the agent's message, for the questions
    `on_candidate`. parts: what it decides, in order, at least one."""

    messages: list[Wire]
    on_history: Questions
    candidate: list[Wire]
    on_candidate: Questions
    parts: tuple[Part, ...]

    @property
    def step(self) -> Step:
        """Whose turn it is."""
        return self.parts[-1][0]

    @property
    def questions(self) -> Questions:
        return self.on_history | self.on_candidate

    @property
    def candidates(self) -> dict[str, Any] | None:
        """As they are sent."""
        return {CANDIDATE: {"messages": self.candidate}} if self.on_candidate else None

    def answers(self, reply: Reply) -> dict[str, Answer]:
        """What was asked for. The service answers all questions on the history and on the candidate; the others are left.

        Raises UnexpectedReply.
        """
        found = {name: a for name, a in reply.answers.items() if name in self.on_history}
        if self.on_candidate:
            given = (reply.x_candidates or {}).get(CANDIDATE)
            if given is None:
                raise UnexpectedReply("the reply has no answers about the action: is this a flide-agent server?")
            found |= {name: a for name, a in given.answers.items() if name in self.on_candidate}
        return found


class Plan:
    """at: the questions of each moment. digest: of all of it.

    moments: of a question, BEFORE where it is not named. needing: those that need an action.
    """

    def __init__(self, questions: Questions, moments: Mapping[str, str], needing: Collection[str] = ()) -> None:
        self.needing = frozenset(needing)
        self.at: dict[str, Questions] = {
            m: {name: q for name, q in questions.items() if moments.get(name, BEFORE) == m} for m in MOMENTS
        }
        self.digest = hashlib.sha256(json.dumps(self.at).encode()).hexdigest()[:16]

    def of(self, step: Step, moment: str) -> Questions:
        """What is asked at a moment of a step."""
        if not self.needing or moment == AFTER or acted(step.messages):
            return self.at[moment]
        return {name: q for name, q in self.at[moment].items() if name not in self.needing}

    def parts(self, steps: list[Step]) -> Iterator[tuple[list[Wire], list[Part]]]:
        """The histories to ask about, in order, each with what it decides. A step without a recorded result has no `after`."""
        waiting: Step | None = None
        for step in steps:
            parts = [(step, m) for m in (BEFORE, PROPOSED) if self.of(step, m) and (m == BEFORE or step.proposed)]
            if waiting is not None:
                if parts and waiting.after() == step.messages:
                    parts = [(waiting, AFTER), *parts]
                else:
                    yield waiting.after(), [(waiting, AFTER)]
            if parts:
                yield step.messages, parts
            waiting = step if self.at[AFTER] and step.result else None
        if waiting is not None:
            yield waiting.after(), [(waiting, AFTER)]

    def asked(self, messages: list[Wire], parts: list[Part]) -> Asked:
        """The request that decides these parts."""
        history: Questions = {}
        for step, moment in parts:
            if moment != PROPOSED:
                history = history | self.of(step, moment)
        step, last = parts[-1]
        candidate = step.proposed if last == PROPOSED else []
        return Asked(messages, history, candidate, self.of(step, PROPOSED) if candidate else {}, tuple(parts))


def acted(messages: list[Wire]) -> bool:
    """Whether the agent has spoken, or a tool has answered. Text alone does not tell a command from talk."""
    return any(m["role"] in ("assistant", "tool") for m in messages)
