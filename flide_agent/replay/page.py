"""The HTML report: one file that holds its data, its styles and its script, and asks for nothing from anywhere.

Runs are written as they are through, so memory holds one run of each agent and the points of the overall plots.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from flide_agent.replay.labels import expected
from flide_agent.replay.messages import action_of
from flide_agent.replay.pack import Pack
from flide_agent.replay.questions import TITLES
from flide_agent.replay.records import Problem, Run
from flide_agent.replay.report import Totals
from flide_agent.replay.text import plain
from flide_agent.replay.walk import Decision, Ended, Event, Started

MOST_TEXT = 64 << 20
"""Characters of histories in one report; later runs keep their figures without texts, and the report says so."""
MOST_POINTS = 20_000
"""Decisions in the overall plots: beyond it every second, fourth, ... one."""
MOST_PROBLEMS = 1000
BINS = 20


class Page:
    """Takes the events of a replay, writes the report. Entering opens the file. Raises OSError."""

    def __init__(self, path: Path, pack: Pack) -> None:
        self.path, self.pack = path, pack
        self.text = 0
        self.runs: list[dict[str, Any]] = []
        self.points: list[list[float]] = []
        self.problems: list[dict[str, Any]] = []
        self.histograms: dict[str, dict[str, Any]] = {name: {} for name in pack.questions}
        self._every, self._seen = 1, 0
        self._open: dict[int, _Open] = {}
        self._out: TextIO | None = None

    def __enter__(self) -> Page:
        self._out = self.path.open("w", encoding="utf-8")
        head = _asset("report.html").replace("/*STYLE*/", _asset("report.css"))
        self._write(head.partition("<!--DATA-->")[0])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._out is not None:
            self._out.close()

    def take(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, Started):
            self._open[id(event.run)] = _Open(event.run)
        elif isinstance(event, Decision):
            self._count(event)
            opened = self._open[id(event.run)]
            opened.add(event, self.pack, keep=self.text < MOST_TEXT)
            self.text += opened.took
        elif isinstance(event, Ended):
            self._close(self._open.pop(id(event.run)))
        elif isinstance(event, Problem) and len(self.problems) < MOST_PROBLEMS:
            place = {"file": event.file, "line": event.line, "message": event.message}
            self.problems.append({k: plain(v) if isinstance(v, str) else v for k, v in place.items()})

    def finish(self, totals: Totals, scores: dict[str, Any]) -> None:
        """Write what is known in the end."""
        for opened in list(self._open.values()):  # of runs that were stopped in the middle
            self._close(opened)
        self._open.clear()
        summary = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "totals": totals.record(),
            "questions": {name: self._question(name) for name in self.pack.questions},
            "runs": self.runs,
            "points": self.points,
            "every": self._every,
            "histograms": self.histograms,
            "scores": scores,
            "problems": self.problems,
            "without_text": self.text >= MOST_TEXT,
        }
        self._data("summary", summary)
        rest = _asset("report.html").partition("<!--DATA-->")[2]
        self._write(rest.replace("/*SCRIPT*/", _asset("report.js")))

    def _question(self, name: str) -> dict[str, Any]:
        q, r = self.pack.questions[name], self.pack.readings[name]
        options = q.get("criteria") or []
        names = (
            [str(i) for i in range(len(options))] if q["type"] == "score" else list(options) if q["type"] == "choice" else []
        )
        legend = [str(x) for x in options] if q["type"] == "score" else []
        said = {"title": TITLES.get(name, name), "type": q["type"], "instructions": q.get("instructions", ""), "options": names}
        return {**said, "legend": legend, "threshold": r.threshold, "temperature": r.temperature, "reference": r.reference}

    def _count(self, d: Decision) -> None:
        if self._seen % self._every == 0:
            self.points.append([d.history_tokens, round(d.milliseconds, 2), d.reused_tokens, d.computed_tokens, int(d.m > 0)])
            if len(self.points) >= MOST_POINTS:
                del self.points[1::2]
                self._every *= 2
        self._seen += 1
        for name, answer in d.answers.items():
            bins = self.histograms.setdefault(name, {})
            if answer["type"] == "choice":
                key = answer["choice"]
            elif answer["type"] == "noul":
                key = str(min(int(answer["noul"] * BINS), BINS - 1))
            else:
                key = str(max(answer["probabilities"], key=lambda k: answer["probabilities"][k]))
            bins[key] = bins.get(key, 0) + 1

    def _close(self, opened: _Open) -> None:
        run = opened.run
        fired = sorted({name for s in opened.steps for name in s["fired"]})
        entry = {
            "file": run.file,
            "row": run.row,
            "name": run.name,
            "format": run.format,
            "notes": run.notes,
            "tools": len(run.tools),
        }
        entry = {k: plain(v) if isinstance(v, str) else v for k, v in entry.items()}
        counted = {"steps": len(opened.steps), "tokens": max((s["tokens"] for s in opened.steps), default=0), "fired": fired}
        self._data(f"run-{len(self.runs) + 1}", {"messages": opened.messages, "steps": opened.steps})
        self.runs.append(entry | counted)

    def _data(self, name: str, value: Any) -> None:
        # Inside a script element only "</" and "<!--" could end or nest it; in JSON a "<" may be written as an escape.
        text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        self._write(f'<script type="application/json" id="{name}">{text}</script>\n')

    def _write(self, text: str) -> None:
        assert self._out is not None
        self._out.write(text)


class _Open:
    """A run that is being replayed: its messages once each, and for each step which of them it saw."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.messages: list[dict[str, str]] = []
        self.steps: list[dict[str, Any]] = []
        self.took = 0
        self._before: list[Any] = []
        self._places: list[int] = []

    def add(self, d: Decision, pack: Pack, *, keep: bool) -> None:
        """One decision. keep: whether its texts are kept."""
        self.took = 0
        now = d.step.messages
        same = 0
        while same < min(len(now), len(self._before)) and (now[same] is self._before[same] or now[same] == self._before[same]):
            same += 1
        new = []
        if keep:
            for one in now[same:]:
                new.append(len(self.messages))
                said = {"role": plain(str(one["role"])), "text": plain(one["content"]), "calls": ""}
                if one.get("tool_calls"):
                    said["calls"] = plain(action_of(one))
                self.took += len(said["text"]) + len(said["calls"])
                self.messages.append(said)
        places = self._places[:same] + new
        gone = len(self._before) - same
        self._before, self._places = now, places
        step = {
            "step": d.step.index,
            "tokens": d.history_tokens,
            "m": d.m,
            "reused": d.reused_tokens,
            "computed": d.computed_tokens,
            "reason": d.reason,
            "ms": round(d.milliseconds, 3),
            "phases": d.phases,
            "source": d.step.source,
            "answers": d.answers,
            "labels": {k: plain(v) if isinstance(v, str) else v for k, v in d.labels.items()},
            "right": {name: expected(pack.readings[name], q, d.labels) for name, q in pack.questions.items()},
            "fired": [name for name, answer in d.answers.items() if name in pack.readings and pack.fires(name, answer)],
            "action": plain(d.step.action)[:20_000] if keep else "",
            "new": new,
            "kept": same,
            "gone": gone,
        }
        if d.other is not None:
            step["other"] = {
                "same": d.other.same,
                "apart": d.other.apart,
                "ms": round(d.other.milliseconds, 3),
                "error": plain(d.other.error),
            }
        self.steps.append(step)


def _asset(name: str) -> str:
    return (files("flide_agent.replay") / "assets" / name).read_text(encoding="utf-8")
