"""The guard without its hooks: which calls need an answer, what is asked, and what the answer means. Asks nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langchain_flide.asking import OUTAGES, Failure
from langchain_flide.errors import FlideBlocked
from langchain_flide.history import Wire, call_message
from langchain_flide.policies import FailPolicy, GuardPolicy, ProposedCall, ruled
from langchain_flide.responses import FlideResponse
from langchain_flide.verdicts import Verdict, call_key, stricter, verdict_of

Call = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Docket:
    """The calls of one message. settled: verdicts that need no answer. open: calls to ask about, by candidate id, with what rules say."""

    settled: dict[str, Verdict] = field(default_factory=dict)
    open: dict[str, tuple[Call, Verdict]] = field(default_factory=dict)

    @property
    def candidates(self) -> dict[str, list[Wire]]:
        return {key: [call_message(call)] for key, (call, _) in self.open.items()}


class Guard:
    """Verdicts under one policy."""

    def __init__(self, policy: GuardPolicy, fail: FailPolicy) -> None:
        self.policy, self.fail = policy, fail

    def docket(self, calls: Sequence[Call], state: Mapping[str, Any]) -> Docket:
        """Rules first: a call that they block is not asked about."""
        docket = Docket()
        for i, call in enumerate(calls, 1):
            if not self.policy.covers(call["name"]):
                continue
            verdict = ruled(self.policy, ProposedCall(call["name"], call["args"], call.get("id"), state))
            if verdict.action == "block":
                docket.settled[call_key(call)] = verdict
            else:
                docket.open[f"call-{i}"] = (call, verdict)
        return docket

    def verdicts(self, docket: Docket, heard: FlideResponse | Failure | None) -> dict[str, Verdict]:
        """All verdicts of the message, by call_key. heard: None when nothing had to be asked."""
        found = dict(docket.settled)
        for candidate, (call, rule) in docket.open.items():
            if isinstance(heard, FlideResponse):
                block_at, review_at = self.policy.thresholds(call["name"])
                answers = heard.candidates[candidate]
                said = verdict_of(
                    answers, self.policy.questions, block_at, review_at, self.policy.min_confidence, heard.answers
                )
            else:
                said = self._failed(call, heard)
            found[call_key(call)] = said if said.action == rule.action == "allow" else stricter(said, rule)
        return found

    def _failed(self, call: Call, heard: Failure | None) -> Verdict:
        risk = self.policy.risk.get(call["name"], "unknown")
        if heard is not None and heard.status not in OUTAGES:
            # The service is there and refuses this request, for its length or its number of calls. The model, or a text that
            # it read, may have made it so: that must not choose the policy for outages.
            return Verdict(self.fail.refused, heard.status, "the service refused the request")
        return Verdict(self.fail.action(risk), heard.status if heard else "unavailable", f"risk {risk}")

    def refusal(self, call: Call) -> ToolMessage:
        """What the model reads in place of a result. No probability: it would invite probing."""
        if self.policy.on_block == "raise":
            raise FlideBlocked(f"the call of {call['name']} was blocked", call["name"])
        return refused(call, self.policy.block_text)


def refused(call: Call, text: str) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call.get("id") or "", name=call["name"], status="error")


def last_calls(messages: Sequence[BaseMessage]) -> tuple[int, list[Call]]:
    """Where the last assistant message is, and its calls that have no result yet; (-1, []) without one."""
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        if isinstance(message, AIMessage):
            answered = {m.tool_call_id for m in messages[i + 1 :] if isinstance(m, ToolMessage)}
            return i, [call for call in message.tool_calls if call["id"] not in answered]
    return -1, []
