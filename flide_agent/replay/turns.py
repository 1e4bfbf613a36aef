"""Building a run: messages one after the other, and a step before every message of the agent."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from flide_agent.replay.messages import ROLES, action_of, content, dumped, finite, message, text_field
from flide_agent.replay.records import ReadError, Step, Wire
from flide_agent.replay.text import Cleaned

_RETURNCODE = re.compile(r"\s*<returncode>(-?\d{1,9})</returncode>")
_CALL_PARTS = {"tool_use", "server_tool_use", "tool-call"}
_RESULT_PARTS = {"tool_result", "tool-result"}


class Turns:
    """Messages so far and the steps among them.

    Each message may carry a mark (an event's id), so that a later one can take it out of what the agent sees.
    """

    def __init__(self, clean: Cleaned) -> None:
        self.clean = clean
        self.steps: list[Step] = []
        self._sent: list[Wire] = []
        self._marks: list[str] = []
        self._known: dict[str, Any] = {}
        """Labels of the history as it stands: of the next step before it acts, and so of the last one after it has."""
        self._result: list[Wire] | None = None
        """Of the last step, as long as what comes is its result."""
        self._proposed: list[Wire] | None = None

    def add(self, one: Wire, *, mark: str = "", failed: bool | None = None) -> None:
        """A message that is no decision. failed: whether the command that it reports on failed, where the file says so."""
        self._sent.append(one)
        self._marks.append(mark)
        if self._result is not None:
            self._result.append(one)
        if failed is not None:
            self._known["last_failed"] = self._known.get("last_failed", False) or failed

    def decide(
        self,
        one: Wire,
        *,
        action: str | None = None,
        mark: str = "",
        at: float | None = None,
        risk: str = "",
        counts: bool = True,
    ) -> None:
        """The agent's message. counts: whether it is a decision (a copied one is not; it comes with what the last one led to)."""
        if counts:
            labels = self._known
            calls = one.get("tool_calls")
            if calls:
                labels["next_tool"] = calls[0]["function"]["name"]
            elif action and action.split():
                labels["next_tool"] = action.split()[0]
            if risk:
                labels["security_risk"] = risk
            what = action_of(one) if action is None else action
            self._known, self._result, self._proposed = {}, [], [one]
            step = Step(len(self.steps) + 1, list(self._sent), "history", what, labels, at,
                        self._proposed, self._result, self._known)  # fmt: skip
            self.steps.append(step)
        else:
            self._known.clear()
            self._proposed = None
            if self._result is not None:
                self._result.append(one)
        self._sent.append(one)
        self._marks.append(mark)

    def join(self, one: Wire) -> None:
        """More of the message that was decided last: one answer of a model, several events."""
        place = next((i for i in reversed(range(len(self._sent))) if self._sent[i]["role"] == "assistant"), None)
        if place is None:
            return
        joined = _joined(self._sent[place], one)
        if self._proposed is not None and self._proposed[0] is self._sent[place]:
            self._proposed[0] = joined
        elif self._result is not None:
            self._result[:] = [joined if m is self._sent[place] else m for m in self._result]
        self._sent[place] = joined

    def over(self) -> None:
        """The run has ended: what came back on its last step is the tool's closing word, and no agent saw it."""
        if self._result is not None:
            self._result.clear()
            self._known.clear()

    def extend(self, other: Turns, *, counts: bool, join: bool) -> None:
        """Add the messages of another builder. join: its agent message goes on with the one before (lines of one answer)."""
        at = other.steps[-1].at if other.steps else None
        for one in other._sent:
            if one["role"] != "assistant":
                self.add(one, failed=other._known.get("last_failed"))
            elif join and any(m["role"] == "assistant" for m in self._sent):
                self.join(one)
            else:
                self.decide(one, at=at, counts=counts)

    def forget(self, marks: set[str]) -> int:
        """Take the messages with these marks out; how many there were. The steps before have seen them."""
        kept = [i for i, mark in enumerate(self._marks) if mark not in marks]
        gone = len(self._marks) - len(kept)
        self._sent, self._marks = [self._sent[i] for i in kept], [self._marks[i] for i in kept]
        return gone

    def put(self, place: int, one: Wire) -> None:
        """A message at a place among those that are seen now: a summary."""
        self._sent.insert(min(max(place, 0), len(self._sent)), one)
        self._marks.insert(min(max(place, 0), len(self._marks)), "")

    def restart(self, keep: int) -> None:
        """From here on the agent sees the first `keep` messages and what follows; that is no result of its last step."""
        del self._sent[keep:], self._marks[keep:]
        self._result = None

    def __len__(self) -> int:
        return len(self._sent)


def turn(raw: dict[str, Any], where: str, turns: Turns, *, at: float | None = None, mark: str = "") -> None:
    """Add one message of any chat API: OpenAI's, Anthropic's with blocks, or an item of the Responses API. Raises ReadError."""
    clean = turns.clean
    if raw.get("object") == "response" or (isinstance(raw.get("output"), list) and "role" not in raw):
        turns.decide(_response(raw, where, clean), at=at, mark=mark)
        return
    if raw.get("type") == "function_call_output":
        output = raw.get("output")
        text = output if isinstance(output, str) else content(output, f"{where}.output", clean)
        one: Wire = {"role": "tool", "content": clean.sent(text)}
        if isinstance(raw.get("call_id"), str):
            one["tool_call_id"] = clean.sent(raw["call_id"])
        turns.add(one, failed=failed(raw), mark=mark)
        return
    parts = raw.get("content")
    if isinstance(parts, list) and any(
        isinstance(p, dict) and text_field(p, "type") in _CALL_PARTS | _RESULT_PARTS for p in parts
    ):
        _blocks(raw, parts, where, turns, at, mark)
        return
    one = message(raw, where, clean)
    if one["role"] == "assistant":
        turns.decide(one, at=at, mark=mark)
    else:
        turns.add(one, failed=failed(raw), mark=mark)


def failed(raw: dict[str, Any]) -> bool | None:
    """Whether a message says that the command it reports on failed: return code, error mark; None where it says nothing."""
    extra = raw.get("extra")
    code = extra.get("returncode") if isinstance(extra, dict) else None
    if isinstance(code, int):
        return code != 0
    if isinstance(raw.get("is_error"), bool):
        return bool(raw["is_error"])
    if raw.get("role") in ("user", "tool") and isinstance(raw.get("content"), str):
        told = _RETURNCODE.match(raw["content"])
        if told:
            return int(told[1]) != 0
    return None


def seconds(value: object) -> float | None:
    """A time stamp, a number or ISO 8601, as seconds since 1970; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 0 <= value < 1e11 else None
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return None
    return None


def tools_of(raw: object, clean: Cleaned) -> list[Any]:
    """Tool schemas as they are sent: strings cleaned, numbers that JSON has not as null. [] for anything but a list of objects."""
    if not isinstance(raw, list) or not all(isinstance(t, dict) for t in raw):
        return []
    return [_cleaned(finite(t), clean) for t in raw]


def call(name: str, arguments: object, call_id: str, clean: Cleaned) -> Wire:
    """One tool call; arguments: text as it is, or an object."""
    return {
        "id": clean.sent(call_id),
        "type": "function",
        "function": {"name": clean.sent(name), "arguments": clean.sent(dumped(arguments))},
    }


def _joined(first: Wire, more: Wire) -> Wire:
    """Two parts of one answer as one message."""
    out = {**first, "content": "\n".join(t for t in (first["content"], more["content"]) if t)}
    calls = [*first.get("tool_calls", []), *more.get("tool_calls", [])]
    return {**out, "tool_calls": calls} if calls else out


def _cleaned(value: Any, clean: Cleaned) -> Any:
    if isinstance(value, str):
        return clean.sent(value)
    if isinstance(value, dict):
        return {clean.sent(k): _cleaned(v, clean) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(v, clean) for v in value]
    return value


def _response(raw: dict[str, Any], where: str, clean: Cleaned) -> Wire:
    """The items of one answer of the Responses API as one message; reasoning is left out."""
    texts: list[str] = []
    calls: list[Wire] = []
    items = raw.get("output")
    if not isinstance(items, list):
        raise ReadError(f"{where}.output is not a list")
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise ReadError(f"{where}.output[{i}] is not an item")
        if item.get("type") == "message":
            texts.append(content(item.get("content"), f"{where}.output[{i}].content", clean))
        elif item.get("type") in ("function_call", "custom_tool_call"):
            given = item.get("arguments") if "arguments" in item else item.get("input")
            calls.append(call(text_field(item, "name"), given, text_field(item, "call_id"), clean))
    out: Wire = {"role": "assistant", "content": "\n".join(t for t in texts if t)}
    if calls:
        out["tool_calls"] = calls
    return out


def _blocks(raw: dict[str, Any], parts: list[Any], where: str, turns: Turns, at: float | None, mark: str) -> None:
    """Anthropic's content blocks: a tool's results stand inside a user message and become messages of their own, before its text."""
    clean, rest, calls = turns.clean, [], []
    role = ROLES.get(str(raw.get("role")), str(raw.get("role")))
    for i, part in enumerate(parts):
        kind = text_field(part, "type") if isinstance(part, dict) else ""
        if kind in _CALL_PARTS and role == "assistant":
            name = text_field(part, "name") or text_field(part, "toolName")
            calls.append(call(name, part.get("input"), text_field(part, "id") or text_field(part, "toolCallId"), clean))
        elif kind in _RESULT_PARTS:
            one: Wire = {"role": "tool", "content": content(part.get("content"), f"{where}.content[{i}].content", clean)}
            if isinstance(part.get("tool_use_id"), str):
                one["tool_call_id"] = clean.sent(part["tool_use_id"])
            if role == "assistant":
                raise ReadError(f"{where}.content[{i}] is a tool's result in a message of the agent")
            error = part.get("is_error")
            turns.add(one, failed=error if isinstance(error, bool) else None, mark=mark)
        else:
            rest.append(part)
    one = message({**raw, "content": rest}, where, clean)
    if calls:
        one["tool_calls"] = calls
    if role == "assistant":
        turns.decide(one, at=at, mark=mark)
    elif one["content"]:
        turns.add(one, mark=mark)
