"""Which chat model the next step uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.decisions import Choice, ChoiceAnswer
from langchain_core.messages import BaseMessage, HumanMessage

from langchain_flide.asking import Failure
from langchain_flide.policies import RoutePolicy
from langchain_flide.responses import FlideResponse

ROUTE = "route"
Routed = dict[str, Any]
"""What the state keeps: label, status, confidence, probabilities, and at which turn or run it was asked."""


def route_question(policy: RoutePolicy) -> Choice:
    return Choice(
        instructions=policy.instructions, criteria={label: choice.criteria for label, choice in policy.choices.items()}
    )


def occasion(policy: RoutePolicy, messages: Sequence[BaseMessage], run_id: Any) -> str | None:
    """What a choice is valid for: None, this step only; else the same while this text is the same."""
    if policy.every == "step":
        return None
    if policy.every == "run" and run_id is not None:
        return f"run {run_id}"
    last = next((m.id for m in reversed(messages) if isinstance(m, HumanMessage)), None)
    return f"turn {last}"


def chosen(policy: RoutePolicy, heard: FlideResponse | Failure, was: Mapping[str, Any] | None, at: str | None) -> Routed:
    """The new route. was: the route in use."""
    current = was.get("label") if was else None
    if current not in policy.choices:
        current = None
    if not isinstance(heard, FlideResponse):
        return {"label": policy.default, "status": heard.status, "confidence": None, "probabilities": {}, "at": at}
    answer = heard.answers[ROUTE]
    assert isinstance(answer, ChoiceAnswer)
    label, status = answer.choice, "ok"
    if answer.confidence < policy.min_confidence:
        label, status = policy.default, "abstain"
    elif current is not None and answer.probabilities[label] - answer.probabilities[current] < policy.switch_margin:
        label = current
    return {"label": label, "status": status, "confidence": answer.confidence, "probabilities": answer.probabilities, "at": at}
