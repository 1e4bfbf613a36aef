"""Rows of nebius/SWE-agent-trajectories: `trajectory` is a list of {role, text, system_prompt, mask, cutoff_date}."""

from __future__ import annotations

from typing import Any

from flide_agent.replay.messages import ROLES
from flide_agent.replay.records import ReadError, Wire
from flide_agent.replay.turns import Turns


def find(value: Any) -> list[Any] | None:
    """The trajectory of a row of this format, else None."""
    items = value.get("trajectory") if isinstance(value, dict) else None
    if isinstance(items, list) and items and all(isinstance(m, dict) and "role" in m and "text" in m for m in items):
        return items
    return None


def read(items: list[Any], turns: Turns) -> None:
    """A step before every `ai` item. Only roles and texts are read: target, eval_logs, exit_status and patch are outcomes."""
    clean = turns.clean
    for i, raw in enumerate(items):
        role = ROLES.get(str(raw["role"]), str(raw["role"]))
        text = raw.get("system_prompt") if role == "system" and raw.get("text") is None else raw["text"]
        if text is not None and not isinstance(text, str):
            raise ReadError(f"trajectory[{i}].text is not text")
        one: Wire = {"role": clean.sent(role), "content": clean.sent(text or "")}
        if role == "assistant":
            turns.decide(one, action=action_in(one["content"]))
        else:
            turns.add(one)


def action_in(text: str) -> str:
    """The last fenced block of an agent's text, which is its command; the whole text where there is none."""
    parts = text.split("```")
    return parts[-2].strip("\n") if len(parts) >= 3 else text
