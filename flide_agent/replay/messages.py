"""From a format's message objects to the messages that are sent. Only named fields are taken, so no outcome can slip in."""

from __future__ import annotations

import json
import math
from typing import Any

from flide_agent.replay.records import ReadError, Wire
from flide_agent.replay.text import Cleaned

ROLES = {"ai": "assistant", "human": "user", "developer": "system", "function": "tool"}
"""Names of other tools for the four roles."""

_LEFT_OUT = {"thinking", "redacted_thinking", "reasoning"}
_MEDIA = {
    **dict.fromkeys(("image", "image_url", "input_image"), "[image]"),
    **dict.fromkeys(("audio", "input_audio"), "[audio]"),
    **dict.fromkeys(("video", "document", "file", "input_file"), "[file]"),
}


def message(raw: object, where: str, clean: Cleaned) -> Wire:
    """role, content, name, tool_calls and tool_call_id of one chat message; anything else stays behind.

    raw: a message object. where: its place in the file, for errors. Raises ReadError.
    """
    if not isinstance(raw, dict):
        raise ReadError(f"{where} is {_kind(raw)}, not a message")
    role = raw.get("role")
    if not isinstance(role, str) or not role.strip():
        raise ReadError(f"{where} has no role")
    out: Wire = {"role": clean.sent(ROLES.get(role, role)), "content": content(raw.get("content"), f"{where}.content", clean)}
    if isinstance(raw.get("name"), str) and raw["name"]:
        out["name"] = clean.sent(raw["name"])
    calls = raw.get("tool_calls")
    if not calls and isinstance(raw.get("function_call"), dict):
        calls = [{"id": "", "function": raw["function_call"]}]
    if calls:
        if not isinstance(calls, list):
            raise ReadError(f"{where}.tool_calls is {_kind(calls)}, not a list")
        out["tool_calls"] = [_call(c, f"{where}.tool_calls[{i}]", clean) for i, c in enumerate(calls)]
    ids = raw.get("tool_call_ids")
    answered = raw.get("tool_call_id") or (ids[0] if isinstance(ids, list) and ids else None)
    if isinstance(answered, str):
        out["tool_call_id"] = clean.sent(answered)
    return out


def content(raw: object, where: str, clean: Cleaned) -> str:
    """Text of a message's content: a string, null, or a list of parts. Images become "[image]", thinking is left out."""
    if raw is None:
        return ""
    if isinstance(raw, str):
        return clean.sent(raw)
    if not isinstance(raw, list):
        raise ReadError(f"{where} is {_kind(raw)}, not text")
    parts: list[str] = []
    for i, part in enumerate(raw):
        if isinstance(part, str):
            parts.append(clean.sent(part))
            continue
        if not isinstance(part, dict):
            raise ReadError(f"{where}[{i}] is {_kind(part)}, not a content part")
        kind = part.get("type", "text")
        if isinstance(part.get("text"), str) and kind in ("text", "input_text", "output_text"):
            parts.append(clean.sent(part["text"]))
        elif isinstance(kind, str) and kind in _MEDIA:
            clean.payloads += 1
            parts.append(_MEDIA[kind])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            parts.append(clean.sent(part["refusal"]))
        elif not isinstance(kind, str) or kind not in _LEFT_OUT:
            raise ReadError(f"{where}[{i}] is a part of type {str(kind)[:40]!r}, which is not read")
    return "\n".join(parts)


def text_field(raw: dict[str, Any], key: str) -> str:
    """A string field, "" where it is missing or something else."""
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def action_of(sent: Wire) -> str:
    """What an agent message does, for showing: its tool calls, else its text."""
    calls = sent.get("tool_calls")
    if calls:
        return "; ".join(f"{c['function']['name']} {c['function']['arguments']}" for c in calls)
    return str(sent["content"])


def _call(raw: object, where: str, clean: Cleaned) -> Wire:
    if not isinstance(raw, dict):
        raise ReadError(f"{where} is {_kind(raw)}, not a tool call")
    function = raw.get("function")
    named = function if isinstance(function, dict) else raw
    name = text_field(named, "name") or text_field(raw, "function")
    arguments = named.get("arguments", named.get("args"))  # LangChain's name for it
    return {
        "id": clean.sent(text_field(raw, "id")),
        "type": "function",
        "function": {"name": clean.sent(name), "arguments": clean.sent(dumped(arguments))},
    }


def dumped(arguments: object) -> str:
    """A tool call's arguments as text: text as it is (broken JSON too), an object as JSON, null as nothing."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json.dumps(finite(arguments), ensure_ascii=False)


def finite(value: Any) -> Any:
    """The value with numbers that JSON does not have (1e999 reads as infinity) as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return value


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names: dict[type, str] = {str: "text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "something else")
