"""OpenHands V0: a list of events, and rows of output.jsonl that hold one (`history`, in three shapes)."""

from __future__ import annotations

from typing import Any

from flide_agent.replay.messages import content, text_field
from flide_agent.replay.records import ReadError, Wire
from flide_agent.replay.turns import Turns, call, seconds

_SILENT = frozenset(
    (
        "",
        "null",
        "agent_state_changed",
        "change_agent_state",
        "recall",
        "pause",
        "resume",
        "start",
        "condensation_request",
        "loop_detection",
    )
)
"""Events that are not part of what the model sees."""
_NOT_SAID = frozenset(
    (
        "thought",
        "confirmation_state",
        "is_confirmed",
        "security_risk",
        "action_risk",
        "hidden",
        "blocking",
        "keep_prompt",
        "impl_source",
    )
) | {"translated_ipython_code", "kernel_init_code", "wait_for_response", "is_input", "is_static"}
"""Arguments that the tool adds to what the model said."""
_RISKS = {-1: "UNKNOWN", 0: "LOW", 1: "MEDIUM", 2: "HIGH"}


def find(value: Any) -> list[Any] | None:
    """The events of a value of this format, flat; else None."""
    items = value.get("history") if isinstance(value, dict) else value
    if not isinstance(items, list) or not items:
        return None
    if all(isinstance(pair, list) and pair and all(isinstance(e, dict) for e in pair) for pair in items):
        items = [event for pair in items for event in pair]
    events = all(isinstance(e, dict) and "role" not in e and "kind" not in e for e in items)
    return items if events and any("action" in e or "observation" in e for e in items) else None


def read(items: list[Any], turns: Turns, *, as_sent: bool) -> Any:
    """A step before every action of the agent that its model chose; several actions of one answer are one step.

    as_sent: a condensation takes out what it names and puts its summary in. Returns the tools of the system event, else None.
    Raises ReadError.
    """
    tools, answer, acted = None, "", False
    for i, event in enumerate(items):
        where = f"events[{i}]"
        mark = str(event.get("id", f"#{i}"))
        kind = event.get("action")
        if "observation" in event and not isinstance(kind, str):
            _observe(event, where, turns, mark)
            continue
        raw = event.get("args", event if "id" not in event else {})
        if not isinstance(raw, dict):
            raise ReadError(f"{where}.args is not an object")
        if kind is not None and not isinstance(kind, str):
            raise ReadError(f"{where}.action is not a name")
        if kind == "condensation" and as_sent:
            condense(turns, _forgotten(raw), raw.get("summary"), raw.get("summary_offset"))
        if not kind or kind in _SILENT or kind == "condensation":
            continue
        if kind == "system":
            tools = raw.get("tools")
            turns.add(
                {"role": "system", "content": content(raw.get("content"), f"{where}.args.content", turns.clean)}, mark=mark
            )
            continue
        source = event.get("source", "user" if kind == "message" and not acted else "agent")
        if source != "agent":
            turns.add({"role": "user", "content": _said(raw, kind, where, turns)}, mark=mark)
            continue
        acted = True
        one, own = _action(event, raw, str(kind), where, turns)
        if own and own == answer:
            turns.join(one)
            continue
        answer = own
        turns.decide(one, action=_shown(raw, str(kind), one), mark=mark, at=seconds(event.get("timestamp")), risk=_risk(raw))
    return tools


def condense(turns: Turns, forgotten: set[str], summary: object, offset: object) -> None:
    """Take the forgotten events out of what the agent sees, and put the summary in their place."""
    turns.forget(forgotten)
    if isinstance(summary, str) and summary:
        place = offset if isinstance(offset, int) and not isinstance(offset, bool) else len(turns)
        turns.put(place, {"role": "user", "content": turns.clean.sent(summary)})


def _forgotten(raw: dict[str, Any]) -> set[str]:
    ids = raw.get("forgotten_event_ids")
    if isinstance(ids, list):
        return {str(i) for i in ids}
    first, last = raw.get("forgotten_events_start_id"), raw.get("forgotten_events_end_id")
    if isinstance(first, int) and isinstance(last, int) and 0 <= last - first < 1_000_000:
        return {str(i) for i in range(first, last + 1)}
    return set()


