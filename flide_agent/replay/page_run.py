"""A run in the HTML report: its messages once each, and for each step what it saw, what was asked and what was answered."""

from __future__ import annotations

from operator import is_
from typing import Any

from flide_agent.replay.decision import Decision
from flide_agent.replay.labels import expected, yes
from flide_agent.replay.messages import action_of
from flide_agent.replay.moments import AFTER
from flide_agent.replay.pack import Pack
from flide_agent.replay.records import Run, Wire
from flide_agent.replay.text import plain

LONGEST_ACTION = 20_000
"""Characters of an action that are shown."""


class OpenRun:
    """A run that is being replayed. messages: of all its histories, in the order in which they came up."""

    def __init__(self, run: Run, pack: Pack) -> None:
        self.run, self.pack = run, pack
        self.messages: list[dict[str, str]] = []
        self._steps: dict[int, dict[str, Any]] = {}
        self._requests: dict[int, dict[str, Any]] = {}
        self._before: list[Wire] = []
        self._last: tuple[Decision, bool] | None = None

    def add(self, d: Decision, *, keep: bool) -> int:
        """One decision. keep: whether its texts are kept. Returns how many characters that took."""
        took = 0
        entry = self._steps.get(d.step.index)
        if entry is None:
            entry, took = self._step(d, keep)
            self._steps[d.step.index] = entry
        if d.moment == AFTER:
            entry["then"] = _plain(d.labels)
            self._last = d, keep
        else:
            entry["labels"] = _plain(d.labels)
            entry["failed"] = bool(yes(d.labels.get("last_failed")))
        questions, readings = self.pack.questions, self.pack.readings
        entry["answers"] |= d.answers
        entry["right"] |= {name: expected(readings[name], questions[name], d.labels) for name in d.answers}
        entry["fired"] += [name for name, answer in d.answers.items() if self.pack.fires(name, answer)]
        entry["outside"] |= d.out_of_scope
        if d.first or d.request not in self._requests:
            self._requests[d.request] = _request(d)
        asked = self._requests[d.request]
        asked["moments"].append(d.moment if d.moment != AFTER else f"{AFTER} {d.step.index}")
        asked["step"] = d.step.index  # the last one's: whose turn it was
        return took

    def closed(self) -> list[dict[str, Any]]:
        """The steps, each with its requests: what a request costs stands at the step whose turn it was."""
        for asked in self._requests.values():
            self._steps[asked.pop("step")]["requests"].append(asked)
        if self._last is not None and self._last[0].step.index == max(self._steps):
            d, keep = self._last  # no later step shows what came back on the last one
            self._steps[d.step.index]["result"] = [_message(m) for m in d.step.result] if keep else []
        return [self._steps[i] for i in sorted(self._steps)]

    def _step(self, d: Decision, keep: bool) -> tuple[dict[str, Any], int]:
        now = d.step.messages
        same = len(self._before) if len(now) >= len(self._before) and all(map(is_, now, self._before)) else 0
        while same < min(len(now), len(self._before)) and (now[same] is self._before[same] or now[same] == self._before[same]):
            same += 1
        new, took = [], 0
        for one in now[same:] if keep else ():
            new.append(len(self.messages))
            said = _message(one)
            took += len(said["text"]) + len(said["calls"])
            self.messages.append(said)
        gone = len(self._before) - same
        self._before = now
        entry: dict[str, Any] = {
            "step": d.step.index,
            "source": d.step.source,
            "requests": [],
            "answers": {},
            "labels": _plain(d.step.labels),
            "failed": bool(yes(d.step.labels.get("last_failed"))),
            "then": {},
            "right": {},
            "fired": [],
            "outside": {},
            "action": plain(d.step.action)[:LONGEST_ACTION] if keep else "",
            "new": new,
            "kept": same,
            "gone": gone,
        }
        return entry, took


def _request(d: Decision) -> dict[str, Any]:
    out: dict[str, Any] = {
        "moments": [],
        "tokens": d.history_tokens,
        "m": d.m,
        "reused": d.reused_tokens,
        "computed": d.computed_tokens,
        "reason": d.reason,
        "ms": round(d.milliseconds, 3),
        "phases": d.phases,
    }
    if d.other is not None:
        other = d.other
        out["other"] = {
            "same": other.same,
            "apart": other.apart,
            "ms": round(other.milliseconds, 3),
            "error": plain(other.error),
        }
    return out


def _message(one: Wire) -> dict[str, str]:
    calls = plain(action_of(one)) if one.get("tool_calls") else ""
    return {"role": plain(str(one["role"])), "text": plain(one["content"]), "calls": calls}


def _plain(labels: dict[str, Any]) -> dict[str, Any]:
    return {k: plain(v) if isinstance(v, str) else v for k, v in labels.items()}
