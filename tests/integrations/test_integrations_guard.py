"""The guard inside `create_agent`, against a real service: bodies, dispatches, reviews, edits, outages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from integration_agents import ALWAYS, NEVER, REVIEW, RISKY, Body, agent, calling, results, says, thread, unanswered
from langchain.agents.middleware import AutoModeMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage
from langchain_flide import (
    FailPolicy,
    FlideDecisionModel,
    FlideMiddleware,
    GuardPolicy,
    flide_when,
)
from langchain_flide.testing import FakeFlide, call
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from service_process import Running


class Counting:
    """How many requests reached the engine of a real service since it was made."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.start = self._now()

    def _now(self) -> int:
        return int(httpx.get(f"{self.url}/v1/stats").json()["engine"]["requests"])

    def __int__(self) -> int:
        return self._now() - self.start


def model(url: str) -> FlideDecisionModel:
    return FlideDecisionModel(base_url=url, timeout=60)


def guard(**given: Any) -> GuardPolicy:
    return GuardPolicy(**{"questions": RISKY, "block_at": None, "review_at": None} | given)


def guarded(url: str, **given: Any) -> FlideMiddleware:
    return FlideMiddleware(decisions=model(url), guard=guard(**given), fail=FailPolicy(timeout=60))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_blocked_body_never_runs(url: str, mode: str) -> None:
    body = Body()
    acts = agent([calling(call("rm"), call("ls")), "Done."], body.tools("rm", "ls"), guarded(url, per_tool={"rm": ALWAYS}))
    found = acts.invoke(says("Clean up.")) if mode == "sync" else asyncio.run(acts.ainvoke(says("Clean up.")))
    assert [name for name, _ in body.ran] == ["ls"]
    blocked, ran = results(found["messages"])
    assert (blocked.status, ran.status) == ("error", "success")
    assert "not allowed" in blocked.text
    assert not any(c.isdigit() for c in blocked.text)  # no probability to probe
    assert "flide" not in found


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_three_parallel_calls_cost_one_dispatch(url: str, mode: str) -> None:
    body, events = Body(), []
    watching = FlideMiddleware(
        decisions=model(url), guard=guard(block_at=1.0), fail=FailPolicy(timeout=60), on_decision=events.append
    )
    acts = agent([calling(call("a", arg="1"), call("b", arg="2"), call("a", arg="3")), "Done."], body.tools("a", "b"), watching)
    asked = Counting(url)
    if mode == "sync":
        acts.invoke(says("Go."))
    else:
        asyncio.run(acts.ainvoke(says("Go.")))
    assert int(asked) == 1
    assert sorted(body.ran) == [("a", "1"), ("a", "3"), ("b", "2")]
    assert [(e.tool, e.status) for e in events] == [("a", "ok"), ("b", "ok"), ("a", "ok")]
    assert len({e.data["p"]["risky"] for e in events}) == 3  # each call was judged as itself
    assert all(not e.untrained and e.data["before"] == events[0].data["before"] for e in events)


@pytest.mark.parametrize(
    ("decision", "runs", "status"), [("approve", True, "success"), ("reject", False, "error"), ("respond", False, "success")]
)
def test_interrupt_and_resume_ask_once(url: str, decision: str, runs: bool, status: str) -> None:
    body = Body()
    acts = agent(
        [calling(call("rm", arg="build")), "Done."], body.tools("rm"), guarded(url, review_at=0.0), saver=InMemorySaver()
    )
    asked, config = Counting(url), thread(f"resume-{decision}")
    (waiting,) = acts.invoke(says("Clean up."), config)["__interrupt__"]
    assert body.ran == []
    assert {k: waiting.value[k] for k in ("type", "name", "args")} == {
        "type": "tool_approval",
        "name": "rm",
        "args": {"arg": "build"},
    }
    found = acts.invoke(Command(resume={"type": decision, "message": "said"}), config)
    assert int(asked) == 1
    assert bool(body.ran) == runs
    (message,) = results(found["messages"])
    assert message.status == status
    assert runs or "said" in message.text


def test_no_answer_of_a_reviewer_is_no_approval(url: str) -> None:
    body = Body()
    for i, answer in enumerate([{"type": None}, "yes", {"type": "sure"}, {"decisions": []}]):
        config = thread(f"answer-{i}")
        acts = agent([calling(call("rm")), "Done."], body.tools("rm"), guarded(url, review_at=0.0), saver=InMemorySaver())
        acts.invoke(says("Clean up."), config)
        found = acts.invoke(Command(resume=answer), config)
        assert body.ran == []
        assert results(found["messages"])[0].status == "error"


