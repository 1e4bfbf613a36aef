"""The OpenAPI document at /schema, written as data: handlers take bytes, so nothing could be read off their signatures."""

from __future__ import annotations

from typing import Any

from flide_agent import __version__
from flide_agent.api import call as calls
from flide_agent.api.schemas import SESSION_ID, TEXT, Schema, ref, replies, requests
from flide_agent.settings import Settings

REFUSALS = {
    400: "The request names a model that is not served.",
    401: "The API key is missing or not valid.",
    403: "The key is valid, and not for this.",
    404: "No such session.",
    408: "The deadline passed before the engine began.",
    409: "The head is unknown, or the id is taken.",
    413: "Too many bytes or tokens. Nothing was cut.",
    415: "A Content-Encoding that is not read.",
    429: "More than the server takes at the moment.",
    503: "Starting, stopping, or out of memory for the moment.",
}
LOAD = (408, 413, 415, 429, 503)


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _replies(good: int, schema: Schema, refusals: tuple[int, ...], *, invalid: bool = True) -> dict[str, Any]:
    out: dict[str, Any] = {str(good): {"description": "Done.", "content": _json(schema)}}
    if invalid:
        out["422"] = {"description": "What is wrong with the request, and where.", "content": _json(ref("Invalid"))}
    for status in (401, *refusals):
        out[str(status)] = {"description": REFUSALS[status], "content": _json(ref("Error"))}
        if status in (429, 503):
            out[str(status)]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return out


def _header(name: str, about: str, schema: Schema) -> Schema:
    return {"name": name, "in": "header", "required": False, "description": about, "schema": schema}


DEADLINE = _header(
    calls.DEADLINE, "Milliseconds from arrival after which the answer is of no use.",
    {"type": "number", "exclusiveMinimum": 0, "maximum": calls.LONGEST_DEADLINE},
)  # fmt: skip
REQUEST_ID = _header(calls.REQUEST_ID, "Comes back on the reply and stands in the log.", {"type": "string", "maxLength": 64})
SESSION = {"name": "session", "in": "path", "required": True, "description": "The session's id.", "schema": SESSION_ID}


def _operation(
    about: str, name: str, good: int, schema: Schema, refusals: tuple[int, ...] = (), body: str = "", *, invalid: bool = True,
    parameters: tuple[Schema, ...] = (), required: bool = True,
) -> Schema:  # fmt: skip
    out: Schema = {"summary": about, "operationId": name, "parameters": [REQUEST_ID, *parameters]}
    if body:
        out["requestBody"] = {"required": required, "content": _json(ref(body))}
    return out | {"responses": _replies(good, schema, refusals, invalid=invalid)}


def _query(name: str, about: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": about, "schema": schema}


def paths() -> dict[str, Any]:
    reply, session = ref("Reply"), ref("Session")
    one, decide = (400, 409, *LOAD), (400, 409, *LOAD)
    limit = _query("limit", "Of one page.", {"type": "integer", "minimum": 1, "maximum": 1000})
    cursor = _query("cursor", "From the page before.", TEXT)
    after = _query("after", "Number of the last event seen.", {"type": "integer", "minimum": 0})
    stream = {
        "200": {
            "description": "Server-sent events: step, durable, deleted.",
            "content": {"text/event-stream": {"schema": TEXT}},
        }
    }
    events = _operation("Follow a session's steps.", "session_events", 200, TEXT, (404, 429), parameters=(SESSION, after))
    events["responses"] |= stream
    text = {"200": {"description": "Prometheus text.", "content": {"text/plain": {"schema": TEXT}}}}
    metrics = _operation("Metrics of the server.", "metrics", 200, TEXT, (403,), invalid=False)
    metrics["responses"] |= text
    new = _operation("Open a session.", "open_session", 201, session, (409, 413, 415, 429, 503), "Opening", required=False)
    fork = _operation("A second session that shares everything so far.", "fork_session", 201, session,
                      (404, 409, 413, 415, 429, 503), "Fork", parameters=(SESSION,), required=False)  # fmt: skip
    return {
        "/v1/systemone": {"post": _operation("Answer questions about a state.", "systemone", 200, reply, one, "SystemOne",
                                             parameters=(DEADLINE,))},
        "/v1/decisions": {"post": _operation("The same in the OpenAI Decisions shape.", "decisions", 200, ref("DecisionsReply"),
                                             (400, *LOAD), "Decisions", parameters=(DEADLINE,))},
        "/v1/models": {"get": _operation("The model that answers.", "models", 200, ref("Models"))},
        "/v1/sessions": {
            "get": _operation("List sessions.", "list_sessions", 200, ref("Sessions"), parameters=(limit, cursor)), "post": new,
        },
        "/v1/sessions/{session}": {
            "get": _operation("A session with its steps.", "get_session", 200, session, (404,), parameters=(SESSION,)),
            "delete": _operation("Delete a session and what only it holds.", "delete_session", 200, ref("Deleted"), (404, 503),
                                 parameters=(SESSION,)),
        },
        "/v1/sessions/{session}/decide": {"post": _operation(
            "One step: answer questions about the session's history.", "decide", 200, reply, decide, "Decide",
            parameters=(SESSION, DEADLINE))},
        "/v1/sessions/{session}/prefetch": {"post": _operation(
            "Bring what a step will start from to the engine.", "prefetch", 200, ref("Prefetched"), (409, *LOAD), "Prefetch",
            parameters=(SESSION,))},
        "/v1/sessions/{session}/events": {"get": events},
        "/v1/sessions/{session}/fork": {"post": fork},
        "/health": {"get": _operation("The process answers.", "health", 200, ref("Health"))},
        "/ready": {"get": _operation("A decision would be answered.", "ready", 200, ref("Ready")) | {"security": []}},
        "/v1/stats": {"get": _operation("Counters since the start.", "stats", 200, ref("Stats"), (403,))},
        "/metrics": {"get": metrics},
    }  # fmt: skip


def document(settings: Settings) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a server with these limits."""
    described = paths()
    described["/ready"]["get"]["responses"]["503"] = {"description": "Not yet.", "content": _json(ref("Ready"))}
    return {
        "openapi": "3.1.0",
        "info": {"title": "flide-agent", "version": __version__, "description": "Typed decisions about an agent's history."},
        "paths": described,
        "components": {
            "schemas": requests(settings) | replies(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }
