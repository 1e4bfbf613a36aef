"""Plain chat messages: a list of role/content messages, or an object that holds one (OpenAI chat rows, mini-swe-agent)."""

from __future__ import annotations

from typing import Any

from flide_agent.replay.messages import action_of, message
from flide_agent.replay.records import ReadError, Step, Wire
from flide_agent.replay.text import Cleaned

KEYS = ("messages", "trajectory", "traj")
"""Where a row keeps its messages."""


def find(value: Any) -> list[Any] | None:
    """The list of messages in a value of this format, else None. Each item has a role; in an object the list may be empty."""
    if isinstance(value, list):
        return value if value and all(isinstance(m, dict) and "role" in m for m in value) else None
    if isinstance(value, dict):
        for key in KEYS:
            items = value.get(key)
            if isinstance(items, list) and all(isinstance(m, dict) and "role" in m for m in items):
                return items
    return None


def steps(items: list[Any], clean: Cleaned) -> list[Step]:
    """A step before every assistant message. Raises ReadError.

    mini-swe-agent ends with a message of role `exit`, which holds the submission: an outcome, so it is never part of a history.
    """
    sent: list[Wire] = []
    out: list[Step] = []
    for i, raw in enumerate(items):
        if not isinstance(raw, dict):
            raise ReadError(f"messages[{i}] is not a message")
        if raw.get("role") == "exit":
            continue
        one = message(raw, f"messages[{i}]", clean)
        if one["role"] == "assistant":
            out.append(Step(len(out) + 1, list(sent), "history", action_of(one)))
        sent.append(one)
    return out
