"""LangChain messages as the service reads them. Content is the authority: two messages that say the same give the same block.

Kept: role, name, text, tool calls (name and arguments with sorted keys), the status of a tool's result. A result is tied to its call by
the call's ordinal in its message, since raw call ids differ between retries of the same step. Left out: ids, metadata, artifacts,
cache marks, reasoning blocks (hosts strip them after the turn, so they would change the history). Media become a line that says so: the
model reads text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall, ToolMessage

Wire = dict[str, Any]
"""One message as JSON-able data: role, content, name, tool_calls, tool_call_id."""

Ephemeral = Callable[[BaseMessage], bool]

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
}
_REASONING = frozenset({"reasoning", "reasoning_content", "thinking", "redacted_thinking"})
_CALLS = frozenset({"tool_use", "tool_call", "tool_call_chunk", "function_call", "input_json_delta", "invalid_tool_call"})
_MEDIA = frozenset(
    {"image", "image_url", "input_image", "audio", "input_audio", "video", "file", "input_file", "document", "media"}
)
_VOLATILE = frozenset({"id", "index", "cache_control", "extras"})
FAILED = "(the tool reported an error)"
UNREADABLE = "(arguments that cannot be written as JSON)"


@dataclass(frozen=True, slots=True)
class History:
    """trunk: the messages of the history. tail: what is read after it for this one question and never enters it."""

    trunk: list[Wire]
    tail: list[Wire] = field(default_factory=list)


def history_of(messages: Iterable[BaseMessage], ephemeral: Ephemeral | None = None, system: str | None = None) -> History:
    """The history of a list of messages.

    ephemeral: which messages are there for this one call only; they and an unfinished chunk at the end go to the tail.
    system: a system prompt that is not among the messages.
    """
    trunk: list[Wire] = [{"role": "system", "content": system}] if system else []
    tail: list[Wire] = []
    ordinals: dict[str, str] = {}
    last: BaseMessage | None = None
    for message in messages:
        wire = wire_message(message, ordinals)
        passing = ephemeral is not None and ephemeral(message)
        (tail if passing else trunk).append(wire)
        last = None if passing else message
    if isinstance(last, AIMessageChunk) and last.chunk_position != "last":
        tail.insert(0, trunk.pop())
    return History(trunk, tail)


def wire_message(message: BaseMessage, ordinals: dict[str, str] | None = None) -> Wire:
    """One message. ordinals: call id -> its number in the message that made it; filled by assistant messages, read by results."""
    ordinals = {} if ordinals is None else ordinals
    kind = message.type
    role = getattr(message, "role", None) if _has_role(type(message)) or message.model_extra else None
    wire: Wire = {"role": role or _ROLES.get(kind, kind), "content": text_of(message.content)}
    if message.name:
        wire["name"] = message.name
    if isinstance(message, ToolMessage):  # first: pydantic is slow to say that something is none of its classes
        wire["tool_call_id"] = ordinals.get(message.tool_call_id, "orphan")
        if message.status == "error":
            wire["content"] = f"{FAILED}\n{wire['content']}" if wire["content"] else FAILED
    elif isinstance(message, AIMessage) and (calls := _all_calls(message)):
        wire["tool_calls"] = _numbered(calls, ordinals)
    return wire


@lru_cache(maxsize=64)
def _has_role(kind: type[BaseMessage]) -> bool:
    """Whether messages of this class have a role, as ChatMessage has: most have none, and pydantic is slow to say so."""
    return "role" in kind.model_fields or hasattr(kind, "role")


def call_message(call: ToolCall | Mapping[str, Any]) -> Wire:
    """A proposed tool call as the message that would make it, alone: the call is judged, not the words around it."""
    return {"role": "assistant", "content": "", "tool_calls": [_call("1", call["name"], arguments(call["args"]))]}


def _encoder(*, sort_keys: bool = False) -> Callable[[Any], str]:
    """Compact `json.dumps`; that makes an encoder anew each time, which takes longer than to write a call's arguments.

    This keeps no list of what it is inside of: a value without an end raises RecursionError.
    """
    accelerated = getattr(json.encoder, "c_make_encoder", None)
    if accelerated is None:  # not every interpreter has one
        return json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str, sort_keys=sort_keys).encode
    chunks = accelerated(None, str, json.encoder.encode_basestring, None, ":", ",", sort_keys, False, True)
    return lambda value: "".join(chunks(value, 0))


_COMPACT, _SORTED = _encoder(), _encoder(sort_keys=True)


def arguments(args: object) -> str:
    """A call's arguments as sorted, compact JSON: the same call always reads the same. UNREADABLE for what has no end."""
    if isinstance(args, str):
        return args
    try:
        try:
            return _SORTED(args)
        except TypeError:  # keys of several types have no order, and some types are no keys of JSON
            return _COMPACT(_orderly(args))
    except (ValueError, RecursionError):
        return UNREADABLE


