"""Claude Code sessions: a JSONL of events that form a tree by uuid and parentUuid, with branches and side chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flide_agent.replay.messages import text_field
from flide_agent.replay.text import Cleaned
from flide_agent.replay.turns import Turns, seconds, turn

_KINDS = {"user", "assistant", "system", "summary", "attachment", "progress", "file-history-snapshot", "queue-operation"}


@dataclass(frozen=True, slots=True)
class Chain:
    """One way through the tree. name: "" for the session itself, else "branch 2", "side chain 1". fresh: the first event that
    no earlier chain holds; what comes before is history, and its decisions are counted there."""

    name: str
    events: list[dict[str, Any]]
    fresh: int


def is_event(value: Any) -> bool:
    """Whether a row is an event of such a session."""
    if not isinstance(value, dict) or text_field(value, "type") not in _KINDS:
        return False
    return "sessionId" in value or "parentUuid" in value or ("leafUuid" in value and "summary" in value)


def chains(events: list[dict[str, Any]]) -> Iterator[Chain]:
    """The session's main line (to its last message), then other branches and side chains in the order of the file.

    Events must not be `circular`. Events without any parent at all are taken in the order of the file. A compaction starts the
    history anew: the events before it stay before it in the chain.
    """
    nodes = {text_field(e, "uuid"): e for e in events if text_field(e, "uuid")}
    if not any(text_field(e, "parentUuid") in nodes for e in events):
        for side in (False, True):
            some = [e for e in events if bool(e.get("isSidechain")) is side and _speaks(e)]
            if some:
                yield Chain("side chain 1" if side else "", some, 0)
        return
    parents = {text_field(e, "parentUuid") or text_field(e, "logicalParentUuid") for e in events}
    leaves = [e for e in events if text_field(e, "uuid") not in parents and text_field(e, "uuid")]
    answers = _answers(events)
    main = [e for e in leaves if not e.get("isSidechain")]
    order = main[-1:] + main[:-1] + [e for e in leaves if e.get("isSidechain")]
    told: set[str] = set()
    numbers = {"branch": 1, "side chain": 0}
    for leaf in order:
        path = _with_answers(_path(leaf, nodes), answers)
        fresh = next((i for i, e in enumerate(path) if text_field(e, "uuid") not in told), len(path))
        if not any(e.get("type") == "assistant" for e in path[fresh:]):
            continue
        name = ""
        if told:
            kind = "side chain" if leaf.get("isSidechain") else "branch"
            numbers[kind] += 1
            name = f"{kind} {numbers[kind]}"
        told |= {text_field(e, "uuid") for e in path}
        yield Chain(name, path, fresh)


def circular(events: list[dict[str, Any]]) -> set[str]:
    """uuids of events whose parents never end: they stand on a circle or lead into one, so there is no first of them."""
    parents = {
        text_field(e, "uuid"): text_field(e, "parentUuid") or text_field(e, "logicalParentUuid")
        for e in events
        if text_field(e, "uuid")
    }
    ends: set[str] = set()
    lost: set[str] = set()
    for uuid in parents:
        way: dict[str, None] = {}
        at = uuid
        while at in parents and at not in ends and at not in lost and at not in way:
            way[at] = None
            at = parents[at]
        (lost if at in way or at in lost else ends).update(way)
    return lost


def read(chain: Chain, clean: Cleaned, *, as_sent: bool) -> tuple[Turns, int]:
    """A step before each answer of the model, and how many events hold no message that can be read. Raises ReadError.

    One answer may be spread over several lines with the same message id. as_sent: after a compaction the history starts anew.
    """
    turns, skipped = Turns(clean), 0
    answer = ""
    for i, event in enumerate(chain.events):
        if event.get("subtype") == "compact_boundary" and as_sent:
            turns.restart(0)
            answer = ""
        if not _speaks(event) or event.get("isApiErrorMessage"):
            continue
        raw = event.get("message")
        if not isinstance(raw, dict) or "content" not in raw:
            skipped += 1
            continue
        raw = {"role": event["type"], **raw}
        same = event["type"] == "assistant" and bool(answer) and raw.get("id") == answer
        part = Turns(clean)
        turn(raw, f"event {i + 1} message", part, at=seconds(event.get("timestamp")))
        turns.extend(part, counts=i >= chain.fresh, join=same)
        if event["type"] == "assistant":
            answer = text_field(raw, "id")
    return turns, skipped


def _speaks(event: dict[str, Any]) -> bool:
    return event.get("type") in ("user", "assistant")


def _path(leaf: dict[str, Any], nodes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    seen: set[str] = set()
    at: dict[str, Any] | None = leaf
    while at is not None and text_field(at, "uuid") not in seen:
        seen.add(text_field(at, "uuid"))
        out.append(at)
        at = nodes.get(text_field(at, "parentUuid") or text_field(at, "logicalParentUuid"))
    return out[::-1]


def _parts(event: dict[str, Any], kind: str, key: str) -> list[str]:
    raw = event.get("message")
    parts = raw.get("content") if isinstance(raw, dict) else None
    if not isinstance(parts, list):
        return []
    return [text_field(p, key) for p in parts if isinstance(p, dict) and p.get("type") == kind]


def _answers(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tool call id -> the event with its result."""
    return {call: e for e in events for call in _parts(e, "tool_result", "tool_use_id") if call}


def _with_answers(path: list[dict[str, Any]], answers: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The path with the results of parallel tool calls, which the tree keeps beside it: before the next answer of the model."""
    there = {text_field(e, "uuid") for e in path}
    out: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    said = ""
    for event in path:
        raw = event.get("message")
        own = text_field(raw, "id") if isinstance(raw, dict) and event.get("type") == "assistant" else ""
        if event.get("type") == "assistant" and own != said:
            out += waiting
            waiting = []
            said = own
        out.append(event)
        for call in _parts(event, "tool_use", "id"):
            result = answers.get(call)
            if result is not None and text_field(result, "uuid") not in there:
                there.add(text_field(result, "uuid"))
                waiting.append(result)
    return out + waiting
