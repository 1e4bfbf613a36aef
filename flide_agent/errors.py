"""What can go wrong between a question and its answer, as one family of exceptions.

The service raises them, `api/errors.py` turns them into HTTP bodies, and `client.py` turns those bodies back into the same
classes, so that code written against `Client` and code written against `LocalService` catch the same things.
Standard library only: the client imports this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar


class FlideError(Exception):
    """Base of all errors of this package.

    status: the HTTP status that it has on the wire (0 when it never travels).
    error_type: `detail.error_type` on the wire.
    retry_after: seconds after which another try makes sense; None when another try would end the same way.
    """

    status: ClassVar[int] = 500
    error_type: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after

    def detail(self) -> Any:
        """The value of `detail` in the body."""
        return {"error_type": self.error_type, "message": self.message}


class InvalidRequest(FlideError):
    """The request does not say what it should; `details` has one {loc, msg, type} for each mistake."""

    status = 422
    error_type = "validation_error"

    def __init__(self, details: Iterable[dict[str, Any]]) -> None:
        self.details = list(details)
        super().__init__("; ".join(f"{'.'.join(map(str, d.get('loc', ())))}: {d.get('msg', '')}" for d in self.details))

    @classmethod
    def at(cls, loc: tuple[str | int, ...], msg: str, type: str = "value_error") -> InvalidRequest:
        """One mistake at one place; loc starts below the body."""
        return cls([{"loc": ["body", *loc], "msg": msg, "type": type}])

    def detail(self) -> Any:
        return self.details


class UnknownModel(FlideError):
    """The request names a model that is not served here."""

    status = 400
    error_type = "api_usage_error"


class AuthenticationError(FlideError):
    """A wrong or missing key."""

    status = 401
    error_type = "authentication_error"


class Forbidden(FlideError):
    """The key is valid, and not for this."""

    status = 403
    error_type = "permission_error"


class NotFound(FlideError):
    """No such route or no such session."""

    status = 404
    error_type = "not_found"


class MethodNotAllowed(FlideError):
    """The route exists, the method does not."""

    status = 405
    error_type = "method_not_allowed"


class Conflict(FlideError):
    """The request contradicts what the session is."""

    status = 409
    error_type = "conflict"


class HeadConflict(Conflict):
    """`append` follows a head that this session does not know; `head` is the current one. Send `messages` instead."""

    error_type = "unknown_head"

    def __init__(self, message: str, head: str | None) -> None:
        super().__init__(message)
        self.head = head

    def detail(self) -> Any:
        return {"error_type": self.error_type, "message": self.message, "head": self.head}


class TooLong(FlideError):
    """The state, a question or the whole request has more tokens than the limits allow. Nothing was cut off."""

    status = 413
    error_type = "max_tokens_exceeded"


class BodyTooLarge(FlideError):
    """The body has more bytes than the limits allow."""

    status = 413
    error_type = "body_too_large"


class UnsupportedEncoding(FlideError):
    """A Content-Encoding or Content-Type that this server does not read."""

    status = 415
    error_type = "unsupported_media_type"


class Overloaded(FlideError):
    """More than the server takes at the moment. Try again after `retry_after` seconds. reason: which limit, for metrics."""

    status = 429
    error_type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after: float | None = None, reason: str = "queue") -> None:
        super().__init__(message, retry_after=retry_after)
        self.reason = reason


class InternalError(FlideError):
    """A fault of ours; the message says no more than what the caller can act on."""


class Unavailable(FlideError):
    """The service starts, stops, or has no memory left at the moment."""

    status = 503
    error_type = "unavailable"


class Unreachable(FlideError):
    """Client only: no answer from the server."""

    status = 0
    error_type = "unreachable"


class DeadlineExceeded(FlideError):
    """The deadline passed before an answer came. On the wire: before the engine began with it, so nothing was computed."""

    status = 408
    error_type = "deadline_exceeded"


class BodyTimeout(DeadlineExceeded):
    """The request's body did not arrive in time."""


class UnexpectedReply(FlideError):
    """Client only: the answer is not what this client understands."""

    status = 0
    error_type = "unexpected_reply"


class StartError(FlideError):
    """The service cannot start: unknown model, store in use, port taken. The message says what to change."""

    status = 0
    error_type = "start_error"


BY_TYPE: dict[str, type[FlideError]] = {
    c.error_type: c
    for c in (UnknownModel, AuthenticationError, NotFound, MethodNotAllowed, Conflict, TooLong, BodyTooLarge,
              UnsupportedEncoding, Overloaded, InternalError, Unavailable, DeadlineExceeded, Forbidden)
}  # fmt: skip
BY_STATUS: dict[int, type[FlideError]] = {
    400: UnknownModel, 401: AuthenticationError, 403: AuthenticationError, 404: NotFound, 405: MethodNotAllowed,
    408: DeadlineExceeded, 409: Conflict, 413: TooLong, 415: UnsupportedEncoding, 429: Overloaded, 503: Unavailable, 529: Overloaded,
}  # fmt: skip


def from_wire(status: int, body: Any, retry_after: float | None = None) -> FlideError:
    """The error that a reply stands for. body: the decoded JSON, or text when it was none."""
    detail = body.get("detail", body) if isinstance(body, dict) else body
    if isinstance(detail, list) and status == 422:
        return InvalidRequest([d if isinstance(d, dict) else {"msg": str(d)} for d in detail])
    name, message = "", str(detail)
    if isinstance(detail, dict):
        name, message = str(detail.get("error_type", "")), str(detail.get("message", detail))
        if name == HeadConflict.error_type:
            head = detail.get("head")
            return HeadConflict(message, head if isinstance(head, str) else None)
    kind = BY_TYPE.get(name) or BY_STATUS.get(status)
    if kind is None:
        kind = InternalError if status >= 500 else UnexpectedReply
        message = f"HTTP {status}: {message}"
    error = kind(message, retry_after=retry_after)
    return error
