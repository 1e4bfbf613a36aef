"""Parts of hand-built graphs, on the fake and on a real service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from integration_agents import RISKY, Body, calling, results, says, thread
from langchain_core.decisions import Choice, Noul
from langchain_core.messages import HumanMessage
from langchain_flide import (
    FlideDecisionModel,
    GuardPolicy,
    ProposedCall,
    firewall_tool_node,
    flide_edge,
    flide_node,
    flide_route,
)
from langchain_flide.errors import FlideQuestionError, FlideServiceError
from langchain_flide.testing import FakeFlide, call
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Command, Send
from pydantic import BaseModel

WHICH: Any = {"team": Choice(instructions="Which team?", criteria={"ci": "Builds.", "web": "Pages."})}


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    decision: dict[str, Any]
    went: str


def graph(node: Any, edge: Any, saver: Any = None) -> Any:
    g = StateGraph(State)
    g.add_node("decide", node)
    for name in ("ci", "web", "person"):
        g.add_node(name, lambda state, name=name: {"went": name})
        g.add_edge(name, END)
    g.add_edge(START, "decide")
    if edge is not None:
        g.add_conditional_edges("decide", edge, ["ci", "web", "person"])
    return g.compile(checkpointer=saver)


def edge(**given: Any) -> Any:
    return flide_edge("team", {"ci": "ci", "web": "web"}, fallback="person", **given)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("answers", "went"),
    [({"ci": 0.9, "web": 0.1}, "ci"), ({"ci": 0.05, "web": 0.95}, "web"), ({"ci": 0.55, "web": 0.45}, "person")],
)
def test_a_node_decides_and_an_edge_reads(mode: str, answers: Any, went: str) -> None:
    fake = FakeFlide({"team": answers})
    g = graph(flide_node(WHICH, decisions=fake.model(), min_confidence={"team": 0.3}), edge())
    found = g.invoke(says("Red build.")) if mode == "sync" else asyncio.run(g.ainvoke(says("Red build.")))
    assert found["went"] == went
    assert found["decision"]["answers"]["team"]["verdict"] == ("ok" if went != "person" else "abstain")
    assert len(fake.dispatches) == 1


def test_an_edge_is_pure_and_never_fails() -> None:
    go = edge(min_confidence=0.5)
    ok = {"label": "ci", "verdict": "ok", "confidence": 0.9}
    assert go({"decision": {"status": "ok", "answers": {"team": ok}}}) == "ci"
    states: list[Any] = [
        {},
        {"decision": None},
        {"decision": {"status": "timeout", "answers": {}}},
        {"decision": {"status": "ok", "answers": {"team": ok | {"label": "unknown"}}}},
        {"decision": {"status": "ok", "answers": {"team": ok | {"confidence": 0.1}}}},
    ]
    assert [go(s) for s in states] == ["person"] * len(states)


def test_outage_low_confidence_and_mistakes() -> None:
    down = flide_node(WHICH, decisions=FakeFlide(fail_with=httpx.ConnectError("down")).model())
    found = graph(down, edge()).invoke(says("Red."))
    assert (found["went"], found["decision"]) == ("person", {"status": "unavailable", "answers": {}})
    unsure = FakeFlide({"team": {"ci": 0.5, "web": 0.5}})
    with pytest.raises(FlideServiceError, match="team"):
        graph(flide_node(WHICH, decisions=unsure.model(), min_confidence=0.3, low_confidence="error"), edge()).invoke(
            says("Red.")
        )
    g = graph(
        flide_node(WHICH, decisions=unsure.model(), min_confidence=0.3, low_confidence="interrupt"), edge(), InMemorySaver()
    )
    assert "__interrupt__" in g.invoke(says("Red."), thread("low"))
    assert g.invoke(Command(resume={"team": "web"}), thread("low"))["went"] == "web"
    with pytest.raises(FlideQuestionError, match=r"questions\.q\.instructions"):
        flide_node({"q": Noul(instructions="")})
    with pytest.raises(FlideQuestionError, match="criteria"):
        flide_route({"a": "a"}, instructions="x", criteria={"b": "y"}, fallback="a")
    with pytest.raises(FlideQuestionError, match="on_block"):
        firewall_tool_node([], GuardPolicy(questions=RISKY, on_block="end"))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_route_node_goes_by_command(mode: str) -> None:
    for p, went in ((0.9, "ci"), (0.5, "person")):
        node = flide_route(
            {"ci": "ci", "web": "web"},
            instructions="Which team?",
            fallback="person",
            min_confidence=0.2,
            decisions=FakeFlide({"route": {"ci": p, "web": 1 - p}}).model(),
        )
        g = graph(node, None)
        found = g.invoke(says("Red.")) if mode == "sync" else asyncio.run(g.ainvoke(says("Red.")))
        assert found["went"] == went
        assert found["decision"]["answers"]["route"]["p"] == p


def test_real_service_writes_plain_state_that_a_checkpointer_keeps(url: str) -> None:
    node = flide_node(WHICH | RISKY, decisions=FlideDecisionModel(base_url=url, timeout=60))
    g = graph(node, edge(), InMemorySaver())
    g.invoke(says("The build is red. " * 40), thread("node"))
    g.invoke(says("And the page is blank."), thread("node"))
    decision = g.get_state(thread("node")).values["decision"]
    assert decision["reuse"]["reason"] == "append"
    assert decision["reuse"]["m"] > 0
    assert set(decision["answers"]) == {"team", "risky"}


def firewall(fake_or_url: Any, body: Body, policy: GuardPolicy) -> Any:
    decisions = (
        fake_or_url.model() if isinstance(fake_or_url, FakeFlide) else FlideDecisionModel(base_url=fake_or_url, timeout=60)
    )
    g = StateGraph(State)
    g.add_node("tools", firewall_tool_node(body.tools("rm", "ls", "cat"), policy, decisions=decisions))
    g.add_edge(START, "tools")
    g.add_edge("tools", END)
    return g.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_firewall_judges_parallel_calls_in_one_dispatch(mode: str) -> None:
    fake, body = FakeFlide(lambda asked: 0.9 if asked.call and asked.call[0] == "rm" else 0.1, latency=0.02), Body()
    g = firewall(fake, body, GuardPolicy(questions=RISKY, exempt=["cat"]))
    message = {"messages": [HumanMessage("Go."), calling(call("rm"), call("ls"), call("ls", arg="x"), call("cat"))]}
    found = g.invoke(message, thread("f")) if mode == "sync" else asyncio.run(g.ainvoke(message, thread("f")))
    assert len(fake.dispatches) == 1
    assert sorted(body.ran) == [("cat", ""), ("ls", ""), ("ls", "x")]
    assert [m.status for m in results(found["messages"])] == ["error", "success", "success", "success"]


def test_a_firewall_interrupts_and_asks_once(url: str) -> None:
    fake, body = FakeFlide({"risky": 0.6}), Body()
    g = firewall(fake, body, GuardPolicy(questions=RISKY))
    assert "__interrupt__" in g.invoke({"messages": [HumanMessage("Go."), calling(call("rm"))]}, thread("i"))
    g.invoke(Command(resume={"type": "approve"}), thread("i"))
    assert len(fake.dispatches) == 1
    assert body.ran == [("rm", "")]
    g = firewall(url, body, GuardPolicy(questions=RISKY, block_at=0.0))
    found = g.invoke({"messages": [HumanMessage("Go."), calling(call("ls"), call("rm"))]}, thread("real"))
    assert [m.status for m in results(found["messages"])] == ["error", "error"]
    assert body.ran == [("rm", "")]


class PydanticState(BaseModel):
    messages: Annotated[list[Any], add_messages] = []
    frozen: bool = False


@dataclass
class DataState:
    messages: Annotated[list[Any], add_messages] = field(default_factory=list)
    frozen: bool = False


class DictState(State, total=False):
    frozen: bool


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("schema", [PydanticState, DataState, DictState])
@pytest.mark.parametrize("sent", [False, True], ids=["edge", "send"])
def test_a_firewall_reads_any_state_and_calls_that_are_sent_to_it(schema: Any, sent: bool, mode: str) -> None:
    """The model judges by the history before the calls, and rules by another field of the state."""

    def frozen(proposed: ProposedCall) -> Any:
        return "block" if proposed.state["frozen"] and proposed.name == "ls" else None

    fake, body = FakeFlide(lambda asked: 0.99 if asked.call and asked.call[0] == "rm" else 0.0), Body()
    policy = GuardPolicy(questions=RISKY, rules=[frozen])
    calls = [call("rm"), call("ls"), call("cat")]
    g = StateGraph(schema)
    g.add_node("tools", firewall_tool_node(body.tools("rm", "ls", "cat"), policy, decisions=fake.model()))
    g.add_conditional_edges(START, lambda state: [Send("tools", calls)] if sent else "tools", ["tools"])
    g.add_edge("tools", END)
    given = {"messages": [HumanMessage("Go."), calling(*calls)], "frozen": True}
    found = g.compile().invoke(given) if mode == "sync" else asyncio.run(g.compile().ainvoke(given))
    assert body.ran == [("cat", "")]
    assert [m.status for m in results(found["messages"])] == ["error", "error", "success"]
    (dispatch,) = fake.dispatches
    assert [m["content"] for m in dispatch.messages or []] == ["Go."]
    assert list(dispatch.candidates) == ["call-1", "call-3"]
