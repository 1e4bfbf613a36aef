"""The server's log: lines of text, or one JSON object a line. Both carry the id of the request that a line belongs to.

What is logged are names that operators chose, numbers and ids that we made; never text of a request.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import msgspec

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that this task works on."""

traceparent: ContextVar[str] = ContextVar("traceparent", default="")
"""The W3C header that came with it."""

FIELDS = "fields"
"""`log.info("request", extra={FIELDS: {...}})`: numbers and names beside the message."""


class JsonLines(logging.Formatter):
    """{"time", "level", "logger", "message", "request_id"?, fields..., "error"?} in one line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if current := request_id.get():
            line["request_id"] = current
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextLines(logging.Formatter):
    """Time, level, logger, message, then name=value."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        more = dict(getattr(record, FIELDS, {}))
        if current := request_id.get():
            more["request_id"] = current
        return line if not more else f"{line} {' '.join(f'{k}={v}' for k, v in more.items())}"


def start(log_format: str) -> None:
    """Log to stderr. log_format: text, json, or auto (text on a terminal)."""
    handler = logging.StreamHandler(sys.stderr)
    text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextLines() if text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
