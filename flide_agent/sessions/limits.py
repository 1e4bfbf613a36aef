"""What ids, heads and metadata may be."""

from __future__ import annotations

import json
from typing import Any

from flide_agent.errors import InvalidRequest
from flide_agent.sessions.history import ID_BYTES
from flide_agent.sessions.live import LiveSession

MAX_ID = 512
"""Characters of a tenant or session id."""
MAX_METADATA = 16384
"""Bytes of a session's metadata as JSON."""


def checked(text: str, field: str) -> str:
    """The id if it is one, else InvalidRequest."""
    if not 1 <= len(text) <= MAX_ID:
        raise InvalidRequest.at((field,), f"must have 1 to {MAX_ID} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest.at((field,), "has characters that are no Unicode text") from None
    return text


def metadata_json(value: Any) -> bytes:
    """Metadata as it is kept. Raises InvalidRequest."""
    try:
        data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequest.at(("metadata",), "cannot be written as JSON") from None
    if len(data) > MAX_METADATA:
        raise InvalidRequest.at(("metadata",), f"has {len(data)} bytes as JSON; at most {MAX_METADATA} are kept")
    return data


def id_bytes(text: str) -> bytes | None:
    """16 bytes from their hex; None when it is none."""
    try:
        value = bytes.fromhex(text)
    except ValueError:
        return None
    return value if len(value) == ID_BYTES else None


def head_bytes(head: str | None, session: LiveSession) -> bytes:
    """The head that `append` follows; an id that no history has when it cannot be one."""
    if head is None:
        return session.current.id
    return id_bytes(head) or b"\0"
