"""A guarded tool node for graphs built by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool

from langchain_flide.asking import Asker, Failure
from langchain_flide.connection import Inquiry
from langchain_flide.decision_model import FlideDecisionModel
from langchain_flide.errors import FlideQuestionError
from langchain_flide.events import OnDecision, event
from langchain_flide.guarding import Call, Guard
from langchain_flide.history import Ephemeral, history_of
from langchain_flide.policies import FailPolicy, GuardPolicy
from langchain_flide.responses import FlideResponse
from langchain_flide.states import MESSAGES, Seen
from langchain_flide.verdicts import Verdict, call_key

try:
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest

    from langchain_flide.hearing import Case, Hearings, Outcome, Scene
except ImportError as e:
    raise ImportError(f'the graph parts need LangGraph: pip install "flide-agent[langchain]" ({e})') from e

Outcomes = dict[str, Outcome]
"""What was decided about each call of a message, by call_key."""


def firewall_tool_node(
    tools: Sequence[BaseTool | Callable[..., Any]],
    policy: GuardPolicy,
    *,
    decisions: FlideDecisionModel | None = None,
    fail: FailPolicy | None = None,
    messages_key: str = MESSAGES,
    ephemeral: Ephemeral | None = None,
    system: str | None = None,
    on_decision: OnDecision | None = None,
    name: str = "tools",
) -> Runnable[Any, Any]:
    """A tool node that runs a call only when the policy's verdict lets it.

    All calls that reach it together are judged in one dispatch, and every review is over before the first of them runs. Verdicts and
    answers are kept by the graph's checkpointer. Raises FlideQuestionError for names in the policy that no tool has, and for any
    `on_block` but message: a node can neither end a run nor both answer a call and raise.
    """
    return RunnableLambda(
        (node := _Firewall(tools, policy, decisions, fail, messages_key, ephemeral, system, on_decision, name)).run,
        afunc=node.arun,
        name=name,
    )


class _Firewall:
    """Two tool nodes with the same tools: `noting` tells which calls there are and runs none, `running` runs what was let through."""

    def __init__(
        self,
        tools: Sequence[BaseTool | Callable[..., Any]],
        policy: GuardPolicy,
        decisions: FlideDecisionModel | None,
        fail: FailPolicy | None,
        messages_key: str,
        ephemeral: Ephemeral | None,
        system: str | None,
        on_decision: OnDecision | None,
        name: str,
    ) -> None:
        if policy.on_block != "message":
            raise FlideQuestionError("on_block: a tool node answers blocked calls; use message")
        fail = fail or FailPolicy()
        self.messages_key, self.on_decision = messages_key, on_decision
        self.guard = Guard(policy, fail, name)

        def inquire(messages: Sequence[Any], asked: dict[str, Any], candidates: dict[str, Any] | None) -> Inquiry:
            return Inquiry(Seen(history_of(messages, ephemeral, system)), asked, candidates or {})

        asker = Asker(decisions or FlideDecisionModel(), fail.timeout, fail.breaker)
        self.hearings = Hearings(self.guard, asker, inquire, self._told)
        self.outcomes: ContextVar[Outcomes] = ContextVar("flide_outcomes")
        self.noting = ToolNode(
            list(tools),
            name=name,
            wrap_tool_call=_note,
            awrap_tool_call=_anote,
            messages_key=messages_key,
            handle_tool_errors=False,
        )
        self.running = ToolNode(
            list(tools), name=name, wrap_tool_call=self._wrap, awrap_tool_call=self._awrap, messages_key=messages_key
        )
        if missing := policy.missing(self.running.tools_by_name):
            raise FlideQuestionError(f"policy: no tool here is named {', '.join(map(repr, missing))}")

    def run(self, state: Any, config: RunnableConfig) -> Any:
        requests = self._requests(self.noting.invoke(state, config))
        if requests:
            self.outcomes.set(self._found(requests, self.hearings.hold(self._cases(requests), self._scene(requests))))
        return self.running.invoke(state, config)

    async def arun(self, state: Any, config: RunnableConfig) -> Any:
        requests = self._requests(await self.noting.ainvoke(state, config))
        if requests:
            self.outcomes.set(self._found(requests, await self.hearings.ahold(self._cases(requests), self._scene(requests))))
        return await self.running.ainvoke(state, config)

    def _requests(self, noted: Any) -> list[ToolCallRequest]:
        """The requests whose calls are guarded, in order."""
        messages = noted[self.messages_key] if isinstance(noted, dict) else noted
        requests = [cast("ToolCallRequest", message.artifact) for message in messages]
        return [request for request in requests if self.guard.policy.covers(request.tool_call["name"])]

    def _cases(self, requests: list[ToolCallRequest]) -> list[Case]:
        return [self.hearings.case(request.tool_call, "judge") for request in requests]

    def _scene(self, requests: list[ToolCallRequest]) -> Scene:
        return Scene.of(requests[0], self.messages_key)

    def _found(self, requests: list[ToolCallRequest], outcomes: list[Outcome]) -> Outcomes:
        """By call. Rules run once more, on what is about to run and on the state as it is now."""
        found: Outcomes = {}
        for request, outcome in zip(requests, outcomes, strict=True):
            if not isinstance(outcome, ToolMessage):
                scene = Scene.of(request, self.messages_key)
                if self.guard.rule(outcome, scene.state).action == "block":
                    outcome = self.guard.refusal(outcome)
            found[call_key(request.tool_call)] = outcome
        return found

    def _wrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        settled = self._settled(request)
        return settled if isinstance(settled, ToolMessage) else handler(settled)

    async def _awrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        settled = self._settled(request)
        return settled if isinstance(settled, ToolMessage) else await handler(settled)

    def _settled(self, request: ToolCallRequest) -> ToolCallRequest | ToolMessage:
        if not self.guard.policy.covers(request.tool_call["name"]):
            return request
        outcome = self.outcomes.get({}).get(call_key(request.tool_call))
        if outcome is None:
            return self.guard.refusal(request.tool_call)
        # cast: a tool call stays one when its arguments change
        return outcome if isinstance(outcome, ToolMessage) else request.override(tool_call=cast("Any", dict(outcome)))

    def _told(self, call: Call, verdict: Verdict, heard: FlideResponse | Failure | None) -> None:
        if self.on_decision is not None:
            data = verdict.as_state()
            self.on_decision(event("guard", verdict.status, heard, enforced=True, tool=call["name"], data=data))


def _note(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> ToolMessage:
    return ToolMessage("", tool_call_id=request.tool_call["id"] or "", artifact=request)


async def _anote(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> ToolMessage:
    return _note(request, handler)
