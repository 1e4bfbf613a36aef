"""The guard without its hooks: which calls need an answer, what is asked, and what the answer means. Asks nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langchain_flide.asking import OUTAGES, Failure
from langchain_flide.history import UNREADABLE, Wire, arguments, call_message
from langchain_flide.policies import FailPolicy, GuardPolicy, ProposedCall, ruled
from langchain_flide.responses import FlideResponse
from langchain_flide.verdicts import Verdict, stricter, verdict_of

Call = Mapping[str, Any]
Judged = list[tuple[Call, Verdict]]
Then = Literal["run", "ask", "refuse"]
"""What a verdict leads to; ask: a person."""

BLOCKED = "flide_blocked"
"""In `response_metadata` of the message that answers a blocked call: the name of the middleware that blocked it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One call. rule: what the rules say. candidate: its id in the question, None when nothing has to be asked about it."""

    call: Call
    rule: Verdict
    candidate: str | None


@dataclass(frozen=True, slots=True)
class Docket:
    """The calls of one message that the guard judges."""

    entries: list[Entry]

    @property
    def candidates(self) -> dict[str, list[Wire]]:
        return {e.candidate: [call_message(e.call)] for e in self.entries if e.candidate is not None}


class Guard:
    """Verdicts under one policy. name: of the middleware or node."""

    def __init__(self, policy: GuardPolicy, fail: FailPolicy, name: str) -> None:
        self.policy, self.fail, self.name = policy, fail, name

    def rule(self, call: Call, state: Mapping[str, Any]) -> Verdict:
        """What the rules say. They are cheap, so they run again whenever a call is about to."""
        if arguments(call["args"]) == UNREADABLE:
            return Verdict(self.fail.refused, "invalid", "arguments that cannot be read")
        return ruled(self.policy, ProposedCall(call["name"], call["args"], call.get("id"), state))

    def docket(self, calls: Sequence[Call], state: Mapping[str, Any]) -> Docket:
        """Rules first: a call that they block is not asked about."""
        entries = []
        for i, call in enumerate(calls, 1):
            if self.policy.covers(call["name"]):
                rule = self.rule(call, state)
                settled = rule.action == "block" or not rule.answered
                entries.append(Entry(call, rule, None if settled else f"call-{i}"))
        return Docket(entries)

    def verdicts(self, docket: Docket, heard: FlideResponse | Failure | None) -> Judged:
        """The verdict on each call of the docket. heard: None when nothing had to be asked."""
        found: Judged = []
        for entry in docket.entries:
            if entry.candidate is None:
                found.append((entry.call, entry.rule))
                continue
            if isinstance(heard, FlideResponse):
                block_at, review_at = self.policy.thresholds(entry.call["name"])
                answers = heard.candidates[entry.candidate]
                said = verdict_of(
                    answers, self.policy.questions, block_at, review_at, self.policy.min_confidence, heard.answers
                )
            else:
                said = self._failed(entry.call, heard)
            found.append((entry.call, stricter(said, entry.rule)))
        return found

    def _failed(self, call: Call, heard: Failure | None) -> Verdict:
        risk = self.policy.risk.get(call["name"], "unknown")
        if heard is not None and heard.status not in OUTAGES:
            # The service is there and refuses this request, for its length or its number of calls. The model, or a text that
            # it read, may have made it so: that must not choose the policy for outages.
            return Verdict(self.fail.refused, heard.status, "the service refused the request")
        return Verdict(self.fail.action(risk), heard.status if heard else "unavailable", f"risk {risk}")

    def then(self, verdict: Verdict, *, late: bool = False, seen: bool = False) -> Then:
        """What a verdict leads to.

        late: the call was changed after the step in which calls are judged, so HumanInTheLoopMiddleware will not ask about it.
        seen: a person wrote this very call. That is a review; but what nobody could judge is shown to them as such.
        """
        on_review = self.policy.on_review
        if verdict.action == "allow":
            return "run"
        if verdict.action == "block" or on_review == "block":
            return "refuse"
        if seen or (late and on_review == "allow"):
            return "run" if verdict.answered else "ask"
        return "run" if on_review == "allow" else "ask"

    def refusal(self, call: Call) -> ToolMessage:
        """What the model reads in place of a result. No probability: it would invite probing."""
        return refused(call, self.policy.block_text, {BLOCKED: self.name})


def refused(call: Call, text: str, metadata: dict[str, Any] | None = None) -> ToolMessage:
    return ToolMessage(
        text, tool_call_id=call.get("id") or "", name=call["name"], status="error", response_metadata=metadata or {}
    )


def blocked_tool(messages: Sequence[BaseMessage], name: str) -> str | None:
    """The tool of a call that the guard of this name has just blocked: its answer stands at the end of the history."""
    for message in reversed(messages):
        if not isinstance(message, ToolMessage):
            return None
        if message.response_metadata.get(BLOCKED) == name:
            return message.name or ""
    return None


def last_calls(messages: Sequence[BaseMessage]) -> tuple[int, list[Call]]:
    """Where the last assistant message is, and its calls that have no result yet; (-1, []) without one."""
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        if isinstance(message, AIMessage):
            answered = {m.tool_call_id for m in messages[i + 1 :] if isinstance(m, ToolMessage)}
            return i, [call for call in message.tool_calls if call["id"] not in answered]
    return -1, []


def before(messages: Sequence[BaseMessage], call: Call) -> Sequence[BaseMessage]:
    """The history that a call is judged after: up to the last assistant message, if that made it."""
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        if isinstance(message, AIMessage):
            return messages[:i] if any(made["id"] == call.get("id") for made in message.tool_calls) else messages
    return messages
