"""Every error body of the service. Always JSON, always under `detail`; the shapes are listed in docs/api.md."""

from __future__ import annotations

import logging
import math
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import (
    ClientException,
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    SerializationException,
    ValidationException,
)
from litestar.types import ExceptionHandlersMap

from flide_agent.errors import (
    AuthenticationError,
    BodyTimeout,
    BodyTooLarge,
    FlideError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Overloaded,
)

log = logging.getLogger("flide_agent.api")


OPENAI_ROUTE = "/v1/decisions"


def encoded(error: FlideError, path: str = "") -> tuple[int, dict[str, str], bytes]:
    """(status, headers of its own, body) of one of our errors. Clients of OpenAI's shape read `error`, beside `detail`."""
    headers: dict[str, str] = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, BodyTimeout):
        headers["Connection"] = "close"  # what may still come is no request
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    body: dict[str, Any] = {"detail": error.detail()}
    if path == OPENAI_ROUTE:
        body["error"] = {"message": error.message, "type": error.error_type, "param": None, "code": None}
    return error.status or 500, headers, msgspec.json.encode(body)


def reply(request: Request[Any, Any, Any], error: FlideError, headers: dict[str, str] | None = None) -> Response[bytes]:
    """The response for one of our errors."""
    status, own, body = encoded(error, request.scope["path"])
    return Response(body, status_code=status, headers={**(headers or {}), **own}, media_type=MediaType.JSON)


def on_ours(request: Request[Any, Any, Any], error: FlideError) -> Response[bytes]:
    if isinstance(error, Overloaded):
        request.app.state.backend.refused(error.reason)
    elif isinstance(error, InternalError):
        log.error("%s failed: %s", request.method, error.message)
    return reply(request, error)


def on_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What the framework itself refuses: routes, methods, sizes, parameters."""
    headers = dict(error.headers or {})
    match error:
        case NotFoundException():
            return reply(request, NotFound(f"no such route: {request.url.path}"), headers)
        case MethodNotAllowedException():
            return reply(request, MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}"), headers)
        case ValidationException() | SerializationException():
            return reply(request, InvalidRequest.at((), error.detail))
        case ClientException() if error.status_code == 413:
            return reply(request, BodyTooLarge(error.detail))
    if error.status_code < 500:
        return reply(request, InvalidRequest.at((), error.detail))
    return on_fault(request, error)


def on_fault(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A fault of ours. The traceback goes to the log, the caller learns that it was not his."""
    log.error("%s failed", request.method, exc_info=error)
    return reply(request, InternalError(f"the server failed on this request ({type(error).__name__})"))


HANDLERS: ExceptionHandlersMap = {
    FlideError: on_ours,
    HTTPException: on_http,
    Exception: on_fault,
}