@pytest.mark.parametrize("interrupt_mode", ["batched", "per_call"])
def test_with_human_in_the_loop_only_the_risky_call_is_reviewed_and_asked_once(url: str, interrupt_mode: Any) -> None:
    body = Body()
    on: Any = {n: {"allowed_decisions": ["approve", "edit", "reject"], "when": flide_when()} for n in ("rm", "ls")}
    human = HumanInTheLoopMiddleware(interrupt_on=on, interrupt_mode=interrupt_mode)
    judge = guarded(url, per_tool={"rm": REVIEW, "ls": NEVER}, on_review="allow")
    acts = agent(
        [calling(call("rm", arg="x"), call("ls")), "Done."], body.tools("rm", "ls"), human, judge, saver=InMemorySaver()
    )
    asked, config = Counting(url), thread(f"hitl-{interrupt_mode}")
    (waiting,) = acts.invoke(says("Clean up."), config)["__interrupt__"]
    answer = {"type": "approve"}
    acts.invoke(Command(resume={"decisions": [answer]} if interrupt_mode == "batched" else {waiting.id: answer}), config)
    assert int(asked) == 1
    assert sorted(name for name, _ in body.ran) == ["ls", "rm"]


@pytest.mark.parametrize("interrupt_mode", ["batched", "per_call"])
@pytest.mark.parametrize("edit_is_blocked", [True, False])
def test_a_human_edited_call_is_judged_anew(interrupt_mode: Any, edit_is_blocked: bool) -> None:
    fake = FakeFlide(lambda asked: 0.0 if asked.call is None else (0.95 if asked.call[1]["arg"] == "/" else 0.6))
    body = Body()
    on: Any = {"rm": {"allowed_decisions": ["approve", "edit", "reject"], "when": flide_when()}}
    human = HumanInTheLoopMiddleware(interrupt_on=on, interrupt_mode=interrupt_mode)
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY, on_review="allow"))
    acts = agent([calling(call("rm", arg="build")), "Done."], body.tools("rm"), human, judge, saver=InMemorySaver())
    config = thread("edit")
    (waiting,) = acts.invoke(says("Clean up."), config)["__interrupt__"]
    to = "/" if edit_is_blocked else "dist"
    edit = {"type": "edit", "edited_action": {"name": "rm", "args": {"arg": to}}}
    found = acts.invoke(Command(resume={"decisions": [edit]} if interrupt_mode == "batched" else {waiting.id: edit}), config)
    assert len(fake.dispatches) == 2
    assert fake.dispatches[1].messages == fake.dispatches[0].messages  # the same history, another candidate
    assert body.ran == ([] if edit_is_blocked else [("rm", "dist")])
    assert results(found["messages"])[0].status == ("error" if edit_is_blocked else "success")


def test_an_edit_in_our_own_review_is_judged_anew_and_cannot_change_the_tool(url: str) -> None:
    body = Body()
    saver = InMemorySaver()
    acts = agent([calling(call("rm", arg="a")), "Done."], body.tools("rm", "ls"), guarded(url, review_at=0.0), saver=saver)
    asked, config = Counting(url), thread("own-edit")
    acts.invoke(says("Clean up."), config)
    acts.invoke(Command(resume={"type": "edit", "edited_action": {"name": "rm", "args": {"arg": "b"}}}), config)
    assert body.ran == [("rm", "b")]
    assert int(asked) == 2
    acts = agent([calling(call("rm", arg="a")), "Done."], body.tools("rm", "ls"), guarded(url, review_at=0.0), saver=saver)
    acts.invoke(says("Clean up."), thread("swap"))
    acts.invoke(Command(resume={"type": "edit", "edited_action": {"name": "ls", "args": {}}}), thread("swap"))
    assert body.ran == [("rm", "b")]


