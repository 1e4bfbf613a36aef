"""ATIF (Harbor's agent trajectory interchange format), v1.0 to v1.8: steps of system, user and agent; an agent step holds its
own observation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from flide_agent.replay.messages import content, text_field
from flide_agent.replay.records import ReadError, Wire
from flide_agent.replay.turns import Turns, call, seconds

_VERSION = re.compile(r"ATIF-v1\.(\d+)$")
NEWEST = 8
DEEPEST = 20
"""Subagents inside subagents."""
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def is_trajectory(value: Any) -> bool:
    """Whether a value claims to be of this format."""
    if not isinstance(value, dict):
        return False
    version = value.get("schema_version")
    return (isinstance(version, str) and version.startswith("ATIF")) or (
        isinstance(value.get("agent"), dict) and "steps" in value
    )


def all_of(value: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """The trajectory itself, then those of its subagents. Raises ReadError."""
    yield value
    inside = value.get("subagent_trajectories")
    if inside is None:
        return
    if not isinstance(inside, list) or depth >= DEEPEST:
        raise ReadError("subagent_trajectories is not a list" if depth < DEEPEST else "subagent_trajectories nest too deeply")
    for i, one in enumerate(inside):
        if not isinstance(one, dict):
            raise ReadError(f"subagent_trajectories[{i}] is not a trajectory")
        yield from all_of(one, depth + 1)


def notes(value: dict[str, Any]) -> list[str]:
    """What the version says, where it is none that is known."""
    version = text_field(value, "schema_version")
    known = _VERSION.match(version)
    return (
        [] if known and int(known[1]) <= NEWEST else [f"schema_version {version[:30]!r} is not known; read as ATIF-v1.{NEWEST}"]
    )


def read(value: dict[str, Any], turns: Turns, *, as_sent: bool) -> None:
    """A step before every agent step that a model decided on. Raises ReadError.

    Not decisions: steps copied from an earlier file (is_copied_context) and steps without a call of a model
    (llm_call_count 0). as_sent: after a summarisation (a system step that refers to subagents) the agent sees what stood
    before its first step, and what follows.
    """
    items = value.get("steps")
    if not isinstance(items, list):
        raise ReadError("steps is not a list")
    first: int | None = None
    for i, raw in enumerate(items):
        where = f"steps[{i}]"
        if not isinstance(raw, dict):
            raise ReadError(f"{where} is not a step")
        source = raw.get("source")
        if not isinstance(source, str) or source not in _ROLES:
            raise ReadError(f"{where}.source is none of system, user, agent")
        if source == "system" and as_sent and first is not None and _handed_over(raw):
            turns.restart(first)
            continue
        one: Wire = {"role": _ROLES[source], "content": content(raw.get("message"), f"{where}.message", turns.clean)}
        if source == "agent":
            first = len(turns) if first is None else first
            calls = _calls(raw.get("tool_calls"), f"{where}.tool_calls", turns)
            if calls:
                one["tool_calls"] = calls
            counts = not raw.get("is_copied_context") and raw.get("llm_call_count") != 0
            turns.decide(one, at=seconds(raw.get("timestamp")), counts=counts)
        else:
            turns.add(one)
        _observe(raw.get("observation"), f"{where}.observation", turns)


def tools(value: dict[str, Any]) -> Any:
    agent = value.get("agent")
    return agent.get("tool_definitions") if isinstance(agent, dict) else None


def name(value: dict[str, Any]) -> str:
    return text_field(value, "trajectory_id") or text_field(value, "session_id")


def _results(raw: Any) -> list[Any]:
    results = raw.get("results") if isinstance(raw, dict) else None
    return results if isinstance(results, list) else []


def _handed_over(raw: dict[str, Any]) -> bool:
    return any(isinstance(r, dict) and r.get("subagent_trajectory_ref") for r in _results(raw.get("observation")))


def _calls(raw: Any, where: str, turns: Turns) -> list[Wire]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise ReadError(f"{where} is not a list")
    out = []
    for i, one in enumerate(raw):
        if not isinstance(one, dict):
            raise ReadError(f"{where}[{i}] is not a tool call")
        out.append(call(text_field(one, "function_name"), one.get("arguments"), text_field(one, "tool_call_id"), turns.clean))
    return out


def _observe(raw: Any, where: str, turns: Turns) -> None:
    """What came back, a message for each result: of a tool where it names the call, else of the user."""
    for i, result in enumerate(_results(raw)):
        if not isinstance(result, dict):
            raise ReadError(f"{where}.results[{i}] is not a result")
        if result.get("content") is None:
            continue
        text = content(result["content"], f"{where}.results[{i}].content", turns.clean)
        asked = text_field(result, "source_call_id")
        turns.add(
            {"role": "tool", "content": text, "tool_call_id": turns.clean.sent(asked)}
            if asked
            else {"role": "user", "content": text}
        )
