"""What is known of a request before its body is read: id, tenant, deadline. `gate` makes it, handlers read it."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from flide_agent.errors import FlideError, InvalidRequest
from flide_agent.inflight import Share
from flide_agent.keys import TENANT

KEY = "flide_agent"
REQUEST_ID = "x-request-id"
DEADLINE = "x-deadline-ms"
LONGEST_DEADLINE = 3_600_000.0
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(slots=True)
class Call:
    """deadline: of time.perf_counter, 0.0 for none. operator: may see what concerns all tenants. share: its place among the
    bytes in flight. status: of the reply, once it has begun."""

    id: str
    tenant: str = TENANT
    operator: bool = True
    known: bool = True
    deadline: float = 0.0
    started: float = field(default_factory=time.perf_counter)
    share: Share | None = None
    status: int = 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


def of(scope: Any) -> Call:
    """The call of an ASGI scope that went through the gate."""
    return cast(Call, scope[KEY])


def headers_of(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers that the gate reads, by name. The last one of a name counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs if name in _READ}


_READ = frozenset({b"authorization", b"content-length", b"traceparent", b"host", REQUEST_ID.encode(), DEADLINE.encode()})


def request_id(given: str) -> str:
    """The client's id when it is one that a log can hold, else a new one."""
    return given if _ID.fullmatch(given) else uuid.uuid4().hex


def deadline(given: str, default_seconds: float, started: float) -> float:
    """Of time.perf_counter, from milliseconds as text. Raises InvalidRequest."""
    if not given:
        return started + default_seconds if default_seconds else 0.0
    try:
        ms = float(given)
    except ValueError:
        ms = -1.0
    if not 0 < ms <= LONGEST_DEADLINE:
        message = f"milliseconds from now until the answer is of no use: a number above 0, up to {LONGEST_DEADLINE:.0f}"
        raise InvalidRequest([{"loc": ["header", DEADLINE], "msg": message, "type": "float_parsing"}])
    return started + ms / 1e3


class Gone(FlideError):
    """Nobody is left to read the answer."""

    status = 499
    error_type = "client_closed_request"
