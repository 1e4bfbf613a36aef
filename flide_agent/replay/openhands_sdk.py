"""OpenHands SDK (V1): events with a `kind`, one a line, one a file of a folder, or a list."""

from __future__ import annotations

from typing import Any

from flide_agent.replay.messages import content, text_field
from flide_agent.replay.openhands import condense
from flide_agent.replay.records import ReadError, Wire
from flide_agent.replay.turns import Turns, call, seconds, tools_of

_RESULTS = ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")


def is_event(value: Any) -> bool:
    """Whether a value is an event of this format."""
    kind = value.get("kind") if isinstance(value, dict) else None
    return (
        isinstance(kind, str) and (kind.endswith(("Event", "Observation")) or kind.startswith("Condensation")) and "id" in value
    )


def read(events: list[dict[str, Any]], turns: Turns, *, as_sent: bool) -> list[Any]:
    """A step before every answer of the agent's model; several actions of one answer are one step. Returns the tools.

    as_sent: a condensation takes out what it names and puts its summary in. Raises ReadError.
    """
    tools: list[Any] = []
    answer = ""
    for i, event in enumerate(events):
        kind, where, mark = event["kind"], f"events[{i}]", text_field(event, "id")
        if kind == "SystemPromptEvent":
            turns.add(
                {"role": "system", "content": _text(event.get("system_prompt"), f"{where}.system_prompt", turns)}, mark=mark
            )
            tools = tools_of(event.get("tools"), turns.clean)
        elif kind == "MessageEvent":
            raw = event.get("llm_message")
            if not isinstance(raw, dict):
                raise ReadError(f"{where}.llm_message is not a message")
            text = content(raw.get("content"), f"{where}.llm_message.content", turns.clean)
            more = content(event.get("extended_content"), f"{where}.extended_content", turns.clean)
            one: Wire = {"content": "\n".join(t for t in (text, more) if t)}
            if event.get("source") == "agent" or raw.get("role") == "assistant":
                turns.decide({"role": "assistant", **one}, mark=mark, at=seconds(event.get("timestamp")))
            else:
                turns.add({"role": "user", **one}, mark=mark)
        elif kind == "ActionEvent":
            one = _action(event, where, turns)
            own = text_field(event, "llm_response_id")
            if own and own == answer:
                turns.join({**one, "content": ""})
            else:
                turns.decide(
                    one, mark=mark, at=seconds(event.get("timestamp")), risk=text_field(event, "security_risk").upper()
                )
            answer = own
        elif kind in _RESULTS:
            _result(event, where, turns, mark)
        elif kind == "Condensation" and as_sent:
            ids = event.get("forgotten_event_ids")
            gone = {str(x) for x in ids} if isinstance(ids, list) else set()
            condense(turns, gone, event.get("summary"), event.get("summary_offset"))
    return tools


def _text(raw: Any, where: str, turns: Turns) -> str:
    return content([raw] if isinstance(raw, dict) else raw, where, turns.clean)


def _action(event: dict[str, Any], where: str, turns: Turns) -> Wire:
    said = event.get("tool_call")
    said = said if isinstance(said, dict) else {}
    function = said.get("function")
    arguments = said.get("arguments", function.get("arguments") if isinstance(function, dict) else None)
    name = text_field(said, "name") or text_field(event, "tool_name")
    given = event.get("action") if arguments is None else arguments
    call_id = text_field(event, "tool_call_id") or text_field(said, "id")
    return {
        "role": "assistant",
        "content": content(event.get("thought"), f"{where}.thought", turns.clean),
        "tool_calls": [call(name, given, call_id, turns.clean)],
    }


def _result(event: dict[str, Any], where: str, turns: Turns, mark: str) -> None:
    raw = event.get("observation")
    failed: bool | None = None
    if event["kind"] != "ObservationEvent":
        text = turns.clean.sent(text_field(event, "error") or text_field(event, "rejection_reason"))
        failed = True
    elif isinstance(raw, dict):
        text = content(raw.get("content", raw.get("output")), f"{where}.observation.content", turns.clean)
        failed = _failed(raw)
    else:
        text = content(raw, f"{where}.observation", turns.clean)
    one: Wire = {"role": "tool", "content": text}
    if isinstance(event.get("tool_call_id"), str):
        one["tool_call_id"] = turns.clean.sent(event["tool_call_id"])
    turns.add(one, mark=mark, failed=failed)


def _failed(raw: dict[str, Any]) -> bool | None:
    """By the exit code (-1: it still runs), else by is_error."""
    meta = raw.get("metadata")
    for place in (meta if isinstance(meta, dict) else {}, raw):
        code = place.get("exit_code")
        if isinstance(code, int) and not isinstance(code, bool):
            return None if code == -1 else code != 0
    return bool(raw["is_error"]) if isinstance(raw.get("is_error"), bool) else None
