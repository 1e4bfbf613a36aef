"""What the model reads, as text: states, blocks of a transcript, questions. Knows no tokens.

The wording is versioned by FORMAT: recordings, checkpoints and the default model depend on every character of it. The question part is
worded as vLLM's System One endpoint words it (`Question:`, one line for each option, the reply line); structured text is JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeGuard

from flide_agent.messages import InputError, Message, canonical_all, dumps, well_formed
from flide_agent.questions import Choice, Option, Question, Score, option_text

FORMAT = "flide-1"
SORTED = FORMAT + "-sorted"
"""The same wording, with the options of each choice sorted."""

PREFIX_ROLES = frozenset({"system", "developer"})
"""Messages of these roles at a history's start belong to the system-and-tools prefix, which sessions of one agent share."""

# Keys that a transcript shows, of messages, text parts, tool calls and their functions.
_MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "function_call"})
_PART_KEYS = frozenset({"type", "text", "cache_control"})
_CALL_KEYS = frozenset({"id", "type", "function"})
_FUNCTION_KEYS = frozenset({"name", "arguments"})
_HEADING = re.compile(r"\[(?:\d+\][ \t]|(?:call|result)[ \]])")
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def transcript(state: object) -> list[Message] | None:
    """The messages of a state that is a list of role/content messages; None for other states.

    A list with anything that a transcript would leave out (other keys with a value, parts that are not text) is no transcript but JSON.
    """
    if not isinstance(state, list) or not state or not all(_is_message(item) for item in state):
        return None
    return canonical_all(state, ("body", "state"))


def _is_message(item: object) -> bool:
    if not _only(item, _MESSAGE_KEYS) or not isinstance(item.get("role"), str) or not item["role"].strip():
        return False
    calls, call = item.get("tool_calls") or [], item.get("function_call")
    if not isinstance(calls, list) or not all(_only(c, _CALL_KEYS) and _is_call(c) for c in calls):
        return False
    if call is not None and not _is_call({"function": call}):
        return False
    if any(not isinstance(item.get(key) or "", str) for key in ("name", "tool_call_id")):
        return False
    content = item.get("content")
    if isinstance(content, list):
        return all(isinstance(p, str) or (_only(p, _PART_KEYS) and isinstance(p.get("text"), str)) for p in content)
    return isinstance(content, str) or (content is None and ("content" in item or bool(calls) or call is not None))


def _is_call(call: dict[str, Any]) -> bool:
    function = call.get("function")
    if not _only(function, _FUNCTION_KEYS) or not isinstance(call.get("id") or "", str):
        return False
    return isinstance(function.get("name"), str) and bool(function["name"].strip())


def _only(item: object, keys: frozenset[str]) -> TypeGuard[dict[str, Any]]:
    """Whether the item is an object with nothing in other keys."""
    return isinstance(item, dict) and all(key in keys or value in (None, "", [], {}) for key, value in item.items())


def state_text(state: object) -> str:
    """A state that is no transcript: a string less leading white space, an object or array as JSON.

    The chat template trims the user turn, so leading white space would never be read. Raises InputError for null, numbers and booleans.
    """
    if isinstance(state, str):
        return well_formed(state).lstrip()
    if isinstance(state, dict | list):
        return dumps(state, ("body", "state"))
    kind = "missing" if state is None else "string_type"
    raise InputError(("body", "state"), "state must be a string, an object or an array", kind)


def state_part(text: str) -> str:
    """A state's text as the trunk holds it: with a blank line after it. An empty state leaves nothing, as the template's trim does."""
    return text + "\n\n" if text else ""


def tools_block(tools: Sequence[object]) -> str:
    """Block [0]: the tool schemas, one JSON line each."""
    return _block("[0] tools", [escape_headings(dumps(tool, ("body", "tools", i))) for i, tool in enumerate(tools)])


def message_block(index: int, message: Message) -> str:
    """The block of message number `index` (from 1): of its index and itself alone, from its heading to one blank line.

        [7] assistant
        Let me look.
        [call call_1] bash {"command": "ls"}

        [8] tool bash
        [result call_1]
        setup.py

    Lines of outside text that look like a heading, a call or a result get a backslash before the bracket.
    """
    role, name = "_".join(message.role.split()), " ".join(message.name.split())
    lines = [f"[result {_word(message.tool_call_id)}]"] if message.tool_call_id else []
    if message.content:
        lines.append(escape_headings(message.content))
    for call in message.tool_calls:
        head = f"[call {_word(call.id)}]" if call.id else "[call]"
        line = f"{head} {' '.join(call.name.split())} "
        lines.append(line + escape_headings(call.arguments, at_line_start=False))
    return _block(f"[{index}] {role} {name}".rstrip(), lines)


def _word(text: str) -> str:
    return "_".join(text.split())


def _block(heading: str, lines: list[str]) -> str:
    return well_formed("\n".join([heading, *lines])).rstrip("\r\n") + "\n\n"


def escape_headings(text: str, at_line_start: bool = True) -> str:
    """Put a backslash before the bracket of every line that could pass for a heading, a call or a result of a transcript.

    Backslashes already before such a bracket stay and are counted, so different texts stay different.
    """

    def escaped(match: re.Match[str]) -> str:
        at = match.start()
        while at and text[at - 1] == "\\":
            at -= 1
        starts_line = text[at - 1] in _LINE_ENDS if at else at_line_start
        return "\\" + match[0] if starts_line else match[0]

    return _HEADING.sub(escaped, text)


def question_part(question: Question, labels: Sequence[str]) -> str:
    """The text of a branch. labels: in the order of options, levels, or (yes, no). Its first character is an ASCII letter or digit."""
    lines = [f"Question: {question.instructions}"] if question.instructions else []
    if isinstance(question, Choice):
        lines += [f"{label}: {option_text(option)}" for label, option in zip(labels, question.options, strict=True)]
        lines.append("Answer with the letter of one option only.")
    elif isinstance(question, Score):
        lines += [f"{label}: {level}" for label, level in zip(labels, question.levels, strict=True)]
        lines.append("Answer with the number of one level only.")
    else:
        lines += [_side(label, text) for label, text in zip(labels, (question.true, question.false), strict=True)]
        lines.append("Answer with yes or no only.")
    return well_formed("\n".join(lines))


def sorted_order(options: Sequence[Option]) -> tuple[int, ...]:
    """Which option stands where when they are sorted by what the prompt shows of them, by code points; equal texts as asked.

    () where that is the order asked.
    """
    texts = [well_formed(option_text(option)) for option in options]
    order = tuple(sorted(range(len(texts)), key=texts.__getitem__))
    return () if order == tuple(range(len(texts))) else order


def _side(label: str, text: str) -> str:
    return f"{label}: {text}" if text else label