def _said(raw: dict[str, Any], kind: object, where: str, turns: Turns) -> str:
    for key in ("content", "command", "code"):
        if key in raw:
            return content(raw[key], f"{where}.args.{key}", turns.clean)
    return turns.clean.sent(text_field(raw, "message") or str(kind))


def _action(event: dict[str, Any], raw: dict[str, Any], kind: str, where: str, turns: Turns) -> tuple[Wire, str]:
    """The agent's message for an action, and the id of the model's answer that it came in ("" where none is told)."""
    meta = event.get("tool_call_metadata")
    thought = turns.clean.sent(text_field(raw, "thought"))
    if isinstance(meta, dict) and isinstance(meta.get("function_name"), str):
        call_id = text_field(meta, "tool_call_id")
        response = meta.get("model_response")
        said = _arguments(response, call_id)
        arguments = said if said is not None else {k: v for k, v in raw.items() if k not in _NOT_SAID}
        one: Wire = {"role": "assistant", "content": thought}
        one["tool_calls"] = [call(meta["function_name"], arguments, call_id, turns.clean)]
        return one, text_field(response, "id") if isinstance(response, dict) else ""
    if kind == "message":
        return {"role": "assistant", "content": content(raw.get("content"), f"{where}.args.content", turns.clean)}, ""
    kept = {k: v for k, v in raw.items() if k not in _NOT_SAID and k not in ("action", "source", "timestamp", "message", "id")}
    return {"role": "assistant", "content": thought, "tool_calls": [call(kind, kept, "", turns.clean)]}, ""


def _arguments(response: Any, call_id: str) -> str | None:
    """The arguments as the model wrote them, out of its recorded answer."""
    choices = response.get("choices") if isinstance(response, dict) else None
    for choice in choices if isinstance(choices, list) else []:
        message = choice.get("message") if isinstance(choice, dict) else None
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for one in calls if isinstance(calls, list) else []:
            function = one.get("function") if isinstance(one, dict) and one.get("id") == call_id else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                return str(function["arguments"])
    return None


def _observe(event: dict[str, Any], where: str, turns: Turns, mark: str) -> None:
    kind = event.get("observation")
    if not isinstance(kind, (str, type(None))):
        raise ReadError(f"{where}.observation is not a name")
    if not kind or kind in _SILENT:
        return
    text = content(event.get("content"), f"{where}.content", turns.clean)
    meta = event.get("tool_call_metadata")
    one: Wire = {"role": "tool", "content": text}
    if isinstance(meta, dict) and isinstance(meta.get("tool_call_id"), str):
        one["tool_call_id"] = turns.clean.sent(meta["tool_call_id"])
    turns.add(one, mark=mark, failed=_failed(event, kind))


def _failed(event: dict[str, Any], kind: str | None) -> bool | None:
    """By the exit code (-1: it still runs), else by what the tool says of itself."""
    extras = event.get("extras")
    extras = extras if isinstance(extras, dict) else {}
    meta = extras.get("metadata")
    for place in (meta if isinstance(meta, dict) else {}, extras, event):
        code = place.get("exit_code")
        if isinstance(code, int) and not isinstance(code, bool):
            return None if code == -1 else code != 0
    return True if kind in ("error", "user_rejected") else None


def _risk(raw: dict[str, Any]) -> str:
    risk = raw.get("security_risk", raw.get("action_risk"))
    if isinstance(risk, str):
        return risk.upper()
    return _RISKS.get(risk, "") if isinstance(risk, int) and not isinstance(risk, bool) else ""


def _shown(raw: dict[str, Any], kind: str, one: Wire) -> str | None:
    """What the agent did, in its own words where there are some."""
    for key in ("command", "code"):
        if isinstance(raw.get(key), str) and raw[key]:
            return f"{kind} {raw[key]}"
    return None
