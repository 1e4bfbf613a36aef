"""The clients against a transport that the test writes: retries, deadlines, errors, bodies. And what they import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from flide_agent import wire
from flide_agent.client import AsyncClient, Client
from flide_agent.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    FlideError,
    HeadConflict,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    TooLong,
    Unavailable,
    UnexpectedReply,
    UnknownModel,
    Unreachable,
)

REPLY = {
    "model": "m",
    "answers": {
        "n": {"type": "noul", "noul": 0.1},
        "c": {"type": "choice", "choice": "a", "probabilities": {"a": 0.7, "b": 0.3}, "confidence": 0.4, "x_new": 1},
        "s": {"type": "score", "score": 0.2, "legend": {"0": ["x"]}, "probabilities": {"0": 1.0}, "confidence": 1.0},
    },
    "usage": {"input_tokens": 5, "output_tokens": 0, "x_cached_tokens": 64},
    "x_later": {"unknown": True},
}
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, not slept."""
    slept: list[float] = []

    async def asleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("flide_agent.client.time.sleep", slept.append)
    monkeypatch.setattr("flide_agent.aio.asyncio.sleep", asleep)
    return slept


def ask(handler: Handler, **options: Any) -> Any:
    """One call through both clients; they must agree."""

    def sync() -> Any:
        with Client("http://test/", transport=httpx.MockTransport(handler), **options) as client:
            return client.systemone("s", {"n": {"type": "noul"}})

    async def use() -> Any:
        async with AsyncClient("http://test/", transport=httpx.MockTransport(handler), **options) as client:
            return await client.systemone("s", {"n": {"type": "noul"}})

    outcomes: list[Any] = []
    for call in (sync, lambda: asyncio.run(use())):
        try:
            outcomes.append(call())
        except FlideError as e:
            outcomes.append(e)
    assert type(outcomes[0]) is type(outcomes[1])
    if isinstance(outcomes[0], FlideError):
        raise outcomes[0]
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def test_reply_is_typed_and_unknown_fields_are_ignored() -> None:
    reply = ask(lambda _: httpx.Response(200, json=REPLY))
    assert reply.answers["n"].noul == 0.1
    assert reply.answers["c"].choice == "a"
    assert reply.answers["s"].legend == {"0": ["x"]}
    assert reply.usage.x_cached_tokens == 64
    assert not reply.x_untrained


@pytest.mark.parametrize(
    ("status", "detail", "kind"),
    [
        (422, [{"loc": ["body", "state"], "msg": "no", "type": "missing"}], InvalidRequest),
        (400, {"error_type": "api_usage_error", "message": "Unknown model: x"}, UnknownModel),
        (404, {"error_type": "not_found", "message": "no such session"}, NotFound),
        (409, {"error_type": "unknown_head", "message": "no", "head": "h7"}, HeadConflict),
        (413, {"error_type": "max_tokens_exceeded", "message": "long"}, TooLong),
        (413, {"error_type": "body_too_large", "message": "large"}, BodyTooLarge),
        (418, "teapot", UnexpectedReply),
    ],
)
def test_refusals_are_typed_and_not_repeated(status: int, detail: Any, kind: type[FlideError], pauses: list[float]) -> None:
    with pytest.raises(kind) as e:
        ask(lambda _: httpx.Response(status, json={"detail": detail}))
    assert pauses == []
    if isinstance(e.value, HeadConflict):
        assert e.value.head == "h7"
    if isinstance(e.value, InvalidRequest):
        assert e.value.details == detail
        assert "body.state: no" in str(e.value)


@pytest.mark.parametrize(
    ("status", "kind"), [(429, Overloaded), (500, InternalError), (503, Unavailable), (502, InternalError)]
)
def test_overload_and_faults_are_tried_again(status: int, kind: type[FlideError], pauses: list[float]) -> None:
    tries: list[int] = []

    def handler(_: httpx.Request) -> httpx.Response:
        tries.append(1)
        return httpx.Response(200, json=REPLY) if len(tries) % 3 == 0 else httpx.Response(status, text="<html>busy")

    ask(handler)
    assert len(tries) == 6  # three by each client
    assert 0.05 <= pauses[0] <= 0.1
    assert 0.1 <= pauses[1] <= 0.2
    with pytest.raises(kind):
        ask(lambda _: httpx.Response(status, text="busy"), retries=2)


