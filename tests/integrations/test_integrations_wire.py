"""What is cheap must be the same: requests and messages as the libraries below would make them, digests that tell as much."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from integration_agents import RISKY, Recorder, thread
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ChatMessage, HumanMessage, ToolMessage
from langchain_flide.connection import Inquiry
from langchain_flide.history import UNREADABLE, arguments, digest_of, history_of, wire_message
from langchain_flide.questions import checked
from langchain_flide.states import Seen
from langchain_flide.testing import FakeFlide

from flide_agent.client import Client
from flide_agent.wire import Requests, deadline_header, headers_of

BASES = ["http://127.0.0.1:8321", "http://user:secret@[::1]:99/below/", "https://example.org/é?more=1"]
PATHS = ["/v1/systemone", "/v1/sessions/lc-1/decide", "/v1/sessions/a%2Fb%20c%3F/decide", "/v1/sessions/%C3%A9/decide"]


def sent(request: httpx.Request) -> tuple[Any, ...]:
    return request.method, str(request.url), request.url.raw_path, request.headers.raw, request.content, request.extensions


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("key", [None, "secret"])
@pytest.mark.parametrize("kind", [httpx.Client, httpx.AsyncClient])
def test_a_request_is_the_one_that_httpx_would_make(base: str, key: str | None, kind: Any) -> None:
    http = kind(base_url=base, headers=headers_of(key))
    requests = Requests(http)
    for method, content in (
        ("POST", b"{}"),
        ("POST", b"x" * 5000),
        ("POST", b""),
        ("POST", None),
        ("GET", None),
        ("DELETE", None),
    ):
        for path in [*PATHS, *PATHS]:
            for left in (0.25, 60.0):
                wanted = http.build_request(method, path, content=content, timeout=left, headers=deadline_header(left))
                assert sent(requests.make(method, path, content, left)) == sent(wanted)


def test_cookies_of_a_proxy_come_back_to_it_and_to_no_later_client() -> None:
    seen: list[str | None] = []

    def reply(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("cookie"))
        headers = {"set-cookie": f"worker={len(seen)}; Path=/"} if len(seen) in (2, 4) else {}
        return httpx.Response(200, json={"model": "m", "answers": {}, "usage": {}}, headers=headers, request=request)

    with Client("http://below", transport=httpx.MockTransport(reply)) as client:
        for _ in range(5):
            client.systemone("x", {})
    with Client("http://below", transport=httpx.MockTransport(reply)) as client:
        client.systemone("x", {})
    assert seen == [None, None, "worker=2", "worker=2", "worker=4", None]


class Own(HumanMessage):
    """A message class whose role is no field."""

    @property
    def role(self) -> str:
        return "auditor"


@pytest.mark.parametrize(
    ("message", "role"),
    [
        (HumanMessage("x"), "user"),
        (AIMessage("x"), "assistant"),
        (ToolMessage("x", tool_call_id="1"), "tool"),
        (ChatMessage("x", role="critic"), "critic"),
        (ChatMessage("x", role=""), "chat"),
        (HumanMessage("x", role="critic"), "critic"),
        (HumanMessage("x", other="critic"), "user"),
        (Own("x"), "auditor"),
    ],
)
def test_role(message: BaseMessage, role: str) -> None:
    assert wire_message(message)["role"] == role
    assert wire_message(HumanMessage("x"))["role"] == "user"  # whatever class came before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.just(uuid.UUID(int=1)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_arguments_are_what_json_writes(args: dict[str, Any]) -> None:
    assert arguments(args) == json.dumps(args, ensure_ascii=False, separators=(",", ":"), default=str, sort_keys=True)


def history(text: str, args: dict[str, Any], result: str = "1", status: Any = "error") -> list[AnyMessage]:
    made = AIMessage(text, tool_calls=[{"name": "run", "args": args, "id": "1"}])
    made.invalid_tool_calls = [{"name": "walk", "args": "{", "id": "2", "error": None, "type": "invalid_tool_call"}]
    return [HumanMessage(text), made, ToolMessage(text, tool_call_id=result, status=status)]


@given(st.text(st.characters(exclude_categories=[])), st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_a_checkpointer_does_not_change_a_digest(text: str, args: dict[str, Any]) -> None:
    """Text with lone surrogates comes back with question marks in their place."""
    whole = text.encode("utf-8", "replace").decode()
    again = [message.model_copy(deep=True) for message in history(whole, args)]
    assert digest_of(history(text, args)) == digest_of(again)


def test_digests_tell_histories_apart() -> None:
    args = [
        {},
        {"a": 1},
        {"a": True},
        {"a": 1.0},
        {"a": "1"},
        {"a": None},
        {"b": 1},
        {"a": [1]},
        {"a": {"1": 1}},
        {"a": object},
    ]
    histories = [history("x", each) for each in args]
    histories += [history("y", {}), history("x", {}, "2"), history("x", {}, status="success"), history("x", {})[:2], []]
    histories += [
        [HumanMessage("x")],
        [AIMessage("x")],
        [HumanMessage("x", name="me")],
        [HumanMessage([{"type": "text", "text": "x"}])],
    ]
    assert len({digest_of(each) for each in histories}) == len(histories)


def test_arguments_without_an_end() -> None:
    endless: dict[str, Any] = {"a": 1}
    endless["again"] = [endless, endless]
    assert arguments(endless) == UNREADABLE
    made = AIMessage("x")
    made.tool_calls = [{"name": "run", "args": endless, "id": "1", "type": "tool_call"}]
    assert len(digest_of([made])) == 32
    assert history_of([made]).trunk[0]["tool_calls"][0]["function"]["arguments"] == UNREADABLE


class Listener(BaseCallbackHandler):
    def __init__(self) -> None:
        self.heard: list[tuple[str, str, Any]] = []

    def on_chain_start(self, serialized: Any, inputs: Any, *, metadata: Any = None, **more: Any) -> None:
        self.heard.append(("start", more["name"], metadata["ls_provider"]))

    def on_chain_end(self, outputs: Any, **more: Any) -> None:
        self.heard.append(("end", type(outputs).__name__, outputs.model))


def test_a_run_is_made_for_those_who_listen_and_answers_are_the_same_without() -> None:
    listener, recorder = Listener(), Recorder(FakeFlide({"risky": 0.25}).transport)
    model = recorder.model()
    inquiry = Inquiry(Seen(history_of([HumanMessage("Go.")])), checked(RISKY))
    alone = model.ask(inquiry, thread("one"))
    heard = model.ask(inquiry, {**thread("one"), "callbacks": [listener]})
    assert [name for name, *_ in listener.heard] == ["start", "end"]
    assert listener.heard[0][2] == "flide"
    assert alone.answers == heard.answers
    assert alone.session == heard.session
    assert recorder.steps[0][0] == recorder.steps[1][0]
    chosen: list[Any] = []
    model = recorder.model().model_copy(update={"session": lambda config: chosen.append(config["configurable"]) or "mine"})
    for callbacks in ([], [Listener()]):
        assert model.ask(inquiry, {**thread("two"), "callbacks": callbacks}).session == "mine"
    assert [c["thread_id"] for c in chosen] == ["two", "two"]
