"""The handlers of decisions and sessions. Each reads a body, calls one thing and answers; what they share stands first."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import MediaType, Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.exceptions import InternalServerException
from litestar.response import Stream

from flide_agent import asks
from flide_agent.api import backend as b
from flide_agent.api import body as bodies
from flide_agent.api import call as calls
from flide_agent.decisions import parse_decisions, render
from flide_agent.errors import BodyTimeout, InvalidRequest

Call = Request[Any, Any, State]
Json = Response[bytes]
GRACE = 0.02
"""Seconds that an answer may take before anybody looks whether its reader is still there."""


def json_reply(value: Any, status: int = 200) -> Json:
    return Response(msgspec.json.encode(value), status_code=status, media_type=MediaType.JSON)


def reply_of(answer: b.Answer) -> Json:
    return Response(answer.body, status_code=answer.status, media_type=MediaType.JSON)


def backend_of(request: Call) -> b.Backend:
    backend: b.Backend = request.app.state.backend
    return backend


def tenant_of(request: Call) -> str:
    return calls.of(request.scope).tenant


async def _raw(request: Call) -> tuple[bytes, str]:
    """(bytes of the body, its Content-Encoding)."""
    settings = backend_of(request).settings
    try:
        async with asyncio.timeout(settings.body_seconds or None):
            raw = await bodies.read(request.stream(), settings.max_body_bytes)
    except TimeoutError as e:
        raise BodyTimeout(f"the body did not arrive within {settings.body_seconds:g} s") from e
    except InternalServerException as e:  # how the framework says that the client has gone
        raise calls.Gone("the client hung up") from e
    call = calls.of(request.scope)
    if call.share is not None and len(raw) > call.share.size:  # a body that did not say how long it is
        call.share.grow(len(raw) - call.share.size)
    return raw, request.headers.get("content-encoding", "")


def _decoded(request: Call, raw: bytes, encoding: str) -> Any:
    return bodies.decode(bodies.decompress(raw, encoding, backend_of(request).settings.max_body_bytes))


async def _body(request: Call, *, empty: Any = b"") -> Any:
    """The JSON of the request. empty: what an empty body stands for, if anything."""
    raw, encoding = await _raw(request)
    if not raw and empty != b"":
        return empty
    if len(raw) < b.INLINE_BYTES and not encoding:
        return bodies.decode(raw)
    return await backend_of(request).in_thread(lambda: _decoded(request, raw, encoding))


async def _while_connected(request: Call, work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work`; a client that hangs up cancels it, which frees its place in the engine's line."""
    task, gone = asyncio.ensure_future(work), None
    try:
        await asyncio.wait([task], timeout=GRACE)
        if not task.done():
            gone = asyncio.ensure_future(_disconnected(request))
            await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise calls.Gone("the client hung up")
        return task.result()
    finally:
        pending = [each for each in (task, gone) if each is not None and not each.done()]
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _disconnected(request: Call) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _decide(request: Call, parse: Callable[[Any], asks.Ask]) -> b.Answer:
    """Room first, then the body: a request that would be refused costs nothing."""
    backend, call = backend_of(request), calls.of(request.scope)
    length = request.headers.get("content-length")
    admitted = await backend.admit(call.tenant, int(length) if length else backend.settings.max_body_bytes)
    try:
        raw, encoding = await _raw(request)
        short = len(raw) < b.INLINE_BYTES
        if (short or (len(raw) < b.INLINE_TEXT_BYTES and b"\\u" not in raw)) and not encoding:
            value = bodies.decode(raw)
            state = value.get("state") if isinstance(value, dict) else None
            quick = short or (isinstance(state, str) and len(raw) - len(state) < b.INLINE_BYTES)
            ask = parse(value) if quick else await backend.in_thread(lambda: parse(value))
        else:
            ask = await backend.in_thread(lambda: parse(_decoded(request, raw, encoding)))
        ask = dataclasses.replace(ask, deadline=call.deadline)
        answer: b.Answer = await _while_connected(request, backend.decide(call.tenant, ask, admitted))
    finally:
        admitted.leave()
    return answer


@post("/v1/systemone", status_code=200)
async def systemone(request: Call) -> Json:
    settings = backend_of(request).settings
    return reply_of(await _decide(request, lambda raw: asks.parse_systemone(raw, settings)))