def test_retry_after_is_honoured(pauses: list[float]) -> None:
    answers = iter([httpx.Response(429, headers={"retry-after": "7"}, json={"detail": {"message": "full"}})] * 1)

    def handler(_: httpx.Request) -> httpx.Response:
        return next(answers, httpx.Response(200, json=REPLY))

    ask(handler)
    assert pauses == [7.0]


def test_a_pause_beyond_the_deadline_is_not_begun(pauses: list[float]) -> None:
    with pytest.raises(DeadlineExceeded, match="full"):
        ask(lambda _: httpx.Response(429, headers={"retry-after": "60"}, json={"detail": {"message": "full"}}), timeout=5)
    assert pauses == []


def test_no_connection_is_tried_again(pauses: list[float]) -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Unreachable, match="refused"):
        ask(handler, retries=2)
    assert len(pauses) == 4


def test_each_try_gets_what_is_left_of_the_deadline() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert 0 < request.extensions["timeout"]["read"] <= 3
        return httpx.Response(200, json=REPLY)

    ask(handler, timeout=3)


def test_a_body_that_is_no_reply() -> None:
    for content in (b"<html>", b'{"answers":1}', b""):
        with pytest.raises(UnexpectedReply):
            ask(lambda _, c=content: httpx.Response(200, content=c))


def test_bodies_and_paths() -> None:
    seen: list[tuple[str, str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        body = msgspec.json.decode(request.content) if request.content else None
        seen.append((request.method, request.url.raw_path.decode(), body))
        assert request.headers["authorization"] == "Bearer k"
        return httpx.Response(200, json=REPLY if request.url.path.endswith("decide") else {"id": "s", "sessions": []})

    with Client("http://test", api_key="k", transport=httpx.MockTransport(handler)) as client:
        client.decide("a b/ü", append=[{"role": "user", "content": "x"}], head="h", questions={"q": {"type": "noul"}})
        client.open_session()
        client.fork("s", "t")
        client.session("s")
        client.sessions()
        client.delete("s")
    assert seen[0] == (
        "POST",
        "/v1/sessions/a%20b%2F%C3%BC/decide",
        {"questions": {"q": {"type": "noul"}}, "append": [{"role": "user", "content": "x"}], "head": "h"},
    )
    assert len(seen[1][2]["id"]) == 32, "an id of the client's own, so that a second try opens no second session"
    assert [s[:2] for s in seen[2:]] == [
        ("POST", "/v1/sessions/s/fork"),
        ("GET", "/v1/sessions/s"),
        ("GET", "/v1/sessions?limit=1000"),
        ("DELETE", "/v1/sessions/s"),
    ]


def test_listing_follows_the_cursor() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if "cursor" in request.url.params:
            assert request.url.params["cursor"] == "a/b"
            return httpx.Response(200, json={"sessions": [{"id": "2"}], "cursor": None})
        return httpx.Response(200, json={"sessions": [{"id": "1"}], "cursor": "a/b"})

    async def use() -> list[dict[str, Any]]:
        async with AsyncClient("http://test", transport=httpx.MockTransport(handler)) as client:
            return await client.sessions()

    with Client("http://test", transport=httpx.MockTransport(handler)) as client:
        assert client.sessions() == asyncio.run(use()) == [{"id": "1"}, {"id": "2"}]


def test_tries_end_at_the_deadline() -> None:
    tries = wire.Tries(3, 0.0)
    with pytest.raises(DeadlineExceeded):
        tries.remaining()


def test_the_client_imports_no_engine_and_no_server() -> None:
    code = "import sys, flide_agent.client; print(' '.join(sorted({m.split('.')[0] for m in sys.modules})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "httpx" in out
    assert not {"torch", "litestar", "numpy", "flide_engine", "lmdb", "tokenizers", "uvicorn", "transformers"} & set(out)
