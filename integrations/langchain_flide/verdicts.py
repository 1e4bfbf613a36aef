"""From answers to a verdict on one tool call. Pure: the same answers give the same verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.decisions import Answer, Choice, ChoiceAnswer, NoulAnswer, Question, ScoreAnswer

from langchain_flide.errors import FlideQuestionError
from langchain_flide.history import arguments
from langchain_flide.questions import certainty, shown

Action = Literal["allow", "review", "block"]
ACTIONS: tuple[Action, ...] = ("allow", "review", "block")
"""From lenient to strict."""

Status = Literal["ok", "abstain", "blocked", "review", "unavailable", "timeout", "overloaded", "invalid", "overflow", "shadow"]
"""Closed set, fit for metric labels. unavailable and after it: no answer, the fail policy decided (shadow: nothing is enforced)."""

Threshold = float | Mapping[str, float]
"""Noul: probability of yes; score: expected level; choice: probability by label."""

Thresholds = Threshold | Mapping[str, Threshold]
"""One for all questions, or by question id."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be done with one call. reason: the question, rule or risk that decided. p, before: answers with and without the call."""

    action: Action
    status: Status
    reason: str = ""
    p: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)

    def as_state(self) -> dict[str, Any]:
        """JSON-able, for checkpointers."""
        return {
            "action": self.action,
            "status": self.status,
            "reason": self.reason,
            "p": dict(self.p),
            "before": dict(self.before),
        }

    @classmethod
    def from_state(cls, data: Any) -> Verdict | None:
        """None for what is no verdict, such as the state of another version: the call is then judged anew."""
        if not isinstance(data, Mapping) or data.get("action") not in ACTIONS:
            return None
        return cls(data["action"], data.get("status", "ok"), data.get("reason", ""), dict(data.get("p", {})))

    @property
    def answered(self) -> bool:
        """False when there was no answer, so that a fail policy decided."""
        return self.status in ("ok", "abstain", "blocked", "review")


def stricter(a: Verdict, b: Verdict) -> Verdict:
    """The stricter of two; the first when they are equal."""
    return b if ACTIONS.index(b.action) > ACTIONS.index(a.action) else a


def call_key(call: Mapping[str, Any], history: str = "") -> str:
    """Names a call by its id, what it does and, with `history.digest_of`, what came before it.

    After an edit by a person the id stays, and the key changes.
    """
    said = f"{history}\n{call['name']}\n{arguments(call['args'])}"
    return f"{call.get('id')}:{hashlib.sha256(said.encode('utf-8', 'replace')).hexdigest()[:32]}"


def check_threshold(at: str, question: Question, threshold: Threshold) -> None:
    """Raises FlideQuestionError for a threshold that could never be reached or does not fit its question."""
    if isinstance(question, Choice):
        if not isinstance(threshold, Mapping):
            raise FlideQuestionError(
                f"{at}: a choice needs a threshold by label, such as {{{next(iter(question.criteria))!r}: 0.8}}"
            )
        for label, least in threshold.items():
            if label not in question.criteria:
                raise FlideQuestionError(f"{at}.{label}: no label of the choice")
            _within(f"{at}.{label}", least, 1.0)
        return
    if isinstance(threshold, Mapping):
        raise FlideQuestionError(f"{at}: a {question.type} takes one number")
    _within(at, threshold, 1.0 if question.type == "noul" else float(len(getattr(question, "criteria", ())) - 1))


def _within(at: str, least: float, top: float) -> None:
    if not 0 <= least <= top:
        raise FlideQuestionError(f"{at}: must be from 0 to {top:g}, not {least}")


def threshold_for(thresholds: Thresholds | None, questions: Mapping[str, Question], key: str) -> Threshold | None:
    """The threshold of one question."""
    if thresholds is None or isinstance(thresholds, float | int):
        return thresholds
    if set(thresholds) & set(questions):
        return thresholds.get(key)
    return thresholds  # type: ignore[return-value]


def reached(answer: Answer, threshold: Threshold | None) -> bool:
    if threshold is None:
        return False
    if isinstance(answer, ChoiceAnswer) and isinstance(threshold, Mapping):
        return any(answer.probabilities.get(label, 0.0) >= least for label, least in threshold.items())
    if isinstance(answer, NoulAnswer) and isinstance(threshold, float | int):
        return answer.noul >= threshold
    if isinstance(answer, ScoreAnswer) and isinstance(threshold, float | int):
        return answer.score >= threshold
    raise FlideQuestionError(f"a {answer.type} answer does not fit its threshold")


def measure(answer: Answer) -> float:
    """One number for records: p of yes, the expected level, or the top label's probability."""
    if isinstance(answer, NoulAnswer):
        return answer.noul
    if isinstance(answer, ScoreAnswer):
        return answer.score
    return shown(answer)[1]


def verdict_of(
    answers: Mapping[str, Answer],
    questions: Mapping[str, Question],
    block_at: Thresholds | None,
    review_at: Thresholds | None,
    min_confidence: float | None,
    before: Mapping[str, Answer] | None = None,
) -> Verdict:
    """Block if any question reaches its block threshold, else review if any reaches that or is less certain than asked for."""
    p = {key: measure(answers[key]) for key in questions}
    was = {key: measure(a) for key, a in (before or {}).items() if key in questions}
    for key in questions:
        if reached(answers[key], threshold_for(block_at, questions, key)):
            return Verdict("block", "blocked", key, p, was)
    for key in questions:
        if reached(answers[key], threshold_for(review_at, questions, key)):
            return Verdict("review", "review", key, p, was)
    for key in questions:
        if min_confidence is not None and certainty(answers[key]) < min_confidence:
            return Verdict("review", "abstain", key, p, was)
    return Verdict("allow", "ok", "", p, was)
