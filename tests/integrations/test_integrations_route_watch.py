"""Route and watch inside `create_agent`, and the parts below them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from integration_agents import RISKY, STUCK, Body, agent, calling, results, says, thread, unanswered
from langchain.agents.middleware import ModelChoice as StockChoice
from langchain.agents.middleware import ModelRouterMiddleware
from langchain_core.decisions import Choice, Noul, Score
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_flide import FlideDecisionModel, FlideMiddleware, GuardPolicy, ModelChoice, RoutePolicy, Watch
from langchain_flide.asking import Breaker
from langchain_flide.errors import FlideQuestionError
from langchain_flide.history import history_of, wire_message
from langchain_flide.testing import FakeFlide, ScriptedChat, call
from langgraph.checkpoint.memory import InMemorySaver


class Models:
    """A small and a large scripted chat, and which of them spoke."""

    def __init__(self, turns: int) -> None:
        self.spoke: list[str] = []
        self.turns = turns

    def chat(self, label: str) -> ScriptedChat:
        def say(messages: list[Any]) -> Any:
            self.spoke.append(label)
            return calling(call("ls")) if len(self.spoke) < self.turns else "Done."

        return ScriptedChat(say, label)

    def policy(self, **given: Any) -> RoutePolicy:
        choices = {label: ModelChoice(self.chat(label), f"{label} steps") for label in ("small", "large")}
        return RoutePolicy(**{"choices": choices, "instructions": "Which model?", "default": "large"} | given)


def routed(models: Models, fake: FakeFlide, saver: Any = None, **given: Any) -> Any:
    middleware = FlideMiddleware(decisions=fake.model(), route=models.policy(**given))
    return agent(models.chat("built in"), Body().tools("ls"), middleware, saver=saver)


def small(p: float) -> dict[str, Any]:
    return {"route": {"small": p, "large": 1 - p}}


def test_each_step_goes_to_the_model_that_the_answer_names() -> None:
    models, fake = Models(3), FakeFlide([small(0.9), small(0.1), small(0.8)])
    routed(models, fake).invoke(says("Go."))
    assert models.spoke == ["small", "large", "small"]
    assert len(fake.dispatches) == 3


def test_async_routes_too() -> None:
    models = Models(2)
    asyncio.run(routed(models, FakeFlide([small(0.9), small(0.1)])).ainvoke(says("Go.")))
    assert models.spoke == ["small", "large"]


def test_a_change_needs_its_margin_and_low_confidence_takes_the_default() -> None:
    models = Models(4)
    fake = FakeFlide([small(0.9), small(0.46), small(0.3), small(0.55)])
    routed(models, fake, switch_margin=0.2, min_confidence=0.0).invoke(says("Go."))
    assert models.spoke == ["small", "small", "large", "large"]
    models = Models(1)
    routed(models, FakeFlide([small(0.55)]), min_confidence=0.5).invoke(says("Go."))
    assert models.spoke == ["large"]


def test_no_answer_takes_the_default() -> None:
    models = Models(1)
    routed(models, FakeFlide(fail_with=httpx.ConnectError("down"))).invoke(says("Go."))
    assert models.spoke == ["large"]


@pytest.mark.parametrize(("every", "asked"), [("step", 6), ("turn", 2), ("run", 2)])
def test_how_often_it_is_asked(every: Any, asked: int) -> None:
    fake = FakeFlide([small(0.9), *[small(0.1)] * 9])
    models = Models(3)
    acts = routed(models, fake, saver=InMemorySaver(), every=every)
    acts.invoke(says("One."), thread("t"))
    models.spoke.clear()
    acts.invoke(says("Two."), thread("t"))
    assert len(fake.dispatches) == asked
    assert models.spoke == ["large"] * 3


def test_shadow_keeps_the_agents_own_model() -> None:
    models, events = Models(1), []
    middleware = FlideMiddleware(
        decisions=FakeFlide([small(0.9)]).model(), route=models.policy(), mode="shadow", on_decision=events.append
    )
    agent(models.chat("built in"), [], middleware).invoke(says("Go."))
    assert models.spoke == ["built in"]
    assert events[0].data["label"] == "small"
    assert not events[0].enforced


def test_route_and_watches_are_one_dispatch_and_a_stopped_run_ends_well() -> None:
    fake = FakeFlide([small(0.9) | {"stuck": 0.2}, small(0.9) | {"stuck": 0.95}, small(0.9) | {"stuck": 0.96}])
    models = Models(9)
    watch = Watch(question=STUCK["stuck"], stop_at=0.9, after=2, message="Stopped: the agent is stuck.")
    middleware = FlideMiddleware(decisions=fake.model(), route=models.policy(), watch={"stuck": watch})
    found = agent(models.chat("built in"), Body().tools("ls"), middleware).invoke(says("Go."))
    assert len(fake.dispatches) == 3
    assert set(fake.dispatches[0].questions) == {"route", "stuck"}
    assert found["messages"][-1].text == "Stopped: the agent is stuck."
    assert unanswered(found["messages"]) == set()
    assert len(models.spoke) == 2


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_watch_sees_its_moment(mode: str) -> None:
    fake, body = (
        FakeFlide(lambda asked: 0.99 if asked.candidate == "message" and "done" in str(asked.proposed) else 0.0),
        Body(),
    )
    watch: Any = {
        "going": Noul(instructions="Is it going well?"),
        "after": Watch(question=Noul(instructions="Did the last tool fail?"), sees="result"),
        "finished": Watch(
            question=Noul(instructions="Does it say that it is done?"), sees="proposed", stop_at=0.9, message="The end."
        ),
    }
    middleware = FlideMiddleware(decisions=fake.model(), watch=watch)
    acts = agent([calling(call("ls")), calling(call("rm"), text="done")], body.tools("ls", "rm"), middleware)
    found = acts.invoke(says("Go.")) if mode == "sync" else asyncio.run(acts.ainvoke(says("Go.")))
    asked = [(sorted(d.questions), len(d.messages or []), sorted(d.candidates)) for d in fake.dispatches]
    assert asked == [
        (["going"], 1, []),
        (["finished"], 1, ["message"]),
        (["after", "going"], 3, []),
        (["finished"], 3, ["message"]),
    ]
    assert [name for name, _ in body.ran] == ["ls"]  # the run ended before rm
    assert [m.status for m in results(found["messages"])] == ["success", "error"]
    assert found["messages"][-1].text == "The end."


def test_guard_and_watch_of_a_proposal_share_their_dispatch() -> None:
    fake, events = FakeFlide({"risky": 0.1, "finished": 0.2}), []
    middleware = FlideMiddleware(
        decisions=fake.model(),
        guard=GuardPolicy(questions=RISKY),
        watch={"finished": Watch(question=Noul(instructions="Is it done?"), sees="proposed")},
        on_decision=events.append,
    )
    agent([calling(call("ls"), call("rm")), "Done."], Body().tools("ls", "rm"), middleware).invoke(says("Go."))
    assert [sorted(d.candidates) for d in fake.dispatches] == [["call-1", "call-2", "message"], ["message"]]
    assert [e.kind for e in events] == ["watch", "guard", "guard", "watch"]


def test_an_outage_ends_no_run() -> None:
    fake, events = FakeFlide(fail_with=503), []
    middleware = FlideMiddleware(
        decisions=fake.model(), watch={"stuck": Watch(question=STUCK["stuck"], stop_at=0.0)}, on_decision=events.append
    )
    found = agent(["Done."], [], middleware).invoke(says("Go."))
    assert found["messages"][-1].text == "Done."
    assert [e.status for e in events] == ["unavailable"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: FlideMiddleware(),
        lambda: FlideMiddleware(watch={"route": Noul(instructions="x")}),
        lambda: FlideMiddleware(watch={"w": Watch(question=Noul(instructions="x"), stop_at=2.0)}),
        lambda: FlideMiddleware(watch={"w": Watch(question=Noul(instructions="x"), after=0)}),
        lambda: FlideMiddleware(watch={"w": Watch(question=Score(instructions="x", criteria=["a", "b"]), stop_at=3.0)}),
        lambda: FlideMiddleware(
            guard=GuardPolicy(questions=RISKY), watch={"risky": Watch(question=RISKY["risky"], sees="proposed")}
        ),
        lambda: RoutePolicy(choices={"a": ModelChoice("x:y")}, instructions="x", default="b"),
        lambda: GuardPolicy(questions=RISKY, per_tool={"x": {"block_at": {"risky": -1.0}}}),
    ],
)
def test_mistakes_are_found_when_built(build: Any) -> None:
    with pytest.raises((ValueError, FlideQuestionError)):
        build()


@pytest.mark.filterwarnings("ignore:.*in beta")
def test_stock_router_works_on_the_decision_model(url: str) -> None:
    models = Models(1)
    choices = {label: StockChoice(models.chat(label), f"{label} steps") for label in ("small", "large")}
    router = ModelRouterMiddleware(
        choices=choices, instructions="Which?", classifier=FlideDecisionModel(base_url=url, timeout=60)
    )
    agent(models.chat("built in"), [], router).invoke(says("Go."))
    assert models.spoke[0] in ("small", "large")


def test_ephemeral_messages_are_read_after_the_history() -> None:
    fake = FakeFlide({"stuck": 0.1})
    middleware = FlideMiddleware(decisions=fake.model(), watch=STUCK, ephemeral=lambda m: m.text.startswith("<reminder>"))
    agent(["Done."], [], middleware).invoke({"messages": [HumanMessage("<reminder> be brief"), HumanMessage("Go.")]})
    (dispatch,) = fake.dispatches
    assert [m["content"] for m in dispatch.messages or []] == ["Go."]
    assert dispatch.candidates["tail"][0]["content"] == "<reminder> be brief"


def test_what_does_not_say_anything_is_left_out_of_a_message() -> None:
    plain = AIMessage("Look.", tool_calls=[call("ls", id="a")])
    dressed = AIMessage(
        [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "Look.", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_use", "id": "b", "name": "ls", "input": {}},
        ],
        tool_calls=[call("ls", id="b")],
        id="other",
        response_metadata={"model": "x"},
        usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    )
    assert wire_message(plain) == wire_message(dressed)
    first = history_of([plain, ToolMessage("ok", tool_call_id="a")])
    assert first == history_of([dressed, ToolMessage("ok", tool_call_id="b", artifact={"x": 1})])
    assert wire_message(AIMessage("", tool_calls=[call("f", id="1", b=1, a=2)])) == wire_message(
        AIMessage("", tool_calls=[call("f", id="2", a=2, b=1)])
    )
    assert wire_message(HumanMessage([{"type": "image", "base64": "AA"}]))["content"] == "(image part, not shown)"
    assert "error" in wire_message(ToolMessage("x", tool_call_id="1", status="error"))["content"]


def test_an_unfinished_chunk_is_not_committed() -> None:
    history = history_of([HumanMessage("Go."), AIMessageChunk("I wil")])
    assert [m["role"] for m in history.trunk] == ["user"]
    assert [m["content"] for m in history.tail] == ["I wil"]
    assert history_of([HumanMessage("Go."), AIMessageChunk("I will.", chunk_position="last")]).tail == []


def test_breaker_opens_probes_and_closes() -> None:
    now = [0.0]
    breaker = Breaker(2, 10.0, clock=lambda: now[0])
    assert not breaker.failed(None)
    assert breaker.allows()
    assert breaker.failed(None)
    assert not breaker.allows()
    now[0] = 10.0
    assert breaker.allows()  # the probe
    assert not breaker.allows()
    breaker.succeeded()
    assert breaker.allows()
    assert breaker.failed(30.0)  # the service asked for a pause
    now[0] += 29
    assert not breaker.allows()
    now[0] += 1
    assert breaker.allows()


def test_choices_of_watches_stop_by_label() -> None:
    fake = FakeFlide({"state": {"stuck": 0.9, "fine": 0.1}})
    question = Choice(instructions="How is it?", criteria={"stuck": None, "fine": None})
    middleware = FlideMiddleware(decisions=fake.model(), watch={"state": Watch(question=question, stop_at={"stuck": 0.8})})
    found = agent(["Never said."], [], middleware).invoke(says("Go."))
    assert found["messages"][-1].text == "The run was ended by a watch rule."
