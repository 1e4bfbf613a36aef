"""What a guard's policy says is what happens: rules, thresholds, blocks, shadow mode, mistakes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from integration_agents import RISKY, Body, agent, calling, results, says, thread, unanswered
from langchain_core.decisions import Choice, Noul
from langchain_flide import (
    FlideBlocked,
    FlideMiddleware,
    GuardPolicy,
    ProposedCall,
)
from langchain_flide.errors import FlideAuthenticationError, FlideQuestionError
from langchain_flide.testing import FakeFlide, call
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command


def test_rules_come_first_and_are_only_made_stricter() -> None:
    fake, body = FakeFlide(lambda asked: 0.9 if asked.call and asked.call[0] == "c" else 0.0), Body()

    def no_root(proposed: ProposedCall) -> Any:
        return "block" if proposed.args.get("arg") == "/" else "allow"

    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY, rules=[no_root]))
    acts = agent(
        [calling(call("a", arg="/"), call("b"), call("c")), calling(call("a", arg="/")), "Done."],
        body.tools("a", "b", "c"),
        judge,
    )
    found = acts.invoke(says("Go."))
    assert [name for name, _ in body.ran] == ["b"]  # a: by the rule; c: the rule allows, the model blocks
    assert list(fake.dispatches[0].candidates) == ["call-2", "call-3"]
    assert len(fake.dispatches) == 1  # the second message needs no answer
    assert len(results(found["messages"])) == 4


def test_exempt_and_unlisted_tools_are_not_asked_about() -> None:
    fake, body = FakeFlide(), Body()
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY, tools=["rm", "ls"], exempt=["ls"]))
    agent([calling(call("ls"), call("cat")), "Done."], body.tools("rm", "ls", "cat"), judge).invoke(says("Go."))
    assert fake.dispatches == []
    assert len(body.ran) == 2


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("on_block", ["end", "raise"])
@pytest.mark.parametrize("late", [False, True], ids=["proposed", "edited"])
def test_a_block_that_ends_or_raises_leaves_every_call_answered(on_block: Any, late: bool, mode: str) -> None:
    """late: a person's edit is what is blocked, when the run is past the step in which proposals are judged."""

    def judged(asked: Any) -> float:
        return 0.0 if not asked.call or asked.call[0] == "ls" else {"/": 0.99, "build": 0.6}[asked.call[1]["arg"]]

    fake, body, config = FakeFlide(judged), Body(), thread("block")
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY, on_block=on_block))
    script = [calling(call("rm", arg="build" if late else "/"), call("ls")), "Again."]
    acts = agent(script, body.tools("rm", "ls"), judge, saver=InMemorySaver())

    def go(given: Any) -> Any:
        return acts.invoke(given, config) if mode == "sync" else asyncio.run(acts.ainvoke(given, config))

    given: Any = says("Go.")
    if late:
        assert "__interrupt__" in go(given)
        given = Command(resume={"type": "edit", "edited_action": {"name": "rm", "args": {"arg": "/"}}})
    if on_block == "raise":
        with pytest.raises(FlideBlocked) as caught:
            go(given)
        assert caught.value.tool == "rm"
    else:
        assert go(given)["messages"][-1].text == judge.guard.policy.block_text
    kept = acts.get_state(config).values["messages"]
    assert unanswered(kept) == set()
    assert [m.status for m in results(kept)] == ["error", "success" if late else "error"]
    assert [name for name, _ in body.ran] == (["ls"] if late else [])  # what had been let through before the edit
    found = go(says("And now?"))  # the thread is of use, and the old block ends nothing any more
    assert found["messages"][-1].text == "Again."


def test_shadow_records_and_changes_nothing() -> None:
    fake, body, events = FakeFlide({"risky": 0.99}), Body(), []
    judge = FlideMiddleware(
        decisions=fake.model(), guard=GuardPolicy(questions=RISKY), mode="shadow", on_decision=events.append
    )
    agent([calling(call("rm")), "Done."], body.tools("rm"), judge).invoke(says("Go."))
    assert len(body.ran) == 1
    assert [(e.status, e.enforced, e.data["action"]) for e in events] == [("shadow", False, "block")]


def test_choices_and_low_confidence() -> None:
    kind = {"kind": Choice(instructions="What is it?", criteria={"safe": None, "leak": None, "loss": None})}
    policy = GuardPolicy(questions=kind, block_at={"leak": 0.6}, review_at={"loss": 0.6}, min_confidence=0.2, on_review="block")
    body = Body()
    probabilities = [{"leak": 0.7, "safe": 0.3}, {"safe": 0.9, "loss": 0.1}, {"safe": 0.4, "leak": 0.3, "loss": 0.3}]
    fake = FakeFlide([{"kind": p} for p in probabilities])
    judge = FlideMiddleware(decisions=fake.model(), guard=policy)
    agent([calling(call("t", arg=str(i))) for i in range(3)] + ["Done."], body.tools("t"), judge).invoke(says("Go."))
    assert body.ran == [("t", "1")]


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"questions": {}}, "guard.questions"),
        ({"questions": {"q": Noul(instructions=" ")}}, "guard.questions.q.instructions"),
        ({"block_at": 1.5}, "guard.block_at.risky"),
        ({"block_at": {"risky": 2}}, "guard.block_at.risky"),
        ({"per_tool": {"rm": {"block": 0.5}}}, "guard.per_tool.rm"),
        ({"risk": {"rm": "bad"}}, "guard.risk.rm"),
        ({"questions": {"c": Choice(instructions="x", criteria={"a": None, "b": None})}}, "guard.block_at.c"),
    ],
)
def test_mistakes_are_found_when_the_agent_is_built(given: Any, place: str) -> None:
    with pytest.raises(FlideQuestionError, match=place.replace(".", r"\.")):
        GuardPolicy(**{"questions": RISKY} | given)


def test_a_key_that_never_worked_is_a_mistake_not_an_outage() -> None:
    judge = FlideMiddleware(decisions=FakeFlide(fail_with=401).model(), guard=GuardPolicy(questions=RISKY))
    with pytest.raises(FlideAuthenticationError):
        agent([calling(call("rm")), "Done."], Body().tools("rm"), judge).invoke(says("Go."))
