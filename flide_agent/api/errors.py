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

from flide_agent.errors import BodyTooLarge, FlideError, InternalError, InvalidRequest, MethodNotAllowed, NotFound

log = logging.getLogger("flide_agent.api")


def reply(error: FlideError, headers: dict[str, str] | None = None) -> Response[bytes]:
    """The response for one of our errors."""
    headers = dict(headers or {})
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    body = msgspec.json.encode({"detail": error.detail()})
    return Response(body, status_code=error.status or 500, headers=headers, media_type=MediaType.JSON)


def on_ours(_: Request[Any, Any, Any], error: FlideError) -> Response[bytes]:
    return reply(error)


def on_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What the framework itself refuses: routes, methods, sizes, parameters."""
    headers = dict(error.headers or {})
    match error:
        case NotFoundException():
            return reply(NotFound(f"no such route: {request.url.path}"), headers)
        case MethodNotAllowedException():
            return reply(MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}"), headers)
        case ValidationException() | SerializationException():
            return reply(InvalidRequest.at((), error.detail))
        case ClientException() if error.status_code == 413:
            return reply(BodyTooLarge(error.detail))
    if error.status_code < 500:
        return reply(InvalidRequest.at((), error.detail))
    return on_fault(request, error)


def on_fault(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A fault of ours. The traceback goes to the log, the caller learns that it was not his."""
    log.error("%s failed", request.method, exc_info=error)
    return reply(InternalError(f"the server failed on this request ({type(error).__name__})"))


HANDLERS: ExceptionHandlersMap = {
    FlideError: on_ours,
    HTTPException: on_http,
    Exception: on_fault,
}
