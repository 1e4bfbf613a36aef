"""A decision model's state: a history, or a text or JSON value.

Messages form the trunk that steps share. Everything else that a caller puts beside them goes after it, so that it never changes what the
next step can reuse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages

from langchain_flide.errors import FlideQuestionError
from langchain_flide.history import Ephemeral, History, history_of, wire_message

CONTEXT = "context"
"""Role of what is read after the history for one question only."""

MESSAGES = "messages"

ROLES = frozenset({"human", "user", "ai", "assistant", "system", "developer"})
"""First parts of a tuple that is a message."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a question is about: a history, or else a plain value."""

    history: History | None = None
    plain: Any = field(default=None)


def read_state(state: Any, ephemeral: Ephemeral | None = None, system: str | None = None) -> Seen:
    """Reads a `State`: a message, messages, `{"messages": [...], **more}`, text, or JSON with messages anywhere in it.

    Raises FlideQuestionError for null and bare numbers.
    """
    if isinstance(state, BaseMessage):
        return Seen(history_of([state], ephemeral, system))
    if isinstance(state, Mapping) and _is_history(state.get(MESSAGES)):
        history = history_of(convert_to_messages(state[MESSAGES]), ephemeral, system)
        more = {key: value for key, value in state.items() if key != MESSAGES}
        if more:
            history.tail.append({"role": CONTEXT, "content": json.dumps(_plain(more), ensure_ascii=False)})
        return Seen(history)
    if _is_history(state) and state:
        return Seen(history_of(convert_to_messages(state), ephemeral, system))
    if not isinstance(state, str | Mapping | Sequence):
        raise FlideQuestionError("state: must be text, a message, an object or a list")
    return Seen(plain=_plain(state))


def messages_in(state: Any, key: str = MESSAGES) -> Sequence[BaseMessage]:
    """The messages of a graph's state: a list of them, a mapping, or an object with such a field."""
    if isinstance(state, list):
        return state
    return (state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)) or []


def as_mapping(state: Any, key: str = MESSAGES) -> Mapping[str, Any]:
    """A graph's state by field, whatever its schema is."""
    if isinstance(state, Mapping):
        return state
    return {key: state} if isinstance(state, list) else dict(vars(state))


def _is_history(value: Any) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(_is_message(m) for m in value)


def _is_message(value: Any) -> bool:
    """Whatever LangChain takes for a message: one, an object with role and content, or a tuple of role and text."""
    if isinstance(value, tuple):
        return len(value) == 2 and value[0] in ROLES and isinstance(value[1], str)
    return isinstance(value, BaseMessage) or (isinstance(value, Mapping) and "role" in value and "content" in value)


def _plain(value: Any) -> Any:
    """JSON-able data, messages in it as role and content."""
    if isinstance(value, BaseMessage):
        return wire_message(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return str(value)
