"""Inspect AI eval logs: samples with messages; long texts and images are kept once and referred to."""

from __future__ import annotations

from typing import Any

from flide_agent.replay.records import ReadError
from flide_agent.replay.turns import Turns, turn

_SCHEMES = ("attachment://", "tc://")


def find(value: Any) -> list[Any] | None:
    """The samples of a log, or of one member of an .eval archive; else None."""
    if not isinstance(value, dict):
        return None
    samples = value.get("samples")
    if isinstance(samples, list) and ("eval" in value or "plan" in value):
        return samples
    alone = isinstance(value.get("messages"), list) and "epoch" in value and ("scores" in value or "target" in value)
    return [value] if alone else None


def read(sample: Any, turns: Turns) -> None:
    """A step before every assistant message of a sample. Target, scores and metadata are never read. Raises ReadError."""
    if not isinstance(sample, dict):
        raise ReadError("a sample is not an object")
    messages = sample.get("messages")
    if not isinstance(messages, list):
        raise ReadError("a sample has no list of messages")
    kept = _kept(sample)
    for i, raw in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(raw, dict):
            raise ReadError(f"{where} is not a message")
        one = _resolved(raw, kept, where, 0)
        if one.get("role") == "tool":
            one["is_error"] = one.get("error") is not None
        turn(one, where, turns)


def tools(sample: Any) -> Any:
    """The tools of the first call of the model, where the sample's events hold it."""
    events = sample.get("events") if isinstance(sample, dict) else None
    for event in events if isinstance(events, list) else []:
        if isinstance(event, dict) and event.get("event") == "model":
            return event.get("tools")
    return None


def name(sample: Any) -> str:
    return f"sample {sample.get('id')}" if isinstance(sample, dict) and isinstance(sample.get("id"), (str, int)) else ""


def _kept(sample: dict[str, Any]) -> dict[str, Any]:
    transcript = sample.get("transcript")
    old = transcript.get("content") if isinstance(transcript, dict) else None
    new = sample.get("attachments")
    return {**(old if isinstance(old, dict) else {}), **(new if isinstance(new, dict) else {})}


def _resolved(value: Any, kept: dict[str, Any], where: str, depth: int) -> Any:
    if depth > 20:
        raise ReadError(f"{where} is nested too deeply")
    if isinstance(value, str) and value.startswith(_SCHEMES):
        found = kept.get(value.partition("://")[2])
        if not isinstance(found, str):
            raise ReadError(f"{where} refers to an attachment that the sample does not hold")
        return found
    if isinstance(value, dict):
        return {k: _resolved(v, kept, where, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_resolved(v, kept, where, depth + 1) for v in value]
    return value