def test_placed_first_a_missing_verdict_means_review() -> None:
    fake, body = FakeFlide({"risky": 0.1}), Body()
    on: Any = {"ls": {"allowed_decisions": ["approve"], "when": flide_when()}}
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY, on_review="allow"))
    acts = agent(
        [calling(call("ls")), "Done."],
        body.tools("ls"),
        judge,
        HumanInTheLoopMiddleware(interrupt_on=on),
        saver=InMemorySaver(),
    )
    assert "__interrupt__" in acts.invoke(says("Go."), thread("order"))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_outage_in_the_middle_follows_the_fail_policy(tmp_path: Path, mode: str) -> None:
    server = Running(tmp_path / "store").wait()
    body = Body()

    def script(messages: list[Any]) -> Any:
        if len(messages) == 1:
            return calling(call("look"))
        if len(messages) == 3:
            server.kill()
            return calling(call("look"), call("write"), call("drop"), call("other"))
        return "Done."

    judge = FlideMiddleware(
        decisions=FlideDecisionModel(base_url=server.url, timeout=60),
        guard=guard(risk={"look": "read", "write": "write", "drop": "irreversible"}, block_at=1.0, on_review="block"),
        fail=FailPolicy(timeout=30),
    )
    acts = agent(script, body.tools("look", "write", "drop", "other"), judge)
    found = acts.invoke(says("Go.")) if mode == "sync" else asyncio.run(acts.ainvoke(says("Go.")))
    assert unanswered(found["messages"]) == set()
    assert [name for name, _ in body.ran] == ["look", "look"]
    assert [(m.name, m.status) for m in results(found["messages"])[1:]] == [
        ("look", "success"),
        ("write", "error"),
        ("drop", "error"),
        ("other", "error"),
    ]


def test_a_review_for_want_of_an_answer_is_kept_over_the_resume() -> None:
    fake, body = FakeFlide({"risky": 0.0}, fail_with=httpx.ConnectError("down")), Body()
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY))
    acts = agent([calling(call("rm")), "Done."], body.tools("rm"), judge, saver=InMemorySaver())
    assert "__interrupt__" in acts.invoke(says("Go."), thread("t"))
    fake.fail_with = None  # back, and it would allow the call: the person's word counts
    acts.invoke(Command(resume={"type": "reject"}), thread("t"))
    assert body.ran == []
    assert fake.requests == 1


def test_a_slow_service_is_an_outage_at_the_deadline_and_the_breaker_opens(caplog: pytest.LogCaptureFixture) -> None:
    fake, body, events = FakeFlide(latency=5), Body(), []
    judge = FlideMiddleware(
        decisions=fake.model(),
        guard=GuardPolicy(questions=RISKY, risk={"ls": "read"}),
        fail=FailPolicy(timeout=0.1, breaker=(2, 60)),
        on_decision=events.append,
    )
    acts = agent([calling(call("ls"))] * 4 + ["Done."], body.tools("ls"), judge)
    acts.invoke(says("Go."))
    assert len(body.ran) == 4
    assert [e.status for e in events] == ["timeout", "timeout", "unavailable", "unavailable"]
    assert fake.requests == 0  # two timed out before the fake answered, two were never sent
    assert len([r for r in caplog.records if r.name == "langchain_flide"]) == 1


def test_stock_auto_mode_works_on_the_decision_model(url: str) -> None:
    body = Body()
    auto = AutoModeMiddleware(tools=["rm"], classifier=model(url))
    found = agent([calling(call("rm"), call("ls")), "Done."], body.tools("rm", "ls"), auto).invoke(says("Clean up."))
    assert unanswered(found["messages"]) == set()
    assert ("ls", "") in body.ran


def test_history_the_guard_sees_is_the_one_before_the_call() -> None:
    fake, body = FakeFlide({"risky": 0.0}), Body()
    judge = FlideMiddleware(decisions=fake.model(), guard=GuardPolicy(questions=RISKY), system="Be careful.")
    agent([calling(call("ls", arg="x"), text="Looking."), calling(call("rm")), "Done."], body.tools("ls", "rm"), judge).invoke(
        {"messages": [HumanMessage([{"type": "text", "text": "Go."}])]}
    )
    first, second = fake.dispatches
    assert first.messages == [{"role": "system", "content": "Be careful."}, {"role": "user", "content": "Go."}]
    made = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": '{"arg":"x"}'}}
    assert first.candidates == {"call-1": [{"role": "assistant", "content": "", "tool_calls": [made]}]}
    assert (second.messages or [])[2:] == [
        {"role": "assistant", "content": "Looking.", "tool_calls": [made]},
        {"role": "tool", "content": "done x", "name": "ls", "tool_call_id": "1"},
    ]
