"""What happens to calls that have no verdict yet, or that a person has to see: judged, shown, perhaps edited and judged again.

A hearing is a graph of its own inside the tool's task. LangGraph keeps its state beside that task, so a task that is resumed, in this
process or another, finds the verdicts that its questions came from: nothing is judged twice, and a rejection counts whatever a new verdict
would say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import get_runtime
from langgraph.types import interrupt

from langchain_flide.asking import Asker, Failure
from langchain_flide.connection import Inquiry
from langchain_flide.guarding import Call, Docket, Guard, before, refused
from langchain_flide.questions import checked
from langchain_flide.responses import FlideResponse
from langchain_flide.reviewing import decided, question_of
from langchain_flide.states import as_mapping, messages_in
from langchain_flide.verdicts import Verdict, call_key

Inquire = Callable[[Sequence[Any], dict[str, Any], dict[str, Any] | None], Inquiry]
Told = Callable[[Call, Verdict, FlideResponse | Failure | None], None]
Outcome = Call | ToolMessage
"""The call to run, perhaps edited, or what to answer it with."""
ELSEWHERE = "This call was not run: it needs a person's review, and calls that run together in one task cannot have it."
Case = dict[str, Any]
"""One call, as data that a checkpointer keeps.

of: guard and key of the call as the model made it. call: as it is now. then: judge, run, ask, refuse or answer; answer: content and status
of that message. answered: whether the verdict is a decision model's. late, seen: as `Guard.then` takes them.
"""


class HearingState(TypedDict):
    cases: list[Case]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a hearing is about, beside its calls. Made anew when a task is resumed, so nothing of it is stored.

    history: up to the message that makes the calls. state: what rules read. config: of the tool's task.
    """

    history: Sequence[Any]
    state: Mapping[str, Any]
    config: RunnableConfig

    @classmethod
    def of(cls, request: ToolCallRequest, messages_key: str = "messages") -> Scene:
        history = before(messages_in(request.state, messages_key), request.tool_call)
        return cls(history, as_mapping(request.state, messages_key), request.runtime.config)


class Hearings:
    """Hearings under one guard. told: hears of each verdict once."""

    def __init__(self, guard: Guard, asker: Asker, inquire: Inquire, told: Told) -> None:
        self.guard, self.asker, self.inquire, self.told = guard, asker, inquire, told
        self._questions = checked(guard.policy.questions, "guard.questions")
        graph = StateGraph(HearingState, context_schema=Scene)
        graph.add_node("judge", RunnableLambda(self._judge, afunc=self._ajudge))
        graph.add_node("review", RunnableLambda(_review, afunc=_areview))
        graph.add_edge(START, "judge")
        graph.add_edge("judge", "review")
        graph.add_conditional_edges("review", _next, ["judge", END])
        self._graph = graph.compile(name="flide_hearing")

    def case(
        self, call: Call, then: Literal["judge", "run", "ask", "refuse"], *, answered: bool = True, late: bool = False
    ) -> Case:
        """A call on its way into a hearing."""
        of = f"{self.guard.name} {call_key(call)}"
        return {"of": of, "call": dict(call), "then": then, "answered": answered, "late": late, "seen": False}

    def hold(self, cases: list[Case], scene: Scene) -> list[Outcome]:
        """What becomes of each call. Raises GraphInterrupt to ask a person; when the task is resumed it goes on from there."""
        found = self._graph.invoke({"cases": cases}, scene.config, context=scene)
        return self._outcomes(cases, found["cases"])

    async def ahold(self, cases: list[Case], scene: Scene) -> list[Outcome]:
        """`hold` for asyncio."""
        found = await self._graph.ainvoke({"cases": cases}, scene.config, context=scene)
        return self._outcomes(cases, found["cases"])

    def decide(self, cases: list[Case], scene: Scene) -> list[Case]:
        """Judges the cases that need it, in one dispatch, without a person and without a trace in the graph."""
        docket, inquiry = self._plan(cases, scene)
        return self._judged(cases, docket, None if inquiry is None else self.asker.ask(inquiry, scene.config))

    async def adecide(self, cases: list[Case], scene: Scene) -> list[Case]:
        """`decide` for asyncio."""
        docket, inquiry = self._plan(cases, scene)
        return self._judged(cases, docket, None if inquiry is None else await self.asker.aask(inquiry, scene.config))

    def outcome(self, case: Case) -> Outcome:
        """What becomes of a call that nothing has to be asked about."""
        call: Call = case["call"]
        if case["then"] == "run":
            return call
        if case["then"] == "answer":
            return ToolMessage(**case["answer"], tool_call_id=call.get("id") or "", name=call["name"])
        return self.guard.refusal(call)

    def unasked(self, case: Case) -> Outcome:
        """What becomes of a judged call when nobody can be asked."""
        return refused(case["call"], ELSEWHERE) if case["then"] == "ask" else self.outcome(case)

    def _judge(self, state: HearingState) -> dict[str, Any]:
        return {"cases": self.decide(state["cases"], get_runtime(Scene).context)}

    async def _ajudge(self, state: HearingState) -> dict[str, Any]:
        return {"cases": await self.adecide(state["cases"], get_runtime(Scene).context)}

    def _plan(self, cases: list[Case], scene: Scene) -> tuple[Docket, Inquiry | None]:
        docket = self.guard.docket([case["call"] for case in cases if case["then"] == "judge"], scene.state)
        candidates = docket.candidates
        return docket, self.inquire(scene.history, self._questions, candidates) if candidates else None

    def _judged(self, cases: list[Case], docket: Docket, heard: FlideResponse | Failure | None) -> list[Case]:
        verdicts = iter(self.guard.verdicts(docket, heard))
        found = []
        for case in cases:
            if case["then"] == "judge":
                call, verdict = next(verdicts)
                self.told(call, verdict, heard)
                then = self.guard.then(verdict, late=case["late"], seen=case["seen"])
                case = case | {"then": then, "answered": verdict.answered}
            found.append(case)
        return found

    def _outcomes(self, cases: list[Case], found: list[Case]) -> list[Outcome]:
        # A hearing that another call's task left behind decides nothing here.
        same = [case["of"] for case in cases] == [case["of"] for case in found]
        return [self.outcome(case) if same else self.guard.refusal(case["call"]) for case in (found if same else cases)]


def _review(state: HearingState) -> dict[str, Any]:
    """Asks about one call after the other: their order, and so the place of each answer, never changes."""
    cases = []
    for case in state["cases"]:
        if case["then"] == "ask":
            call = case["call"]
            said = decided(call, interrupt(question_of(call, case["answered"])))
            if isinstance(said, ToolMessage):
                answer = {"content": said.content, "status": said.status}
                case = case | {"then": "answer", "answer": answer}
            elif said is call:
                case = case | {"then": "run"}
            else:
                case = case | {"call": dict(said), "then": "judge", "seen": True}
        cases.append(case)
    return {"cases": cases}


async def _areview(state: HearingState) -> dict[str, Any]:
    return _review(state)


def _next(state: HearingState) -> str:
    return "judge" if any(case["then"] == "judge" for case in state["cases"]) else END
