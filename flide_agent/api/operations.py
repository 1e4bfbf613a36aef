"""What operators ask: is it alive, is it ready, what has it counted, what does it speak."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from litestar import HttpMethod, Response, get, route
from prometheus_client import CONTENT_TYPE_LATEST

from flide_agent.api import backend as b
from flide_agent.api import call as calls
from flide_agent.api.openapi import document
from flide_agent.api.routes import Call, Json, backend_of, json_reply, reply_of, tenant_of
from flide_agent.errors import Forbidden
from flide_agent.keys import OPERATOR

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
PROBED = (HttpMethod.GET, HttpMethod.HEAD)
KINDS = {"page.html": "text/html", "app.js": "text/javascript", "style.css": "text/css"}


def _for_operators(request: Call) -> None:
    if not calls.of(request.scope).operator:
        raise Forbidden(f"this tells of all tenants; it needs a key of the tenant {OPERATOR!r}")


@route("/health", http_method=PROBED)
async def health() -> Json:
    """The process answers; says nothing about the model."""
    return json_reply({"status": "ok"})


@route("/ready", http_method=PROBED)
async def ready(request: Call) -> Json:
    """Whether a decision would be answered now: the self-test's report, the store's mode, and a probe through the engine."""
    # Without a key: nothing of what others do.
    return reply_of(await backend_of(request).do(tenant_of(request), b.Ready(calls.of(request.scope).known)))


@get("/v1/stats")
async def stats(request: Call) -> Json:
    """Counters since the start: rounds, requests in a round, tokens computed and reused; the store's."""
    _for_operators(request)
    return reply_of(await backend_of(request).do(tenant_of(request), b.Stats()))


@get("/metrics")
async def metrics(request: Call) -> Response[bytes]:
    """The same and more, for Prometheus."""
    _for_operators(request)
    answer = await backend_of(request).do(tenant_of(request), b.MetricsText())
    return Response(answer.body, headers={"content-type": CONTENT_TYPE_LATEST})


@get(["/schema", "/schema/openapi.json"])
async def schema(request: Call) -> Json:
    """The OpenAPI document."""
    return json_reply(document(backend_of(request).settings))


@cache
def _file(name: str) -> bytes:
    return (files("flide_agent.api") / "ui" / name).read_bytes()


def _page(name: str) -> Response[bytes]:
    return Response(_file(name), media_type=f"{KINDS[name]}; charset=utf-8", headers=PAGE_HEADERS)


@get("/ui")
async def ui() -> Response[bytes]:
    """The live page. It holds no data: what it shows it asks for, with the key that it is given."""
    return _page("page.html")


@get("/ui/app.js")
async def ui_script() -> Response[bytes]:
    return _page("app.js")


@get("/ui/style.css")
async def ui_style() -> Response[bytes]:
    return _page("style.css")


ROUTES = [health, ready, stats, metrics, schema, ui, ui_script, ui_style]
