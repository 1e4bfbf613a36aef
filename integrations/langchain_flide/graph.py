"""Parts for hand-built LangGraph graphs: a decision node, an edge that reads it, a routing node.

Nodes write plain JSON-able dicts, since checkpointers serialise state; edges read state only, so replays take the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from langchain_core.decisions import Choice, Question
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from langchain_flide.asking import Asker, Failure
from langchain_flide.connection import Inquiry
from langchain_flide.decision_model import FlideDecisionModel
from langchain_flide.errors import FlideQuestionError, FlideServiceError
from langchain_flide.policies import FailPolicy
from langchain_flide.questions import certainty, checked, shown
from langchain_flide.responses import FlideResponse
from langchain_flide.states import MESSAGES, messages_in, read_state

try:
    from langgraph.graph import START, StateGraph
    from langgraph.runtime import get_runtime
    from langgraph.types import Command, interrupt
except ImportError as e:
    raise ImportError(f'the graph parts need LangGraph: pip install "flide-agent[langchain]" ({e})') from e

DECISION = "decision"
LowConfidence = Literal["mark", "interrupt", "error"]


def flide_node(
    questions: Mapping[str, Question],
    *,
    decisions: FlideDecisionModel | None = None,
    messages_key: str = MESSAGES,
    output_key: str = DECISION,
    min_confidence: float | Mapping[str, float] = 0.0,
    low_confidence: LowConfidence = "mark",
    fail: FailPolicy | None = None,
) -> Runnable[Any, Any]:
    """A node that asks about the messages of the state and writes {output_key: {status, answers, verdicts, reuse, session}}.

    answers: {id: {label, p, ...}}. An answer less certain than min_confidence (0..1) is marked `abstain`; interrupt asks a person, whose
    answer {id: label} replaces it; error raises. Without an answer, status says why and answers is empty.
    """
    ask = _Asking(checked(questions), decisions, fail, messages_key)
    if low_confidence == "interrupt":
        return _with_person(ask, min_confidence, output_key)

    def done(heard: FlideResponse | Failure) -> dict[str, Any]:
        return {output_key: _decision(heard, min_confidence, "error" if low_confidence == "error" else "mark")}

    async def adone(state: Any) -> dict[str, Any]:
        return done(await ask.aask(state))

    return RunnableLambda(lambda state: done(ask.ask(state)), afunc=adone, name="flide_node")


def flide_edge(
    question_id: str,
    routes: Mapping[str, str],
    *,
    fallback: str,
    min_confidence: float = 0.0,
    output_key: str = DECISION,
) -> Callable[[Mapping[str, Any]], str]:
    """A conditional edge: from the decision's label to a node. Labels of a noul are yes and no.

    A missing decision, an answer that abstains or is less certain, and an unknown label all go to `fallback`.
    """

    def edge(state: Mapping[str, Any]) -> str:
        decision = state.get(output_key) or {}
        answer = (decision.get("answers") or {}).get(question_id)
        if (
            decision.get("status") != "ok"
            or answer is None
            or answer["verdict"] != "ok"
            or answer["confidence"] < min_confidence
        ):
            return fallback
        return routes.get(answer["label"], fallback)

    return edge


def flide_route(
    choices: Mapping[str, str],
    *,
    instructions: Any,
    criteria: Mapping[str, Any] | None = None,
    fallback: str,
    question_id: str = "route",
    decisions: FlideDecisionModel | None = None,
    messages_key: str = MESSAGES,
    output_key: str = DECISION,
    min_confidence: float = 0.0,
    fail: FailPolicy | None = None,
) -> Runnable[Any, Any]:
    """A node that goes where a choice says: choices maps labels to nodes. Returns Command(goto, update={output_key: ...}).

    criteria: what each label is for. No answer, or one less certain than min_confidence, goes to `fallback`.
    """
    if unknown := set(criteria or {}) - set(choices):
        raise FlideQuestionError(f"criteria: {', '.join(sorted(unknown))} are no choices")
    labels: dict[str, Any] = {label: (criteria or {}).get(label) for label in choices}
    ask = _Asking(checked({question_id: Choice(instructions=instructions, criteria=labels)}), decisions, fail, messages_key)
    edge = flide_edge(question_id, choices, fallback=fallback, min_confidence=min_confidence, output_key=output_key)

    def go(heard: FlideResponse | Failure) -> Command[Any]:
        update = {output_key: _decision(heard, 0.0, "mark")}
        return Command(goto=edge(update), update=update)

    async def ago(state: Any) -> Command[Any]:
        return go(await ask.aask(state))

    return RunnableLambda(lambda state: go(ask.ask(state)), afunc=ago, name="flide_route")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node asks: the graph's state, and the config of the node's task."""

    state: Any
    config: RunnableConfig


