"""Whole runs of agents against a real service: threads, forks, edits of the history, several event loops."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from integration_agents import (
    Body,
    Recorder,
    agent,
    best,
    calling,
    common,
    says,
    thread,
    tokens_of,
    watched,
)
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_flide.testing import call
from langgraph.checkpoint.memory import InMemorySaver

from flide_agent.client import Client

OUTPUT = "collected 12 items, 3 failed: test_slug, test_join, test_split. See the log for the details of each. " * 3


def test_two_threads_share_an_instance_without_mixing(url: str) -> None:
    events: list[Any] = []
    recorder = Recorder()
    shared = watched(url, recorder, on_decision=events.append)
    body = Body(OUTPUT)

    def say(messages: list[Any]) -> Any:
        turn = sum(isinstance(m, AIMessage) for m in messages)
        who = messages[0].text
        return calling(call("run", arg=f"{who} {turn}"), text=f"{who} does {turn}.") if turn < 5 else "Done."

    acts = agent(say, body.tools("run"), shared, saver=InMemorySaver())
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda who: acts.invoke(says(who), thread(who)), ["alice works on parsers. " * 9, "bob works on lexers. " * 9]
            )
        )
    for who in ("alice", "bob"):
        own = [(b, r["x_session"]) for b, r in recorder.steps if b["messages"][0]["content"].startswith(who)]
        assert len({s["id"] for _, s in own}) == 1
        assert not any(("bob" if who == "alice" else "alice") in str(b) for b, _ in own)
        assert [s["reason"] for _, s in own] == ["new", *["repeat", "append"] * 5]
        alone = agent(say, body.tools("run"), watched(url, again := Recorder()), saver=InMemorySaver())
        alone.invoke(says(own[0][0]["messages"][0]["content"]), thread(f"{who} alone"))
        answers = [
            (r["answers"], r.get("x_candidates")) for b, r in recorder.steps if b["messages"][0]["content"].startswith(who)
        ]
        assert answers == [(r["answers"], r.get("x_candidates")) for _, r in again.steps]


def test_a_fork_from_an_old_graph_checkpoint_resumes_from_the_shared_prefix(url: str) -> None:
    recorder = Recorder()

    def say(messages: list[Any]) -> Any:
        return "Done." if isinstance(messages[-1], ToolMessage) else calling(call("run", arg=messages[-1].text[:20]))

    acts = agent(say, Body(OUTPUT).tools("run"), watched(url, recorder), saver=InMemorySaver())
    config = thread("forked")
    acts.invoke(says("The first task is about slugs. " * 10), config)
    old = acts.get_state(config).config
    acts.invoke(says("The second task is about joins. " * 10), config)
    earlier = [tokens_of(m) for m in recorder.sent]
    acts.invoke(says("The other second task is about splits. " * 10), old)
    step, messages = recorder.reuse[len(earlier)], recorder.sent[len(earlier)]
    shared = tokens_of(messages)
    assert [len(m) for m in recorder.sent].count(len(messages)) > 1  # the same thread, the same number of messages
    before_fork = max(len(e) for e in earlier if common(shared, e) == len(e))
    assert step["m"] >= before_fork // 64 * 64 > 0
    assert step["reason"] in ("fork", "edit")
    assert step["id"] == recorder.reuse[0]["id"]
    follow = recorder.reuse[-1]
    assert follow["reason"] == "append"


def history(n: int) -> list[Any]:
    messages: list[Any] = [SystemMessage("You fix bugs. " * 10), HumanMessage("Fix the build, please.")]
    for i in range(n):
        messages += [
            calling(call("run", id=f"c{i}", arg=str(i)), text=f"Step {i}."),
            ToolMessage(f"{i}: {OUTPUT}", tool_call_id=f"c{i}", name="run"),
        ]
    return messages


def mutations(base: list[Any]) -> dict[str, list[Any]]:
    return {
        "append": [*base, HumanMessage("And?")],
        "edit first": [base[0], HumanMessage("Break the build."), *base[2:]],
        "edit middle": [*base[:5], base[5].model_copy(update={"content": "nothing"}), *base[6:]],
        "remove": [*base[:4], *base[6:]],
        "insert": [*base[:4], HumanMessage("Wait."), *base[4:]],
        "trim": base[-5:],
        "retry": [*base[:-1], base[-1].model_copy(update={"content": "passed"})],
        "summarised": [HumanMessage("Summary: it fails.", additional_kwargs={"lc_source": "summarization"}), *base[-4:]],
        "cleared": [m.model_copy(update={"content": "[cleared]"}) if isinstance(m, ToolMessage) else m for m in base[:-2]]
        + base[-2:],
        "truncated": base[:6],
        "system": [SystemMessage("You write poems."), *base[1:]],
        "orphan": [base[1], *base[3:]],
        "status": [*base[:-1], base[-1].model_copy(update={"status": "error"})],
        "other ids": [m.model_copy(update={"id": f"other-{i}"}) for i, m in enumerate(base)],
    }


class Cold:
    """Asks a service that has nothing stored what another was asked."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        """The reply to a whole history, in a session of its own that is deleted again with its checkpoints."""
        reply = httpx.post(f"{self.url}/v1/sessions/cold/decide", json=body, timeout=60).raise_for_status().json()
        with Client(self.url) as client:
            client.delete("cold")
            assert client.sessions() == []
        step = reply["x_session"]
        assert (step["m"], step["reason"], step["reused_tokens"]) == (0, "new", 0)
        found: dict[str, Any] = reply
        return found


def same_answers(warm: dict[str, Any], cold: dict[str, Any]) -> bool:
    """Bit for bit: JSON writes floats so that they read back as they were."""
    return (warm["answers"], warm.get("x_candidates")) == (cold["answers"], cold.get("x_candidates"))


STARTS_ANEW = {"edit first", "trim", "summarised", "system", "orphan"}
"""Mutations that leave less than one grid step of the history as it was."""


@pytest.mark.parametrize("name", list(mutations(history(5))))
def test_any_mutation_gives_a_cold_runs_answers(url: str, cold_url: str, name: str) -> None:
    """Through the middleware, watch and guard: a run on the history, and one on the mutated history in the same thread."""
    recorder, base = Recorder(), history(5)
    for messages in (base, mutations(base)[name]):
        acts = agent([calling(call("run", arg="now")), "Done."], Body(OUTPUT).tools("run"), watched(url, recorder))
        acts.invoke({"messages": messages}, thread(f"mutated {name}"))
    sent = [tokens_of(m) for m in recorder.sent]
    (first, warm), (_, guarded) = recorder.steps[3:5]
    assert len(recorder.steps) == 6
    assert guarded["x_candidates"]
    assert warm["x_session"]["id"] == recorder.steps[0][1]["x_session"]["id"]
    m = warm["x_session"]["m"]
    assert m <= best(sent[3], sent[:3])
    assert (m > 0) == (name not in STARTS_ANEW)
    assert guarded["x_session"]["m"] == len(sent[4]) // 64 * 64 > 0
    cold = Cold(cold_url)
    for body, reply in recorder.steps[3:]:
        assert same_answers(reply, cold(body))
    # The comparison can fail: other histories have other answers.
    if name != "other ids":
        assert not same_answers(warm, cold(recorder.steps[0][0] | {"questions": first["questions"]}))


def test_messages_removed_in_the_graph_give_a_cold_runs_answers(url: str, cold_url: str) -> None:
    recorder, config = Recorder(), thread("removal")
    acts = agent(lambda m: "Ok.", [], watched(url, recorder, system="You answer briefly. " * 20), saver=InMemorySaver())
    acts.invoke(says("one " * 100), config)
    acts.invoke(says("two " * 100), config)
    state = acts.get_state(config).values["messages"]
    acts.update_state(config, {"messages": [RemoveMessage(id=state[1].id), HumanMessage("ein " * 100, id=state[0].id)]})
    acts.invoke(says("three"), config)
    body, warm = recorder.steps[-1]
    assert [m["content"].split()[0] for m in body["messages"]] == ["You", "ein", "two", "Ok.", "three"]
    assert warm["x_session"]["reason"] == "edit"
    assert warm["x_session"]["m"] == best(tokens_of(body["messages"]), [tokens_of(m) for m in recorder.sent[:-1]]) > 0
    assert same_answers(warm, Cold(cold_url)(body))


def test_async_runs_in_several_event_loops(url: str) -> None:
    acts = agent(lambda m: "Ok.", [], watched(url), saver=InMemorySaver())
    for i in range(3):
        found = asyncio.run(acts.ainvoke(says(f"turn {i}"), thread("loops")))
        assert len(found["messages"]) == 2 * (i + 1)
