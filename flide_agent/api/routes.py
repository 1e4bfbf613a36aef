"""The handlers. Each reads a body, calls one thing and answers; what they all share stands in `_body` and `_json`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import MediaType, Request, Response, delete, get, post
from litestar.datastructures import State

from flide_agent import asks, views
from flide_agent.api import body as bodies
from flide_agent.api.probe import probe
from flide_agent.errors import FlideError, InvalidRequest
from flide_agent.local import TENANT, Service

Call = Request[Any, Any, State]
Json = Response[bytes]


def _json(value: Any, status: int = 200) -> Json:
    return Response(msgspec.json.encode(value), status_code=status, media_type=MediaType.JSON)


def _service(call: Call) -> Service:
    service: Service = call.app.state.service
    return service


async def _body(call: Call, *, empty: Any = b"") -> Any:
    """The JSON of the request. empty: what an empty body stands for, if anything."""
    service = _service(call)
    cap = service.settings.max_body_bytes
    raw = await bodies.read(call.stream(), cap)
    if not raw and empty != b"":
        return empty
    encoding = call.headers.get("content-encoding", "")
    if len(raw) < 4096 and not encoding:
        return bodies.decode(raw)
    return await service.decider.in_thread(lambda: bodies.decode(bodies.decompress(raw, encoding, cap)))


class Gone(FlideError):
    """Nobody is left to read the answer."""

    status = 499
    error_type = "client_closed_request"


async def _while_connected(call: Call, work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work`; a client that hangs up cancels it, which frees its place in the engine's line."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(call))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone("the client hung up")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(call: Call) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass


async def _answer(call: Call, parse: Callable[[Any], asks.Ask]) -> Json:
    raw = await _body(call)
    service = _service(call)
    # Small requests are read here; the canonical form of a long history is work for a thread.
    ask = await service.decider.in_thread(lambda: parse(raw))
    return _json(await _while_connected(call, service.decider.decide(TENANT, ask)))


@post("/v1/systemone", status_code=200)
async def systemone(request: Call) -> Json:
    return await _answer(request, lambda raw: asks.parse_systemone(raw, _service(request).settings))


@get("/v1/models")
async def models(request: Call) -> Json:
    """Both list shapes in one body: TypeSafe's `models` and OpenAI's `object` and `data`."""
    served = _service(request).served
    about = "Typed decisions about text and agent histories. Also answers to jev-latest."
    if served.untrained:
        about += " Untrained: its weights are random, so its answers mean nothing."
    released = served.released
    entry = {"name": served.name, "description": about, "release_date": released.isoformat(), "x_untrained": served.untrained}
    created = int(datetime(released.year, released.month, released.day, tzinfo=UTC).timestamp())
    data = {"id": served.name, "object": "model", "created": created, "owned_by": "flide-agent"}
    return _json({"models": [entry], "object": "list", "data": [data]})


@post("/v1/sessions", status_code=201)
async def open_session(request: Call) -> Json:
    opening = asks.parse_opening(await _body(request, empty={}))
    return _json(await views.open_session(_service(request).decider, TENANT, opening), 201)


@get("/v1/sessions")
async def list_sessions(request: Call) -> Json:
    limit = request.query_params.get("limit", "100")
    if not limit.isdecimal() or not 1 <= int(limit) <= 1000:
        raise InvalidRequest([{"loc": ["query", "limit"], "msg": "limit is a number in 1..1000", "type": "int_parsing"}])
    return _json(await views.page(_service(request).decider, TENANT, int(limit), request.query_params.get("cursor")))


@post("/v1/sessions/{session:str}/decide", status_code=200)
async def decide(request: Call, session: str) -> Json:
    return await _answer(request, lambda raw: asks.parse_decide(raw, session, _service(request).settings))


@get("/v1/sessions/{session:str}")
async def get_session(request: Call, session: str) -> Json:
    return _json(await views.session(_service(request).decider, TENANT, session))


@delete("/v1/sessions/{session:str}", status_code=200)
async def delete_session(request: Call, session: str) -> Json:
    return _json(await views.delete(_service(request).decider, TENANT, session))


@post("/v1/sessions/{session:str}/fork", status_code=201)
async def fork_session(request: Call, session: str) -> Json:
    opening = asks.parse_opening(await _body(request, empty={}))
    if opening.tools is not None:
        raise InvalidRequest.at(("tools",), "a fork has the tools of the session that it comes from", "extra_forbidden")
    return _json(await views.fork(_service(request).decider, TENANT, session, opening), 201)


@get("/health")
async def health() -> Json:
    """The process answers; says nothing about the model."""
    return _json({"status": "ok"})


@get("/ready")
async def ready(request: Call) -> Json:
    """Whether a decision would be answered now: the self-test's report, the store's mode, and a probe through the engine."""
    service = _service(request)
    report = {"model": service.served.name, "untrained": service.served.untrained, **service.report()}
    try:
        report["probe_ms"] = await probe(service)
    except FlideError as e:
        return _json({"ready": False, "reason": e.message, **report}, 503)
    return _json({"ready": True, **report})


@get("/v1/stats")
async def stats(request: Call) -> Json:
    """Counters since the start: rounds, requests in a round, tokens computed and reused; the store's."""
    return _json(_service(request).stats())


ROUTES = [
    systemone, models, open_session, list_sessions, decide, get_session, delete_session, fork_session, health, ready, stats,
]  # fmt: skip
