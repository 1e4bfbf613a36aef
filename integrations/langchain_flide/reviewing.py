"""A person's word on a call: the question and the answer, in the shape of HumanInTheLoopMiddleware's per-call mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from langchain_flide.guarding import Call, before, refused
from langchain_flide.history import digest_of
from langchain_flide.states import messages_in
from langchain_flide.verdicts import Verdict, call_key

REVIEW = "A decision model asks for a person's review of this call."
UNJUDGED = "No decision could be had about this call; it needs a person's review."


def question_of(call: Call, answered: bool) -> dict[str, Any]:
    """What a person is shown. answered: whether a decision model judged the call."""
    return {
        "type": "tool_approval",
        "tool_call_id": call.get("id"),
        "name": call["name"],
        "args": call["args"],
        "description": REVIEW if answered else UNJUDGED,
    }


def decided(call: Call, decision: Any) -> Call | ToolMessage:
    """The call itself when it was approved, another one when it was edited, or the message to answer with.

    Anything that is no approval, in whatever shape, is a rejection.
    """
    if isinstance(decision, Mapping) and isinstance(decision.get("decisions"), list) and len(decision["decisions"]) == 1:
        decision = decision["decisions"][0]  # HumanInTheLoop's batched shape
    given: Mapping[str, Any] = decision if isinstance(decision, Mapping) else {}
    said = given.get("message")
    match given.get("type"):
        case "approve":
            return call
        case "edit":
            edited = given.get("edited_action")
            action: Mapping[str, Any] = edited if isinstance(edited, Mapping) else {}
            args = action.get("args")
            if isinstance(args, Mapping) and action.get("name", call["name"]) == call["name"]:
                return {**call, "args": dict(args)}
            return refused(call, "This call was not run: the reviewer's edit names another tool or has no arguments.")
        case "respond":
            text = "" if said is None else str(said)
            return ToolMessage(text, tool_call_id=call.get("id") or "", name=call["name"])
        case "reject" if said:
            return refused(call, f"This call was not run: a reviewer rejected it, with the reason: {said}")
    return refused(call, "This call was not run: a reviewer rejected it.")


def flide_when(name: str = "FlideMiddleware") -> Callable[[ToolCallRequest], bool]:
    """A `when` for HumanInTheLoopMiddleware: ask a person about calls that the guard wants reviewed. Use with `on_review="allow"`.

    A call without a verdict is reviewed, which also is what happens when FlideMiddleware is missing or not the last in the list.
    """

    def when(request: ToolCallRequest) -> bool:
        verdicts = ((request.state.get("flide") or {}).get(name) or {}).get("guard") or {}
        past = digest_of(before(messages_in(request.state), request.tool_call))
        verdict = Verdict.from_state(verdicts.get(call_key(request.tool_call, past)))
        return verdict is None or verdict.action == "review"

    return when
