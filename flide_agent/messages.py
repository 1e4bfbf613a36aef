"""Canonical messages: what an agent's history is made of, whatever shape a client sends it in.

Also the two errors that bad input raises (`InputError`, `InputErrors`); the API turns each into the items of one 422 reply.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

Loc = tuple[str | int, ...]

_SURROGATE = re.compile("[\ud800-\udfff]")
# Parts whose bytes say nothing to a text model. Everything else that is not text is shown as its JSON.
_UNSEEN = ("image", "audio", "video", "file", "document", "redacted")


class InputError(ValueError):
    """One thing wrong with a request.

    loc: path to it, such as ("body", "messages", 3, "role"); type: FastAPI's word for the kind of fault.
    """

    def __init__(self, loc: Loc, msg: str, type: str = "value_error") -> None:
        super().__init__(msg)
        self.loc = tuple(loc)
        self.msg = msg
        self.type = type

    def detail(self) -> dict[str, Any]:
        """The item of the `detail` list of a 422 reply."""
        return {"loc": list(self.loc), "msg": self.msg, "type": self.type}

    def details(self) -> list[dict[str, Any]]:
        return [self.detail()]


class InputErrors(ValueError):
    """Everything wrong with a request, found in one reading. errors: at least one InputError, in the order of the request."""

    def __init__(self, errors: Sequence[InputError]) -> None:
        super().__init__("; ".join(e.msg for e in errors))
        self.errors = list(errors)

    def details(self) -> list[dict[str, Any]]:
        """The `detail` list of a 422 reply."""
        return [e.detail() for e in self.errors]


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the agent proposes. arguments: the text as sent; objects are dumped as JSON."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True):
    """One message of a history. tool_call_id: the call that a tool's message answers."""

    role: str
    content: str
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    def digest(self) -> bytes:
        """SHA-256 (32 bytes) of all fields, each framed by its length, so that no two messages give the same bytes."""
        h = hashlib.sha256(b"flide-message-1")
        fields = [self.role, self.content, self.name, self.tool_call_id]
        for call in self.tool_calls:
            fields += [call.id, call.name, call.arguments]
        for field in fields:
            data = field.encode("utf-8", "surrogatepass")
            h.update(len(data).to_bytes(8, "little"))
            h.update(data)
        return h.digest()


def well_formed(text: str) -> str:
    """The text with every lone surrogate as U+FFFD: what can be written as UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("�", text)
    return text


def dumps(value: object, loc: Loc) -> str:
    """JSON as the prompt shows it: key order and non-ASCII kept, `json.dumps`'s own separators. Raises InputError(loc)."""
    try:
        return well_formed(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        raise InputError(loc, "nested too deeply", "recursion_loop") from None
    except (TypeError, ValueError) as error:
        raise InputError(loc, f"cannot be written as JSON: {error}", "json_type") from None


def canonical(raw: object, loc: Loc = ()) -> Message:
    """The canonical form of one message as clients send it.

    Takes string, null or list-of-parts content, OpenAI `tool_calls` (also flat ones with `args`), the older `function_call`,
    and tool messages. Unknown keys are ignored. Parts are joined by newlines: texts as they are, media as a line that says so,
    others as JSON; `tool_use` parts become tool calls. Raises InputError(loc + path, msg).
    """
    if isinstance(raw, Message):
        return raw
    if not isinstance(raw, dict):
        raise InputError(loc, "a message must be an object with a role and content", "dict_type")
    role = _text(raw, "role", loc)
    if not role.strip():
        raise InputError((*loc, "role"), "a message needs a role such as user, assistant or tool", "missing")
    calls = _tool_calls(raw, loc)
    if "content" not in raw and not calls:
        raise InputError((*loc, "content"), "a message needs content (null is allowed) or tool calls", "missing")
    content, more = _content(raw.get("content"), (*loc, "content"))
    return Message(role, content, _text(raw, "name", loc), (*calls, *more), _text(raw, "tool_call_id", loc))


def canonical_all(raw: object, loc: Loc = ()) -> list[Message]:
    """The canonical form of a list of messages. Raises InputError for no list, InputErrors with all that is wrong."""
    if not isinstance(raw, list | tuple):
        raise InputError(loc, "must be a list of messages", "list_type")
    messages: list[Message] = []
    errors: list[InputError] = []
    for i, item in enumerate(raw):
        try:
            messages.append(canonical(item, (*loc, i)))
        except InputError as error:
            errors.append(error)
    if errors:
        raise InputErrors(errors)
    return messages


def _text(raw: dict[Any, Any], key: str, loc: Loc) -> str:
    value = raw.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError((*loc, key), f"{key} must be a string", "string_type")
    return well_formed(value)


def _content(value: object, loc: Loc) -> tuple[str, list[ToolCall]]:
    if value is None:
        return "", []
    if isinstance(value, str):
        return well_formed(value), []
    if not isinstance(value, list | tuple):
        raise InputError(loc, "content must be a string, null or a list of parts", "string_type")
    texts: list[str] = []
    calls: list[ToolCall] = []
    for i, part in enumerate(value):
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, dict):
            raise InputError((*loc, i), "a content part must be a string or an object", "dict_type")
        elif part.get("type") == "tool_use":
            calls.append(_tool_call(part, (*loc, i)))
        else:
            texts.append(_part_text(part, (*loc, i)))
    return well_formed("\n".join(texts)), calls


def _part_text(part: dict[Any, Any], loc: Loc) -> str:
    kind = str(part.get("type", ""))
    for key in ("text", "refusal", "thinking"):
        if isinstance(part.get(key), str) and (key == "text" or kind == key):
            return str(part[key])
    if any(word in kind for word in _UNSEEN) or "image" in part or "image_url" in part:
        return f"({kind or 'image'} part, not shown)"
    return dumps(part, loc)


def _tool_calls(raw: dict[Any, Any], loc: Loc) -> tuple[ToolCall, ...]:
    value = raw.get("tool_calls")
    if value is None:
        value = ()
    if not isinstance(value, list | tuple):
        raise InputError((*loc, "tool_calls"), "tool_calls must be a list", "list_type")
    calls = [_tool_call(item, (*loc, "tool_calls", i)) for i, item in enumerate(value)]
    if raw.get("function_call") is not None:
        calls.append(_tool_call({"function": raw["function_call"]}, (*loc, "function_call")))
    return tuple(calls)


def _tool_call(raw: object, loc: Loc) -> ToolCall:
    if not isinstance(raw, dict):
        raise InputError(loc, "a tool call must be an object", "dict_type")
    function = raw.get("function", raw)
    if isinstance(function, str):
        function = {**raw, "name": function}
    if not isinstance(function, dict):
        raise InputError((*loc, "function"), "function must be an object with a name and arguments", "dict_type")
    name = _text(function, "name", loc)
    if not name.strip():
        raise InputError((*loc, "name"), "a tool call needs the name of its function", "missing")
    arguments = next((function[key] for key in ("arguments", "args", "input") if function.get(key) is not None), "")
    text = well_formed(arguments) if isinstance(arguments, str) else dumps(arguments, (*loc, "arguments"))
    return ToolCall(_text(raw, "id", loc), name, text)
