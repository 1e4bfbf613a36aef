"""The HTML report: one file that holds its data, its styles and its script, and asks for nothing from anywhere.

Runs are written as they are through, so memory holds one run of each agent and the points of the overall plots.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from flide_agent.replay.decision import Decision, Ended, Event, Started
from flide_agent.replay.pack import Pack
from flide_agent.replay.page_run import OpenRun
from flide_agent.replay.questions import TITLES
from flide_agent.replay.records import Problem
from flide_agent.replay.report import written
from flide_agent.replay.text import plain
from flide_agent.replay.totals import Totals

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
        self._open: dict[int, OpenRun] = {}
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
            self._open[id(event.run)] = OpenRun(event.run, self.pack)
        elif isinstance(event, Decision):
            self._count(event)
            self.text += self._open[id(event.run)].add(event, keep=self.text < MOST_TEXT)
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
        read = {"moment": r.moment, "threshold": r.threshold, "temperature": r.temperature, "reference": r.reference}
        return {**said, "legend": legend, **read}

    def _count(self, d: Decision) -> None:
        if d.first and self._seen % self._every == 0:
            self.points.append([d.history_tokens, round(d.milliseconds, 2), d.reused_tokens, d.computed_tokens, int(d.m > 0)])
            if len(self.points) >= MOST_POINTS:
                del self.points[1::2]
                self._every *= 2
        self._seen += d.first
        for name, answer in d.answers.items():
            bins = self.histograms.setdefault(name, {})
            if answer["type"] == "choice":
                key = answer["choice"]
            elif answer["type"] == "noul":
                key = str(min(int(answer["noul"] * BINS), BINS - 1))
            else:
                key = str(max(answer["probabilities"], key=lambda k: answer["probabilities"][k]))
            bins[key] = bins.get(key, 0) + 1

    def _close(self, opened: OpenRun) -> None:
        run, steps = opened.run, opened.closed()
        fired = sorted({name for s in steps for name in s["fired"]})
        entry = {
            "file": run.file,
            "row": run.row,
            "name": run.name,
            "format": run.format,
            "notes": run.notes,
            "tools": len(run.tools),
        }
        entry = {k: plain(v) if isinstance(v, str) else v for k, v in entry.items()}
        tokens = max((r["tokens"] for s in steps for r in s["requests"]), default=0)
        counted = {"steps": len(steps), "tokens": tokens, "fired": fired}
        self._data(f"run-{len(self.runs) + 1}", {"messages": opened.messages, "steps": steps})
        self.runs.append(entry | counted)

    def _data(self, name: str, value: Any) -> None:
        # Inside a script element only "</" and "<!--" could end or nest it; in JSON a "<" may be written as an escape.
        text = written(value).replace("<", "\\u003c")
        self._write(f'<script type="application/json" id="{name}">{text}</script>\n')

    def _write(self, text: str) -> None:
        assert self._out is not None
        self._out.write(text)


def _asset(name: str) -> str:
    return (files("flide_agent.replay") / "assets" / name).read_text(encoding="utf-8")
