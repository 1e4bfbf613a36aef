"""What `on_decision` is told, and what the middleware keeps in the agent's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_flide.asking import Failure
from langchain_flide.responses import FlideResponse, Reuse


@dataclass(frozen=True, slots=True)
class FlideEvent:
    """One decision. status: of the closed set in `verdicts.Status`. tool: the call's tool, for guards. data: verdict, route or numbers.

    Holds no text of the history and no arguments.
    """

    kind: Literal["guard", "route", "watch"]
    status: str
    enforced: bool
    tool: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    reuse: Reuse | None = None
    latency_ms: dict[str, float] = field(default_factory=dict)
    session: str | None = None
    untrained: bool = False


OnDecision = Callable[[FlideEvent], None]


def event(
    kind: Literal["guard", "route", "watch"],
    status: str,
    heard: FlideResponse | Failure | None,
    *,
    enforced: bool,
    tool: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> FlideEvent:
    if not isinstance(heard, FlideResponse):
        return FlideEvent(kind, status, enforced, tool, dict(data or {}))
    more = (heard.reuse, heard.latency_ms, heard.session, heard.untrained)
    return FlideEvent(kind, status, enforced, tool, dict(data or {}), *more)


def merged(left: dict[str, Any] | None, right: dict[str, Any] | None) -> dict[str, Any]:
    """Reducer of the private state: by middleware, then by part."""
    result = dict(left or {})
    for name, parts in (right or {}).items():
        result[name] = {**result.get(name, {}), **parts}
    return result
