"""What a replay tells as it happens: a run begins, a decision, a run ends; and problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flide_agent.replay.compare import Other
from flide_agent.replay.history import Histories
from flide_agent.replay.moments import AFTER
from flide_agent.replay.records import Problem, Run, Step, Wire


@dataclass(frozen=True, slots=True)
class Decision:
    """The answers at one moment of a step and what they cost. Tokens are the served model's; milliseconds are as the caller saw
    them.

    moment: before, proposed or after. request: number of the request that it was answered by, which may have answered for other
    moments too; the figures are the request's, and `first` marks the decision to count them by. history_tokens: the trunk, P.
    m: where the history left what was computed before. computed_tokens: P - m + all branches. labels: what is known at that
    moment, to compare with. phases: milliseconds in each part of the service. begun: seconds since the replay began. other: what
    the service that it is compared with said.
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
    moment: str = "before"
    request: int = 0
    first: bool = True
    known: bool = False
    """Of an earlier replay, not asked again."""
    questions: str = ""
    """Digest of what was asked at which moment."""
    out_of_scope: dict[str, str] = field(default_factory=dict)
    """Question -> why the model's card does not speak for its answer."""
    histories: Histories | None = None
    """Of the run: where the digest of this history comes from, when it is written."""

    @property
    def messages(self) -> list[Wire]:
        """The history that it was asked about; at `proposed` without the action."""
        return self.step.after() if self.moment == AFTER else self.step.messages

    def record(self) -> dict[str, Any]:
        """One line of the JSONL output; the keys are stable."""
        return {
            "kind": "decision",
            "file": self.run.file,
            "row": self.run.row,
            "run": self.run.name,
            "format": self.run.format,
            "step": self.step.index,
            "moment": self.moment,
            "source": self.step.source,
            "messages": len(self.messages),
            "history": self.histories.of(self.step, self.moment) if self.histories is not None else "",
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
            "prompt_format": self.prompt_format,
            "untrained": self.untrained,
            "out_of_scope": self.out_of_scope,
            "phases": self.phases,
            "labels": self.labels,
            "begun": round(self.begun, 6),
            "request": self.request,
            "questions": self.questions,
            **({"other": self.other.record()} if self.other is not None else {}),
        }


@dataclass(frozen=True, slots=True)
class Started:
    """A run begins; steps: how many of its steps are asked about. decisions: how many there will be, a step has one a moment."""

    run: Run
    steps: int
    decisions: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A run is through, or its rest was given up."""

    run: Run


Event = Started | Decision | Ended | Problem