class _Kept(TypedDict):
    decision: dict[str, Any]


def _with_person(ask: _Asking, least: float | Mapping[str, float], output_key: str) -> Runnable[Any, Any]:
    """flide_node that asks a person about unsure answers. The decision lies in a graph of its own inside the node's task, so that a resumed
    task gives the person's answer to the question that was shown, and asks the service nothing."""

    def decide(_: _Kept) -> dict[str, Any]:
        place = get_runtime(_Place).context
        return {"decision": _decision(ask.ask(place.state, place.config), least, "mark")}

    async def adecide(_: _Kept) -> dict[str, Any]:
        place = get_runtime(_Place).context
        return {"decision": _decision(await ask.aask(place.state, place.config), least, "mark")}

    def review(kept: _Kept) -> dict[str, Any]:
        answers = kept["decision"]["answers"]
        unsure = {key: a for key, a in answers.items() if a["verdict"] == "abstain"}
        said: Any = interrupt({"type": "flide_unsure", "questions": unsure}) if unsure else {}
        named = {key: said[key] for key in unsure if key in said} if isinstance(said, Mapping) else {}
        by_person = {
            key: answers[key] | {"label": label, "verdict": "ok", "confidence": 1.0, "by": "person"}
            for key, label in named.items()
        }
        return {"decision": kept["decision"] | {"answers": answers | by_person}}

    async def areview(kept: _Kept) -> dict[str, Any]:
        return review(kept)

    graph = StateGraph(_Kept, context_schema=_Place)
    graph.add_sequence([("decide", RunnableLambda(decide, afunc=adecide)), ("review", RunnableLambda(review, afunc=areview))])
    graph.add_edge(START, "decide")
    inner = graph.compile(name="flide_unsure")

    def node(state: Any, config: RunnableConfig) -> dict[str, Any]:
        return {output_key: inner.invoke({"decision": {}}, config, context=_Place(state, config))["decision"]}

    async def anode(state: Any, config: RunnableConfig) -> dict[str, Any]:
        return {output_key: (await inner.ainvoke({"decision": {}}, config, context=_Place(state, config)))["decision"]}

    return RunnableLambda(node, afunc=anode, name="flide_node")


class _Asking:
    """Questions about a state's messages."""

    def __init__(
        self, questions: dict[str, Any], decisions: FlideDecisionModel | None, fail: FailPolicy | None, messages_key: str
    ) -> None:
        fail = fail or FailPolicy()
        self.questions, self.messages_key = questions, messages_key
        self.asker = Asker(decisions or FlideDecisionModel(), fail.timeout, fail.breaker)

    def ask(self, state: Any, config: RunnableConfig | None = None) -> FlideResponse | Failure:
        return self.asker.ask(self._inquiry(state), config)

    async def aask(self, state: Any, config: RunnableConfig | None = None) -> FlideResponse | Failure:
        return await self.asker.aask(self._inquiry(state), config)

    def _inquiry(self, state: Any) -> Inquiry:
        return Inquiry(read_state({MESSAGES: messages_in(state, self.messages_key)}), self.questions)


def _decision(
    heard: FlideResponse | Failure, least: float | Mapping[str, float], low: Literal["mark", "error"]
) -> dict[str, Any]:
    if isinstance(heard, Failure):
        return {"status": heard.status, "answers": {}}
    answers: dict[str, Any] = {}
    for key, answer in heard.answers.items():
        label, p = shown(answer)
        needed = least.get(key, 0.0) if isinstance(least, Mapping) else least
        sure = certainty(answer)
        answers[key] = {"label": label, "p": p, "confidence": sure, "verdict": "ok" if sure >= needed else "abstain"}
    unsure = [key for key, a in answers.items() if a["verdict"] == "abstain"]
    if unsure and low == "error":
        raise FlideServiceError(f"not certain enough: {', '.join(unsure)}")
    return {
        "status": "ok",
        "answers": answers,
        "reuse": heard.reuse.model_dump(),
        "session": heard.session,
        "untrained": heard.untrained,
    }
