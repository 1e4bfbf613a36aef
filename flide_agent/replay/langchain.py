"""LangChain messages: `messages_to_dict` ({type, data}), `dumpd` ({lc, id, kwargs}), and the flat form of LangGraph states."""

from __future__ import annotations

from typing import Any

from flide_agent.replay.messages import message, text_field
from flide_agent.replay.records import ReadError
from flide_agent.replay.turns import Turns

_TYPES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool", "developer": "system",
          "user": "user", "assistant": "assistant"}  # fmt: skip
_REMOVE_ALL = "__remove_all__"


def find(value: Any) -> list[Any] | None:
    """The messages of a value of this format, else None: a list, or under `messages`, also inside `values` or `outputs`."""
    if isinstance(value, dict):
        for key in ("values", "outputs", "output", "inputs", "kwargs"):
            if isinstance(value.get(key), dict) and "messages" not in value:
                return find(value[key])
        value = value.get("messages")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if isinstance(value, list) and value and all(_one(m) for m in value):
        return value
    return None


def _one(value: Any) -> bool:
    if not isinstance(value, dict) or "role" in value:
        return False
    if value.get("lc") is not None and isinstance(value.get("id"), list):
        return True
    kind = text_field(value, "type")
    return (bool(_kind(kind)) and (isinstance(value.get("data"), dict) or "content" in value)) or kind == "remove"


def _kind(name: str) -> str:
    """The role of a type or of a class's name: AIMessageChunk, ai."""
    low = name.lower()
    for suffix in ("chunk", "message"):
        low = low.removesuffix(suffix)
    return _TYPES.get(low, "")


def read(items: list[Any], turns: Turns) -> None:
    """A step before every AIMessage; a RemoveMessage takes out what it names. Raises ReadError."""
    for i, raw in enumerate(items):
        where = f"messages[{i}]"
        name, data = _opened(raw, where)
        mark = text_field(data, "id")
        if name == "remove":
            turns.restart(0) if mark == _REMOVE_ALL else turns.forget({mark} - {""})
            continue
        role = _kind(name)
        if not role:
            raise ReadError(f"{where} is a {name[:40]!r}, not a message")
        calls = data.get("tool_calls")
        more = data.get("additional_kwargs")
        if not calls and isinstance(more, dict):
            calls = more.get("tool_calls")
        one = message(
            {**data, "role": role, "tool_calls": calls or [], "content": _content(data.get("content"))}, where, turns.clean
        )
        broken = data.get("invalid_tool_calls")
        if isinstance(broken, list) and broken and all(isinstance(b, dict) for b in broken):
            one.setdefault("tool_calls", []).extend(
                message({"role": role, "tool_calls": broken}, where, turns.clean)["tool_calls"]
            )
        if role == "assistant":
            turns.decide(one, mark=mark)
        else:
            status = data.get("status")
            turns.add(one, mark=mark, failed=status == "error" if role == "tool" and status in ("error", "success") else None)


def _content(raw: Any) -> Any:
    """Without the tool calls that Anthropic models repeat among the content's parts."""
    if not isinstance(raw, list):
        return raw
    return [
        p for p in raw if not (isinstance(p, dict) and text_field(p, "type") in ("tool_use", "tool_call", "input_json_delta"))
    ]


def _opened(raw: dict[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """Type and fields of one message."""
    if isinstance(raw.get("id"), list):
        if not isinstance(raw.get("kwargs"), dict):
            raise ReadError(f"{where} could not be written by LangChain: type {str(raw.get('type'))[:40]!r}")
        name = str(raw["id"][-1]) if raw["id"] else ""
        return ("remove" if name == "RemoveMessage" else name), raw["kwargs"]
    data = raw.get("data")
    return text_field(raw, "type"), data if isinstance(data, dict) else raw
