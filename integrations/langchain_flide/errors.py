"""What can go wrong with a decision, as LangChain's own kinds of model errors.

Each class is both a FlideLangChainError and the `langchain_core.exceptions` class that retry and fallback code looks for. No message holds
any text of a state.
"""

from __future__ import annotations

from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelError,
    ModelInvalidRequestError,
    ModelRateLimitError,
    ModelTimeoutError,
)

from flide_agent import errors as wire


class FlideLangChainError(ModelError):
    """Base. status: the closed code used in decisions, events and metrics. retry_after: seconds, when the service named them."""

    status = "unavailable"
    retry_after: float | None = None


class FlideConnectionError(FlideLangChainError, ModelConnectionError):
    """No answer from the service: not running, refused, or the connection broke."""


class FlideTimeoutError(FlideLangChainError, ModelTimeoutError):
    """The deadline, all tries included, passed before an answer came."""

    status = "timeout"


class FlideRateLimitError(FlideLangChainError, ModelRateLimitError):
    """The service's queue is full; see `retry_after`."""

    status = "overloaded"


class FlideServiceError(FlideLangChainError, ModelAPIError):
    """The service starts, stops, is out of memory, or failed."""


class FlideAuthenticationError(FlideLangChainError, ModelAuthenticationError):
    """A wrong or missing key. Never tried again."""

    status = "invalid"


class FlideQuestionError(FlideLangChainError, ModelInvalidRequestError):
    """A question or a state that cannot be asked; the message names the place, e.g. `questions.route.criteria`."""

    status = "invalid"


class FlideContextOverflowError(FlideLangChainError, ContextOverflowError):
    """History and questions exceed what the model reads. Nothing was cut off."""

    status = "overflow"


class FlideProtocolError(FlideLangChainError, ModelAPIError):
    """The service's reply is not what this version understands."""

    status = "invalid"
    is_retryable = False


class FlideBlocked(FlideLangChainError):
    """Raised by `on_block="raise"`. tool: the name of the tool that was not run."""

    status = "blocked"

    def __init__(self, message: str, tool: str) -> None:
        super().__init__(message)
        self.tool = tool


def translated(error: wire.FlideError, url: str) -> FlideLangChainError:
    """The error of `flide_agent.client` as one of these."""
    kind: type[FlideLangChainError]
    message = error.message
    match error:
        case wire.DeadlineExceeded():
            kind = FlideTimeoutError
        case wire.Unreachable():
            kind, message = FlideConnectionError, f"no Flide service at {url}; start one with `flide-agent serve`"
        case wire.Overloaded():
            kind = FlideRateLimitError
        case wire.AuthenticationError():
            kind = FlideAuthenticationError
        case wire.TooLong() | wire.BodyTooLarge():
            kind = FlideContextOverflowError
        case wire.InvalidRequest():
            kind = FlideQuestionError
            message = "; ".join(_place(d) for d in error.details)
        case wire.UnknownModel() | wire.Conflict() | wire.UnsupportedEncoding():
            kind = FlideQuestionError
        case wire.UnexpectedReply() | wire.NotFound() | wire.MethodNotAllowed():
            kind, message = FlideProtocolError, f"{url} does not answer as a Flide service of this version: {error.message}"
        case _:
            kind = FlideServiceError
    result = kind(message)
    result.retry_after = error.retry_after
    return result


def _place(detail: dict[str, object]) -> str:
    loc = detail.get("loc")
    parts = [str(p) for p in loc if p not in ("body", "path")] if isinstance(loc, list | tuple) else []
    return f"{'.'.join(parts)}: {detail.get('msg', '')}"
