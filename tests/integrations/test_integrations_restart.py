"""What was decided holds over a restart: other instances of agent, middleware and node on the same checkpointer."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from integration_agents import RISKY, Body, agent, calling, results, says, thread, unanswered
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.decisions import Choice
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_flide import (
    FailPolicy,
    FlideMiddleware,
    GuardPolicy,
    ProposedCall,
    firewall_tool_node,
    flide_edge,
    flide_node,
    flide_when,
)
from langchain_flide.testing import FakeFlide, call
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Command

REJECT = {"type": "reject", "message": "no"}
DOWN = httpx.ConnectError("down")


def edit(arg: str) -> dict[str, Any]:
    return {"type": "edit", "edited_action": {"name": "rm", "args": {"arg": arg}}}


def run(graph: Any, given: Any, config: Any, mode: str) -> Any:
    return graph.invoke(given, config) if mode == "sync" else asyncio.run(graph.ainvoke(given, config))


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]


class Decided(State, total=False):
    decision: dict[str, Any]


def firewall(fake: FakeFlide, body: Body, saver: Any, **policy: Any) -> Any:
    guard = GuardPolicy(**{"questions": RISKY} | policy)
    g = StateGraph(State)
    g.add_node("tools", firewall_tool_node(body.tools("rm", "ls"), guard, decisions=fake.model()))
    g.add_edge(START, "tools")
    g.add_edge("tools", END)
    return g.compile(checkpointer=saver)


def guarded(fake: FakeFlide, body: Body, saver: Any, *before: Any, policy: Any = None, **given: Any) -> Any:
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(**{"questions": RISKY} | (policy or {})), **given)

    def say(messages: list[Any]) -> Any:
        return "Done." if isinstance(messages[-1], ToolMessage) else calling(call("rm", arg="build"))

    return agent(say, body.tools("rm", "ls"), *before, judge, saver=saver)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("decision", "ran"), [(REJECT, []), ({"type": "approve"}, [("rm", "x")])])
def test_a_firewall_remembers_what_it_asked_a_person(mode: str, decision: Any, ran: Any) -> None:
    saver, body, config = InMemorySaver(), Body(), thread("firewall")
    asking = FakeFlide({"risky": 0.6})
    message = {"messages": [HumanMessage("Go."), calling(call("rm", arg="x"))]}
    assert "__interrupt__" in run(firewall(asking, body, saver), message, config, mode)
    assert len(asking.dispatches) == 1
    lenient = FakeFlide({"risky": 0.0})  # it would allow the call now
    found = run(firewall(lenient, body, saver), Command(resume=decision), config, mode)
    assert body.ran == ran
    assert lenient.requests == 0
    assert unanswered(found["messages"]) == set()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_no_body_of_a_firewall_runs_before_the_last_review(mode: str) -> None:
    fake = FakeFlide(lambda asked: 0.6 if asked.call and asked.call[0] == "rm" else 0.0)
    for i in range(10):  # answers by number and threads in any order would swap some of them
        saver, body, config = InMemorySaver(), Body(), thread(f"several-{i}")
        message = {"messages": [HumanMessage("Go."), calling(call("ls"), call("rm", arg="1"), call("rm", arg="2"))]}
        (first,) = run(firewall(fake, body, saver), message, config, mode)["__interrupt__"]
        (second,) = run(firewall(fake, body, saver), Command(resume={"type": "approve"}), config, mode)["__interrupt__"]
        assert (first.value["args"], second.value["args"], body.ran) == ({"arg": "1"}, {"arg": "2"}, [])
        found = run(firewall(fake, body, saver), Command(resume=REJECT), config, mode)
        assert sorted(body.ran) == [("ls", ""), ("rm", "1")]
        assert [m.status for m in results(found["messages"])] == ["success", "success", "error"]
    assert len(fake.dispatches) == 10


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_rejection_wins_over_whatever_a_new_process_would_say(mode: str) -> None:
    saver, body, config = InMemorySaver(), Body(), thread("rejected")
    assert "__interrupt__" in run(guarded(FakeFlide({"risky": 0.6}), body, saver), says("Clean."), config, mode)
    lenient = FakeFlide({"risky": 0.0})
    policy = {"review_at": 0.99, "block_at": None, "on_review": "allow"}
    changed = guarded(lenient, body, saver, policy=policy, system="Another prompt.")
    found = run(changed, Command(resume=REJECT), config, mode)
    assert body.ran == []
    assert lenient.requests == 0
    assert unanswered(found["messages"]) == set()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_edit_in_an_outage_is_shown_again_and_its_rejection_holds_over_a_restart(mode: str) -> None:
    saver, body, config = InMemorySaver(), Body(), thread("edit")
    down = FakeFlide(fail_with=DOWN)
    run(guarded(down, body, saver), says("Clean."), config, mode)
    (again,) = run(guarded(down, body, saver), Command(resume=edit("/")), config, mode)["__interrupt__"]
    assert again.value["args"] == {"arg": "/"}
    assert "No decision" in again.value["description"]
    back = FakeFlide({"risky": 0.0})
    found = run(guarded(back, body, saver), Command(resume=REJECT), config, mode)
    assert body.ran == []
    assert back.requests == 0
    assert unanswered(found["messages"]) == set()


@pytest.mark.parametrize(
    ("risk", "edits", "ran"), [("read", "/", [("rm", "/")]), ("irreversible", "/", []), ("read", "forbidden", [])]
)
def test_an_edit_in_an_outage_follows_risk_and_rules(risk: Any, edits: str, ran: Any) -> None:
    def rule(proposed: ProposedCall) -> Any:
        return "block" if proposed.args["arg"] == "forbidden" else None

    saver, body, config = InMemorySaver(), Body(), thread("risk")
    fake = FakeFlide({"risky": 0.6})
    acts = guarded(fake, body, saver, policy={"risk": {"rm": risk}, "rules": [rule]})
    acts.invoke(says("Clean."), config)
    fake.fail_with = DOWN
    found = acts.invoke(Command(resume=edit(edits)), config)
    assert "__interrupt__" not in found
    assert body.ran == ran


@pytest.mark.parametrize(("decision", "ran"), [({"type": "approve"}, [("rm", "/")]), (REJECT, [])])
def test_an_edit_in_human_in_the_loop_in_an_outage_is_not_taken_as_judged(decision: Any, ran: Any) -> None:
    saver, body, config = InMemorySaver(), Body(), thread("hitl")
    fake = FakeFlide({"risky": 0.6})
    human = HumanInTheLoopMiddleware(interrupt_on={"rm": {"allowed_decisions": ["approve", "edit"], "when": flide_when()}})
    acts = guarded(fake, body, saver, human, policy={"on_review": "allow"})
    acts.invoke(says("Clean."), config)
    fake.fail_with = DOWN
    (asked,) = acts.invoke(Command(resume={"decisions": [edit("/")]}), config)["__interrupt__"]
    assert (asked.value["type"], asked.value["args"], body.ran) == ("tool_approval", {"arg": "/"}, [])
    acts.invoke(Command(resume=decision), config)
    assert body.ran == ran


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("answer", [{"team": "web"}, "web", {"team": "nobody"}])
def test_a_persons_answer_to_an_unsure_node_holds_over_a_restart(answer: Any, mode: str) -> None:
    def graph(fake: FakeFlide) -> Any:
        team: Any = {"team": Choice(instructions="Which team?", criteria={"ci": "Builds.", "web": "Pages."})}
        g = StateGraph(Decided)
        g.add_node("decide", flide_node(team, decisions=fake.model(), min_confidence=0.3, low_confidence="interrupt"))
        g.add_edge(START, "decide")
        g.add_edge("decide", END)
        return g.compile(checkpointer=saver)

    saver, config = InMemorySaver(), thread("unsure")
    assert "__interrupt__" in run(graph(FakeFlide({"team": {"ci": 0.5, "web": 0.5}})), says("Red."), config, mode)
    sure = FakeFlide({"team": "ci"})
    found = run(graph(sure), Command(resume=answer), config, mode)
    assert sure.requests == 0
    went = flide_edge("team", {"ci": "ci", "web": "web"}, fallback="person")(found)
    assert went == ("web" if answer == {"team": "web"} else "person")


def history_matters(asked: Any) -> float:
    return 0.0 if asked.messages[0]["content"] == "Remove it." else 0.95


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_edited_history_has_no_verdict_yet(mode: str) -> None:
    saver, body, config = InMemorySaver(), Body(), thread("edited")
    fake = FakeFlide(history_matters)
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY))
    acts = agent([calling(call("rm")), "Done."], body.tools("rm"), judge, saver=saver, interrupt_before=["tools"])
    run(acts, says("Remove it."), config, mode)
    (asked, *_) = acts.get_state(config).values["messages"]
    acts.update_state(config, {"messages": [HumanMessage("Keep it.", id=asked.id)]})
    run(acts, None, config, mode)
    assert len(fake.dispatches) == 2
    assert body.ran == []


def test_a_firewall_tells_histories_apart_that_have_the_same_ids() -> None:
    fake, body = FakeFlide(history_matters), Body()
    g = firewall(fake, body, None)
    for text in ("Remove it.", "Keep it."):
        messages = [HumanMessage(text, id="h"), AIMessage("I act.", tool_calls=[call("rm", id="c")], id="a")]
        g.invoke({"messages": messages}, thread("same"))
    assert len(fake.dispatches) == 2
    assert len(body.ran) == 1


@pytest.mark.parametrize("p", [0.0, 0.75])
def test_rules_see_the_state_as_it_is_when_the_call_runs(p: float) -> None:
    class Frozen(State, total=False):
        frozen: bool

    def rule(proposed: ProposedCall) -> Any:
        return "block" if proposed.state.get("frozen") else None

    fake, body, config = FakeFlide({"risky": p}), Body(), thread("frozen")
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY, rules=[rule], review_at=0.7))
    acts = agent(
        [calling(call("rm")), "Done."],
        body.tools("rm"),
        judge,
        saver=InMemorySaver(),
        interrupt_before=["tools"],
        state_schema=Frozen,
    )
    acts.invoke(says("Go."), config)
    acts.update_state(config, {"frozen": True})
    found = acts.invoke(None, config)
    assert body.ran == []
    assert results(found["messages"])[0].status == "error"
    assert len(fake.dispatches) == 1  # the verdict still stands; the rule needs no network


def test_a_call_that_surrogates_do_not_hide_keeps_its_verdict_over_a_checkpoint() -> None:
    """Checkpointers cannot write a lone surrogate; the call must still be found as the one that a person was asked about."""
    saver, body, config = InMemorySaver(), Body(), thread("half")
    fake = FakeFlide({"risky": 0.6})
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY), fail=FailPolicy())
    acts = agent([calling(call("rm", arg="x\ud800"), text="I \udfff act."), "Done."], body.tools("rm"), judge, saver=saver)
    acts.invoke(says("Go \ud800."), config)
    fake.answers = {"risky": 0.0}
    acts.invoke(Command(resume=REJECT), config)
    assert body.ran == []
    assert len(fake.dispatches) == 1