@post("/v1/decisions", status_code=200)
async def decisions(request: Call) -> Json:
    """The OpenAI shape."""
    settings, asked = backend_of(request).settings, []

    def parse(raw: Any) -> asks.Ask:
        ask, questions = parse_decisions(raw, settings)
        asked.extend(questions)
        return ask

    answer = await _decide(request, parse)
    return json_reply(render(msgspec.json.decode(answer.body), answer.m, answer.saved, asked))


@get("/v1/models")
async def models(request: Call) -> Json:
    """Both list shapes in one body: TypeSafe's `models` and OpenAI's `object` and `data`."""
    served = backend_of(request).served
    about = "Typed decisions about text and agent histories. Also answers to jev-latest."
    if served.untrained:
        about += " Untrained: its weights are random, so its answers mean nothing."
    released = served.released
    entry = {"name": served.name, "description": about, "release_date": released.isoformat(), "x_untrained": served.untrained}
    created = int(datetime(released.year, released.month, released.day, tzinfo=UTC).timestamp())
    data = {"id": served.name, "object": "model", "created": created, "owned_by": "flide-agent"}
    return json_reply({"models": [entry], "object": "list", "data": [data]})


@post("/v1/sessions", status_code=201)
async def open_session(request: Call) -> Json:
    opening = asks.parse_opening(await _body(request, empty={}))
    return reply_of(await backend_of(request).do(tenant_of(request), b.OpenSession(opening)))


def _number(request: Call, name: str, default: int, low: int, high: int) -> int:
    """A number of the query. Raises InvalidRequest."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or not low <= int(text[:20]) <= high:
        message = f"{name} is a number in {low}..{high}"
        raise InvalidRequest([{"loc": ["query", name], "msg": message, "type": "int_parsing"}])
    return int(text)


@get("/v1/sessions")
async def list_sessions(request: Call) -> Json:
    limit = _number(request, "limit", 100, 1, 1000)
    listing = b.ListSessions(limit, request.query_params.get("cursor"))
    return reply_of(await backend_of(request).do(tenant_of(request), listing))


@post("/v1/sessions/{session:str}/decide", status_code=200)
async def decide(request: Call, session: str) -> Json:
    settings = backend_of(request).settings
    return reply_of(await _decide(request, lambda raw: asks.parse_decide(raw, session, settings)))


@post("/v1/sessions/{session:str}/prefetch", status_code=200)
async def prefetch(request: Call, session: str) -> Json:
    backend, raw = backend_of(request), await _body(request)
    ask = asks.parse_prefetch(raw, session, backend.settings)
    return reply_of(await backend.do(tenant_of(request), b.Prefetch(ask)))


@get("/v1/sessions/{session:str}/events")
async def events(request: Call, session: str) -> Stream:
    """Server-sent events; `Last-Event-ID`, or `after`, is where to go on."""
    last = request.headers.get("last-event-id", "")
    after = int(last) if last.isascii() and last.isdecimal() and len(last) < 16 else _number(request, "after", 0, 0, 1 << 53)
    source = await backend_of(request).follow(tenant_of(request), asks.check_session_id(session), after)
    return Stream(source, media_type="text/event-stream", headers={"cache-control": "no-store"})


@get("/v1/sessions/{session:str}")
async def get_session(request: Call, session: str) -> Json:
    return reply_of(await backend_of(request).do(tenant_of(request), b.GetSession(asks.check_session_id(session))))


@delete("/v1/sessions/{session:str}", status_code=200)
async def delete_session(request: Call, session: str) -> Json:
    return reply_of(await backend_of(request).do(tenant_of(request), b.DeleteSession(asks.check_session_id(session))))


@post("/v1/sessions/{session:str}/fork", status_code=201)
async def fork_session(request: Call, session: str) -> Json:
    opening = asks.parse_opening(await _body(request, empty={}))
    if opening.tools is not None:
        raise InvalidRequest.at(("tools",), "a fork has the tools of the session that it comes from", "extra_forbidden")
    fork = b.ForkSession(asks.check_session_id(session), opening)
    return reply_of(await backend_of(request).do(tenant_of(request), fork))


ROUTES = [
    systemone, decisions, models, open_session, list_sessions, decide, prefetch, events, get_session, delete_session, fork_session,
]  # fmt: skip