def _orderly(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: (str(item[0]), type(item[0]).__name__))
        return {key if isinstance(key, str | int | float | None) else str(key): _orderly(item) for key, item in items}
    return [_orderly(item) for item in value] if isinstance(value, list | tuple) else value


def digest_of(messages: Iterable[BaseMessage]) -> str:
    """Names the contents of a history, ids of messages aside: 32 hex digits. It does not change on the way through a checkpointer."""
    said = [_contents(message) for message in messages]
    try:
        try:
            data = msgspec.json.encode(said)
        except UnicodeEncodeError:  # a lone surrogate: checkpointers replace it in the same way
            data = msgspec.json.encode(json.loads(_COMPACT(said).encode("utf-8", "replace")))
    except (TypeError, ValueError, OverflowError, RecursionError):
        data = "\n".join(map(arguments, said)).encode("utf-8", "replace")
    return hashlib.sha256(data).hexdigest()[:32]


def _contents(message: BaseMessage) -> tuple[Any, ...]:
    if isinstance(message, ToolMessage):
        return message.type, message.name, message.content, message.tool_call_id, message.status
    if isinstance(message, AIMessage):
        calls = [(call["name"], call["id"], call["args"]) for call in _all_calls(message)]
        return message.type, message.name, message.content, calls
    return message.type, message.name, message.content


def _all_calls(message: AIMessage) -> Sequence[Mapping[str, Any]]:
    return (*message.tool_calls, *message.invalid_tool_calls) if message.invalid_tool_calls else message.tool_calls


def _numbered(calls: Sequence[Mapping[str, Any]], ordinals: dict[str, str]) -> list[Wire]:
    wires: list[Wire] = []
    for i, call in enumerate(calls, 1):
        ordinal = str(i)
        if call["id"]:
            ordinals[call["id"]] = ordinal
        wires.append(_call(ordinal, call["name"] or "unnamed", arguments(call["args"] or {})))
    return wires


def _call(ordinal: str, name: str, args: str) -> Wire:
    return {"id": ordinal, "type": "function", "function": {"name": name, "arguments": args}}


def text_of(content: str | Sequence[Any]) -> str:
    """The text of a message's content. A string and one text block with it are equal."""
    if isinstance(content, str):
        return content
    parts = (_part(block) for block in content)
    return "\n".join(part for part in parts if part is not None)


def _part(block: Any) -> str | None:
    if isinstance(block, str):
        return block
    if not isinstance(block, Mapping):
        return str(block)
    kind = str(block.get("type", ""))
    if kind in _REASONING or kind in _CALLS:
        return None
    if isinstance(block.get("text"), str):
        return str(block["text"])
    if kind in _MEDIA:
        return f"({kind} part, not shown)"
    kept = {key: value for key, value in block.items() if key not in _VOLATILE}
    return json.dumps(kept, sort_keys=True, ensure_ascii=False, default=str)
