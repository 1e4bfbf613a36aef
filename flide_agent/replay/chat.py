"""Chat messages of any provider: OpenAI rows and completion logs, Anthropic's with blocks, mini-swe-agent, Responses API items."""

from __future__ import annotations

import json
from typing import Any

from flide_agent.replay.messages import content, text_field
from flide_agent.replay.records import ReadError
from flide_agent.replay.text import line
from flide_agent.replay.turns import Turns, seconds, turn

KEYS = ("messages", "trajectory", "traj", "conversation")
"""Where a row keeps its messages."""


def find(value: Any) -> list[Any] | None:
    """The list of messages in a value of this format, else None. Each item has a role; in an object the list may be empty."""
    if isinstance(value, list):
        return value if value and all(map(_is_message, value)) else None
    if isinstance(value, dict):
        for key in KEYS:
            items = value.get(key)
            if isinstance(items, str) and items.lstrip().startswith("["):  # some data sets keep the list as text
                items = _parsed(items)
            if isinstance(items, list) and all(map(_is_message, items)):
                return items
    return None


def form(value: Any) -> str:
    """The format's name: what the file says of itself, else by its shape."""
    if isinstance(value, dict):
        said = text_field(value, "trajectory_format")
        if said:
            return line(said, 40)
        if "system" in value or "anthropic_version" in value:
            return "anthropic"
    return "chat"


def read(value: Any, items: list[Any], turns: Turns) -> None:
    """A step before every assistant message. Raises ReadError.

    mini-swe-agent ends with a message of role `exit`, its version 1 with one of the user: that holds the submission, an outcome,
    so it is never part of a history.
    Anthropic's system prompt stands outside of the messages.
    """
    system = value.get("system") if isinstance(value, dict) else None
    if isinstance(system, (str, list)) and system:
        turns.add({"role": "system", "content": content(system, "system", turns.clean)})
    for i, raw in enumerate(items):
        if not isinstance(raw, dict):
            raise ReadError(f"messages[{i}] is not a message")
        if raw.get("role") == "exit":
            continue
        extra = raw.get("extra")
        at = seconds(extra.get("timestamp") if isinstance(extra, dict) else raw.get("timestamp"))
        turn(raw, f"messages[{i}]", turns, at=at)
    info = value.get("info") if isinstance(value, dict) else None
    if isinstance(info, dict) and info.get("exit_status"):
        turns.over()


def tools(value: Any) -> Any:
    """The tool schemas beside the messages, as a list or as text that holds one."""
    raw = value.get("tools") if isinstance(value, dict) else None
    return _parsed(raw) if isinstance(raw, str) else raw


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return "role" in value or value.get("object") == "response" or value.get("type") == "function_call_output"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
