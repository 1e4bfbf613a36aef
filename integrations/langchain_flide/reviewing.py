"""Acting on a verdict inside a tool's task: run, refuse, or ask a person. The person's answer has HumanInTheLoop's per-call shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import interrupt

from langchain_flide.guarding import Guard, refused
from langchain_flide.history import text_of
from langchain_flide.verdicts import Verdict, call_key

REVIEW = "A decision model asks for a person's review of this call."
Settled = ToolCallRequest | ToolMessage


def settle(guard: Guard, verdict: Verdict, request: ToolCallRequest) -> Settled:
    """The request to run (another one when a person edited the call), or the message to answer with.

    Raises GraphInterrupt to ask a person, FlideBlocked when the policy says so. When the task is resumed, `interrupt` returns the
    person's decision instead.
    """
    if verdict.action == "allow":
        return request
    on_review = guard.policy.on_review
    if verdict.action == "block" or on_review == "block":
        return guard.refusal(request.tool_call)
    if on_review == "allow":
        return request
    call = request.tool_call
    asked = {
        "type": "tool_approval",
        "tool_call_id": call["id"],
        "name": call["name"],
        "args": call["args"],
        "description": REVIEW,
    }
    return _decided(request, interrupt(asked))


def _decided(request: ToolCallRequest, decision: Any) -> Settled:
    call = request.tool_call
    if isinstance(decision, Mapping) and isinstance(decision.get("decisions"), list) and len(decision["decisions"]) == 1:
        decision = decision["decisions"][0]  # HumanInTheLoop's batched shape
    kind = decision.get("type") if isinstance(decision, Mapping) else None
    if kind == "approve":
        return request
    if kind == "edit":
        edited = decision.get("edited_action") or {}
        if edited.get("name", call["name"]) != call["name"] or not isinstance(edited.get("args"), Mapping):
            return refused(call, "This call was not run: the reviewer's edit names another tool or has no arguments.")
        # cast: a tool call stays one when its arguments change
        return request.override(tool_call=cast("Any", {**call, "args": dict(edited["args"])}))
    if kind == "respond":
        return ToolMessage(text_of(decision.get("message") or ""), tool_call_id=call["id"] or "", name=call["name"])
    # Anything else, no answer included, is no approval.
    reason = decision.get("message") if kind == "reject" else None
    return refused(call, f"This call was not run: a reviewer rejected it{f', with the reason: {reason}' if reason else '.'}")


def flide_when(name: str = "FlideMiddleware") -> Callable[[ToolCallRequest], bool]:
    """A `when` for HumanInTheLoopMiddleware: ask a person about calls that the guard wants reviewed. Use with `on_review="allow"`.

    A call without a verdict is reviewed, which also is what happens when FlideMiddleware is missing or not the last in the list.
    """

    def when(request: ToolCallRequest) -> bool:
        verdicts = ((request.state.get("flide") or {}).get(name) or {}).get("guard") or {}
        verdict = verdicts.get(call_key(request.tool_call))
        return verdict is None or verdict["action"] == "review"

    return when
