"""FlideDecisionModel: the contract against the fake and a real service, sessions, errors, stock middleware."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from langchain_core.decisions import BaseDecisionModel, Noul
from langchain_core.exceptions import ModelConnectionError, ModelRateLimitError, ModelTimeoutError
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_flide import FlideDecisionModel
from langchain_flide.errors import FlideContextOverflowError, FlideQuestionError, FlideServiceError
from langchain_flide.history import call_message
from langchain_flide.testing import FakeFlide
from langchain_flide.testing.contract import DecisionModelContract

ASK: Any = {"risky": Noul(instructions="Is the last action risky?")}
HISTORY = [HumanMessage("Clean the build folder. " * 20), AIMessage("I list it first.")]


class TestContractOnFake(DecisionModelContract):
    @pytest.fixture
    def model(self) -> BaseDecisionModel:
        return FakeFlide().model(api_key="secret")


class TestContractOnService(DecisionModelContract):
    @pytest.fixture
    def model(self, url: str) -> BaseDecisionModel:
        return FlideDecisionModel(base_url=url, api_key="secret", timeout=60)


def test_growing_thread_is_reused_and_usage_says_so(url: str) -> None:
    model = FlideDecisionModel(base_url=url, timeout=60)
    config: RunnableConfig = {"configurable": {"thread_id": "grow"}}
    first: Any = model.invoke({"state": HISTORY, "questions": ASK}, config)
    more = [*HISTORY, HumanMessage("And then? " * 30)]
    second: Any = model.invoke({"state": more, "questions": ASK}, config)
    again: Any = model.invoke({"state": more, "questions": ASK}, config)
    assert (first.reuse.reason, second.reuse.reason, again.reuse.reason) == ("new", "append", "repeat")
    assert first.reuse.m == 0
    assert second.reuse.m == first.reuse.history_tokens // 64 * 64 > 0
    assert second.usage["input_token_details"]["cache_read"] == second.reuse.m
    assert again.answers == second.answers
    assert first.session == second.session
    assert not first.untrained


def test_candidates_are_one_dispatch_and_leave_no_trace(url: str) -> None:
    model = FlideDecisionModel(base_url=url, timeout=60)
    config: RunnableConfig = {"configurable": {"thread_id": "candidates"}}
    calls = {
        "a": [call_message({"name": "ls", "args": {"path": "."}})],
        "b": [call_message({"name": "rm", "args": {"path": "/"}})],
    }
    with_both = model.judge(HISTORY, ASK, calls, config)
    assert set(with_both.candidates) == {"a", "b"}
    assert with_both.candidates["a"] != with_both.candidates["b"]
    assert model.judge(HISTORY, ASK, {"b": calls["b"]}, config).candidates["b"] == with_both.candidates["b"]
    assert asyncio.run(model.ajudge(HISTORY, ASK, calls, config)).candidates == with_both.candidates
    assert model.invoke({"state": HISTORY, "questions": ASK}, config).answers == with_both.answers


def test_what_stands_beside_messages_goes_after_them() -> None:
    fake = FakeFlide(lambda asked: 0.9 if asked.candidate else 0.1)
    reply = fake.model().invoke({"state": {"messages": HISTORY, "tool_call": {"name": "rm"}}, "questions": ASK})
    (dispatch,) = fake.dispatches
    assert [m["role"] for m in dispatch.messages or []] == ["user", "assistant"]
    assert dispatch.candidates["tail"] == [{"role": "context", "content": '{"tool_call": {"name": "rm"}}'}]
    assert reply.nouls["risky"].noul == 0.9


def test_messages_in_short_are_a_history_too(url: str) -> None:
    model = FlideDecisionModel(base_url=url, timeout=60)
    short = [("user", HISTORY[0].content), ("ai", HISTORY[1].content)]
    found = [model.invoke({"state": s, "questions": ASK}).answers for s in (short, {"messages": short}, HISTORY)]
    assert found[0] == found[1] == found[2]
    fake = FakeFlide(lambda _: 0.5)
    fake.model().invoke({"state": [["user", "a row of a table"]], "questions": ASK})
    assert fake.dispatches[0].messages is None, "lists are plain values"


@pytest.mark.parametrize(
    ("options", "config", "named"),
    [
        ({"session": "mine"}, {}, "mine"),
        ({"session": lambda config: config["configurable"]["who"]}, {"who": "them"}, "them"),
        ({}, {"flide_session": "chosen", "thread_id": "t"}, "chosen"),
        ({}, {}, None),
    ],
)
def test_session_comes_from_the_first_that_names_one(options: Any, config: Any, named: str | None) -> None:
    fake = FakeFlide()
    fake.model(**options).invoke({"state": HISTORY, "questions": ASK}, {"configurable": config})
    assert fake.dispatches[0].session == named


def test_threads_namespaces_and_sub_agents_have_sessions_of_their_own() -> None:
    fake = FakeFlide()
    places: list[tuple[str, dict[str, Any]]] = [
        ("default", {"thread_id": "1", "checkpoint_ns": "agent:aaa"}),
        ("default", {"thread_id": "1", "checkpoint_ns": "other:bbb"}),  # another node of the same agent: the same session
        ("default", {"thread_id": "2"}),
        ("elsewhere", {"thread_id": "1"}),
        ("default", {"thread_id": "1", "checkpoint_ns": "sub:ccc|agent:ddd"}),
        ("default", {"thread_id": "1", "checkpoint_ns": "sub:eee|agent:fff"}),  # the next visit of the same sub-agent
    ]
    for namespace, configurable in places:
        fake.model(namespace=namespace).invoke({"state": HISTORY, "questions": ASK}, {"configurable": configurable})
    sessions = [d.session for d in fake.dispatches]
    assert sessions[0] == sessions[1]
    assert sessions[4] == sessions[5]
    assert len(set(sessions)) == 4


def test_session_is_found_in_a_runnable_and_in_batches() -> None:
    fake = FakeFlide()
    model = fake.model()
    config: RunnableConfig = {"configurable": {"thread_id": "outer"}}
    chain = RunnableLambda(lambda _: model.invoke({"state": HISTORY, "questions": ASK}))
    chain.invoke(None, config)
    model.batch([{"state": HISTORY, "questions": ASK}] * 2, config)
    assert len({d.session for d in fake.dispatches}) == 1
    assert fake.dispatches[0].session is not None


@pytest.mark.parametrize(
    ("failure", "kind", "says"),
    [
        (httpx.ConnectError("refused"), ModelConnectionError, "flide-agent serve"),
        (429, ModelRateLimitError, "fake failure"),
        (503, FlideServiceError, "fake failure"),
        (413, FlideContextOverflowError, "fake failure"),
        (422, FlideQuestionError, "fake failure"),
    ],
)
def test_failures_are_langchain_errors(failure: Any, kind: type[Exception], says: str) -> None:
    model = FakeFlide(fail_with=failure).model()
    with pytest.raises(kind, match=says):
        model.invoke({"state": HISTORY, "questions": ASK})
    with pytest.raises(kind, match=says):
        asyncio.run(model.ainvoke({"state": HISTORY, "questions": ASK}))


def test_deadline_holds_over_all_tries() -> None:
    model = FakeFlide(latency=5).model(timeout=0.2, max_retries=3)
    start = time.monotonic()
    with pytest.raises(ModelTimeoutError):
        model.invoke({"state": HISTORY, "questions": ASK})
    assert time.monotonic() - start < 1


def test_key_and_url_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIDE_BASE_URL", "http://elsewhere:1")
    monkeypatch.setenv("FLIDE_API_KEY", "hush")
    model = FlideDecisionModel()
    assert model.base_url == "http://elsewhere:1"
    assert "hush" not in f"{model!r} {model.model_dump()}"
