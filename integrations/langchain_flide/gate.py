"""The guard around tool calls of `create_agent`: the verdict that the state has, a hearing where it has none, and the rules once more."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest

from langchain_flide.errors import FlideBlocked, FlideQuestionError
from langchain_flide.guarding import Call, Guard, Judged, blocked_tool, last_calls, refused
from langchain_flide.hearing import Case, Hearings, Outcome, Scene
from langchain_flide.history import digest_of
from langchain_flide.verdicts import Verdict, call_key, stricter

log = logging.getLogger("langchain_flide")
Mode = Literal["enforce", "shadow"]
Kept = Callable[[Any], dict[str, Any]]
"""From an agent's state to the verdicts in it, by key."""
ENDED = "This call was not run: the run ended."


@contextmanager
def harmless(mode: Mode) -> Iterator[None]:
    """In shadow mode, whatever goes wrong with a decision is logged and the agent goes on."""
    try:
        yield
    except GraphBubbleUp:
        raise
    except Exception as e:
        if mode == "enforce":
            raise
        log.error("a decision in shadow mode failed: %s", type(e).__name__)


class Gate:
    """Lets calls through, answers them, or asks a person. names: of tools that a model request may not show."""

    def __init__(self, guard: Guard, hearings: Hearings, mode: Mode, kept: Kept, names: Iterable[str]) -> None:
        self.guard, self.hearings, self.mode, self.kept = guard, hearings, mode, kept
        self._missing = guard.policy.missing(names)

    def check_names(self, tools: Iterable[str]) -> None:
        """Raises FlideQuestionError, at the first model call, for names in the policy that none of its tools has."""
        if not self._missing:
            return
        known = sorted(tools)
        missing = [name for name in self._missing if name not in known]
        if missing and self.mode == "enforce":
            raise FlideQuestionError(
                f"guard: no tool is named {', '.join(map(repr, missing))}; the tools are {', '.join(known)}. "
                "Show tools that another middleware adds or hides in tool_schemas"
            )
        if missing:
            log.warning("guard: no tool is named %s", ", ".join(map(repr, missing)))
        self._missing = []

    def as_state(self, messages: Sequence[BaseMessage], judged: Judged) -> dict[str, Any]:
        """Verdicts on the last message's calls, by what call and history say."""
        past = digest_of(messages[: last_calls(messages)[0]])
        return {call_key(call, past): verdict.as_state() for call, verdict in judged}

    def all_answered(self, messages: Sequence[BaseMessage], judged: Judged) -> list[ToolMessage] | None:
        """Answers for all open calls when one of them is blocked and that means more than an answer; else None.

        They enter the state before the run ends or raises: a call without a result would make the thread useless for most models.
        """
        blocked = [call for call, verdict in judged if verdict.action == "block"]
        if not blocked or self.mode == "shadow" or self.guard.policy.on_block == "message":
            return None
        return [self.guard.refusal(call) if call in blocked else refused(call, ENDED) for call in last_calls(messages)[1]]

    def after_block(self, messages: Sequence[BaseMessage]) -> dict[str, Any] | None:
        """Ends the run when a call has just been blocked and the policy wants that. Raises FlideBlocked if it wants that."""
        on_block = self.guard.policy.on_block
        if on_block == "message" or self.mode == "shadow":
            return None
        tool = blocked_tool(messages, self.guard.name)
        if tool is None:
            return None
        if on_block == "raise":
            raise FlideBlocked(f"a call of {tool} was blocked", tool)
        return {"messages": [AIMessage(self.guard.policy.block_text)], "jump_to": "end"}

    def wrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Runs the call or answers it. Raises GraphInterrupt to ask a person."""
        if not self.guard.policy.covers(request.tool_call["name"]):
            return handler(request)
        with harmless(self.mode):
            scene = Scene.of(request)
            verdict, case = self._case(request, scene)
            if self.mode == "shadow":
                self.hearings.decide([case], scene)
            else:
                if verdict is not None and verdict.action != "review":
                    outcome = self.hearings.outcome(case)
                elif _alone(request):
                    (outcome,) = self.hearings.hold([case], scene)
                else:
                    outcome = self.hearings.unasked(*self.hearings.decide([case], scene))
                settled = self._settled(request, outcome, scene)
                if isinstance(settled, ToolMessage):
                    return settled
                request = settled
        return handler(request)

    async def awrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """`wrap` for asyncio."""
        if not self.guard.policy.covers(request.tool_call["name"]):
            return await handler(request)
        with harmless(self.mode):
            scene = Scene.of(request)
            verdict, case = self._case(request, scene)
            if self.mode == "shadow":
                await self.hearings.adecide([case], scene)
            else:
                if verdict is not None and verdict.action != "review":
                    outcome = self.hearings.outcome(case)
                elif _alone(request):
                    (outcome,) = await self.hearings.ahold([case], scene)
                else:
                    outcome = self.hearings.unasked(*await self.hearings.adecide([case], scene))
                settled = self._settled(request, outcome, scene)
                if isinstance(settled, ToolMessage):
                    return settled
                request = settled
        return await handler(request)

    def _case(self, request: ToolCallRequest, scene: Scene) -> tuple[Verdict | None, Case]:
        """What is known of a call when it is about to run: the verdict in the state, made stricter by what the rules say now."""
        call: Call = request.tool_call
        rule = self.guard.rule(call, scene.state)
        verdict = Verdict.from_state(self.kept(request.state).get(call_key(call, digest_of(scene.history))))
        if rule.action == "block":
            verdict = rule
        if verdict is None:
            return None, self.hearings.case(call, "judge", late=True)
        verdict = stricter(verdict, rule)
        return verdict, self.hearings.case(call, self.guard.then(verdict), answered=verdict.answered)

    def _settled(self, request: ToolCallRequest, outcome: Outcome, scene: Scene) -> ToolCallRequest | ToolMessage:
        if isinstance(outcome, ToolMessage):
            return outcome
        if outcome == request.tool_call:
            return request
        # Edited: the rules see what is about to run, also when a hearing goes on in another state than it began in.
        if self.guard.rule(outcome, scene.state).action == "block":
            return self.guard.refusal(outcome)
        # cast: a tool call stays one when its arguments change
        return request.override(tool_call=cast("Any", dict(outcome)))


def _alone(request: ToolCallRequest) -> bool:
    """Whether the call has its task for itself, as calls that a model makes have: answers of a person go to a task, by number."""
    path = (request.runtime.config.get("metadata") or {}).get("langgraph_path") or ("",)
    return path[0] == "__pregel_push" or len(last_calls(request.state["messages"])[1]) < 2
