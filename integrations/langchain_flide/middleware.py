"""FlideMiddleware: guard, route and watch for `create_agent`.

Each step has up to two dispatches: before the model call (route and watches) and after it (all proposed calls as candidates). Verdicts are
kept in private state by the contents of call and history, so that a resumed run does not ask again. Put it last in the list: it then sees a
summarised state, its verdicts are there before HumanInTheLoop looks for them, and it judges calls as they run, after edits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from langchain_core.decisions import Question
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from langchain_flide.asking import Asker, Failure
from langchain_flide.connection import Inquiry
from langchain_flide.decision_model import FlideDecisionModel
from langchain_flide.events import OnDecision, event, merged
from langchain_flide.guarding import Call, Docket, Guard, last_calls, refused
from langchain_flide.history import Ephemeral, history_of, wire_message
from langchain_flide.policies import FailPolicy, GuardPolicy, RoutePolicy, Watch
from langchain_flide.questions import checked
from langchain_flide.responses import FlideResponse
from langchain_flide.routing import ROUTE, chosen, occasion, route_question
from langchain_flide.states import Seen
from langchain_flide.verdicts import Verdict
from langchain_flide.watching import counted, due, fresh_result, read_watches

try:
    from langchain.agents.middleware.types import (
        AgentMiddleware,
        AgentState,
        ModelRequest,
        PrivateStateAttr,
        ToolCallRequest,
        TracePolicy,
        hook_config,
        omit_payload,
    )
    from langchain.chat_models import init_chat_model
    from langgraph.types import Command

    from langchain_flide.gate import ENDED, Gate, Mode, harmless
    from langchain_flide.hearing import Hearings
except ImportError as e:
    raise ImportError(f'the middleware needs LangChain: pip install "flide-agent[langchain]" ({e})') from e

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

MESSAGE = "message"
"""The candidate that stands for the whole assistant message."""
Update = dict[str, Any] | None


class FlideState(AgentState[Any]):
    """flide: by middleware, `guard` (verdicts by call), `route`, `watch`, `degraded`."""

    flide: NotRequired[Annotated[dict[str, Any], PrivateStateAttr, merged]]


class FlideMiddleware(AgentMiddleware[FlideState, Any, Any]):
    """Decisions on every step of an agent.

        agent = create_agent(model, tools, middleware=[FlideMiddleware(guard=GuardPolicy(questions={...}))])

    decisions: the decision model; by default a service on this machine. guard, route, watch: what is decided; at least one.
    system: a system prompt for the history (the agent's own is not in its state). tool_schemas: tools to show before the history.
    ephemeral: messages that are there for one call only. mode: shadow decides and records, and changes nothing. fail: what an outage
    means. on_decision: called with a FlideEvent for each decision; its exceptions are the caller's. name: several need names of their own.

    One instance may serve any number of threads and runs at once. Text in a history can try to steer the judge, and a probability is no
    permission: keep what must never happen in `guard.rules` and in the tools themselves.
    """

    state_schema = FlideState
    trace_policy = TracePolicy(process_inputs=omit_payload)

    def __init__(
        self,
        *,
        decisions: FlideDecisionModel | None = None,
        guard: GuardPolicy | None = None,
        route: RoutePolicy | None = None,
        watch: Mapping[str, Question | Watch] | None = None,
        system: str | None = None,
        tool_schemas: Sequence[BaseTool | dict[str, Any]] | None = None,
        ephemeral: Ephemeral | None = None,
        mode: Mode = "enforce",
        fail: FailPolicy | None = None,
        on_decision: OnDecision | None = None,
        name: str = "FlideMiddleware",
    ) -> None:
        super().__init__()
        if guard is None and route is None and not watch:
            raise ValueError("give at least one of guard, route and watch")
        fail = fail or FailPolicy()
        self._name, self.mode, self.on_decision = name, mode, on_decision
        self.system, self.ephemeral = system, ephemeral
        self.tool_schemas = [convert_to_openai_tool(t) for t in tool_schemas] if tool_schemas else None
        self.asker = Asker(decisions or FlideDecisionModel(), fail.timeout, fail.breaker)
        self.guard = None if guard is None else Guard(guard, fail, name)
        self.route = route
        self.models: dict[str, Any] = {}
        if route is not None:
            choices = route.choices.items()
            self.models = {k: init_chat_model(c.model) if isinstance(c.model, str) else c.model for k, c in choices}
        self.watches = read_watches(watch)
        # Checked once, here: a mistake in a question must not surface in the middle of a run.
        routing = {} if route is None else checked({ROUTE: route_question(route)}, "route")
        self._routing = routing
        self._before = checked(q, "watch") if (q := due(self.watches, "before")) else {}
        self._result = checked(q, "watch") if (q := due(self.watches, "result")) else {}
        self._proposed = checked(q, "watch") if (q := due(self.watches, "proposed")) else {}
        self._guarding = {} if guard is None else checked(guard.questions, "guard.questions")
        if both := set(self._guarding) & set(self._proposed):
            raise ValueError(f"guard and watch both ask {', '.join(sorted(both))}")
        self._gate = None
        if self.guard is not None:
            hearings = Hearings(self.guard, self.asker, self._inquiry, self._tell_guard)
            shown = [t["function"]["name"] for t in self.tool_schemas or ()]
            self._gate = Gate(self.guard, hearings, mode, lambda state: self._mine(state).get("guard", {}), shown)

    @property
    def name(self) -> str:
        return self._name

    # --- before the model call: route and watches, one dispatch

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: FlideState, runtime: Runtime[Any]) -> Update:
        with harmless(self.mode):
            if self._gate is not None and (ended := self._gate.after_block(state["messages"])) is not None:
                return ended
            asked, at = self._before_questions(state, runtime)
            if asked:
                return self._before_done(state, self.asker.ask(self._inquiry(state["messages"], asked)), asked, at)
        return None

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: FlideState, runtime: Runtime[Any]) -> Update:
        with harmless(self.mode):
            if self._gate is not None and (ended := self._gate.after_block(state["messages"])) is not None:
                return ended
            asked, at = self._before_questions(state, runtime)
            if asked:
                heard = await self.asker.aask(self._inquiry(state["messages"], asked))
                return self._before_done(state, heard, asked, at)
        return None

    def _before_questions(self, state: FlideState, runtime: Runtime[Any]) -> tuple[dict[str, Any], str | None]:
        asked = dict(self._before)
        if fresh_result(state["messages"]):
            asked |= self._result
        at = None
        if self.route is not None:
            at = occasion(self.route, state["messages"], getattr(getattr(runtime, "execution_info", None), "run_id", None))
            if at is None or self._mine(state).get("route", {}).get("at") != at:
                asked |= self._routing
        return asked, at

    def _before_done(self, state: FlideState, heard: FlideResponse | Failure, asked: dict[str, Any], at: str | None) -> Update:
        parts: dict[str, Any] = {"degraded": isinstance(heard, Failure)}
        if self.route is not None and ROUTE in asked:
            parts["route"] = chosen(self.route, heard, self._mine(state).get("route"), at)
            self._tell("route", parts["route"]["status"], heard, data=parts["route"])
        ends = self._watched(state, heard, [k for k in asked if k != ROUTE], parts, None)
        update: dict[str, Any] = {"flide": {self._name: parts}}
        if ends is not None:
            update |= {"messages": [AIMessage(self.watches[ends].message)], "jump_to": "end"}
        return update

    def _watched(
        self,
        state: FlideState,
        heard: FlideResponse | Failure,
        asked: list[str],
        parts: dict[str, Any],
        candidate: str | None,
    ) -> str | None:
        """Records the watches asked; the one that ends the run, if any. No answer ends nothing."""
        if not asked:
            return None
        if isinstance(heard, Failure):
            self._tell("watch", heard.status, heard)
            return None
        answers = heard.answers if candidate is None else heard.candidates[candidate]
        was = self._mine(state).get("watch", {}).get("counts", {})
        counts, numbers, ends = counted(self.watches, {k: answers[k] for k in asked}, was)
        parts["watch"] = {"counts": counts, "numbers": numbers}
        self._tell("watch", "ok", heard, data=numbers | ({"ends": ends} if ends else {}))
        return None if self.mode == "shadow" else ends

    # --- around the model call: the chosen model, no network

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        self._check_names(request)
        return handler(self._routed(request))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]) -> Any:
        self._check_names(request)
        return await handler(self._routed(request))

    def _check_names(self, request: ModelRequest[Any]) -> None:
        if self._gate is not None:
            self._gate.check_names(
                t.name if isinstance(t, BaseTool) else str(t.get("name") or t.get("function", {}).get("name"))
                for t in request.tools
            )

    def _routed(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        label = self._mine(request.state).get("route", {}).get("label")
        if self.mode == "shadow" or label not in self.models:
            return request
        return request.override(model=self.models[label])

    # --- after the model call: all proposed calls as candidates, one dispatch

    @hook_config(can_jump_to=["end", "model"])
    def after_model(self, state: FlideState, runtime: Runtime[Any]) -> Update:
        with harmless(self.mode):
            docket, inquiry = self._after_plan(state)
            if docket is not None:
                return self._after_done(state, docket, None if inquiry is None else self.asker.ask(inquiry))
        return None

    @hook_config(can_jump_to=["end", "model"])
    async def aafter_model(self, state: FlideState, runtime: Runtime[Any]) -> Update:
        with harmless(self.mode):
            docket, inquiry = self._after_plan(state)
            if docket is not None:
                return self._after_done(state, docket, None if inquiry is None else await self.asker.aask(inquiry))
        return None

    def _after_plan(self, state: FlideState) -> tuple[Docket | None, Inquiry | None]:
        """The calls of the last message, and what to ask about them and about it; None when there is nothing to do or to ask."""
        messages = state["messages"]
        at, calls = last_calls(messages)
        if at < 0:
            return None, None
        docket = Docket([]) if self.guard is None else self.guard.docket(calls, state)
        candidates = docket.candidates
        asked = dict(self._guarding) if candidates else {}
        if self._proposed:
            candidates[MESSAGE] = [wire_message(messages[at])]
            asked |= self._proposed
        if not asked:
            return (docket if docket.entries else None), None
        return docket, self._inquiry(messages[:at], asked, candidates)

    def _after_done(self, state: FlideState, docket: Docket, heard: FlideResponse | Failure | None) -> Update:
        parts: dict[str, Any] = {"degraded": isinstance(heard, Failure)}
        ends = None if heard is None else self._watched(state, heard, list(self._proposed), parts, MESSAGE)
        answers = None
        messages = state["messages"]
        if self.guard is not None and self._gate is not None:
            judged = self.guard.verdicts(docket, heard)
            parts["guard"] = self._gate.as_state(messages, judged)
            answers = self._gate.all_answered(messages, judged)
            for call, verdict in judged:
                self._tell_guard(call, verdict, heard)
        update: dict[str, Any] = {"flide": {self._name: parts}}
        if ends is not None:
            closing = [refused(call, ENDED) for call in last_calls(messages)[1]]
            return update | {"messages": [*closing, AIMessage(self.watches[ends].message)], "jump_to": "end"}
        return update if answers is None else update | {"messages": answers, "jump_to": "model"}

    # --- around each tool call: act on the verdict; ask only about calls that nobody judged

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        return handler(request) if self._gate is None else self._gate.wrap(request, handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        return await (handler(request) if self._gate is None else self._gate.awrap(request, handler))

    # --- shared

    def _mine(self, state: Mapping[str, Any] | Any) -> dict[str, Any]:
        found: dict[str, Any] = (state.get("flide") or {}).get(self._name, {})
        return found

    def _inquiry(self, messages: Sequence[Any], asked: dict[str, Any], candidates: dict[str, Any] | None = None) -> Inquiry:
        return Inquiry(Seen(history_of(messages, self.ephemeral, self.system)), asked, candidates or {}, self.tool_schemas)

    def _tell_guard(self, call: Call, verdict: Verdict, heard: FlideResponse | Failure | None) -> None:
        self._tell("guard", verdict.status, heard, tool=call["name"], data=verdict.as_state())

    def _tell(self, kind: Any, status: str, heard: FlideResponse | Failure | None, **more: Any) -> None:
        if self.on_decision is not None:
            shadow = self.mode == "shadow"
            self.on_decision(event(kind, "shadow" if shadow else status, heard, enforced=not shadow, **more))
