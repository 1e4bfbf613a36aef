"""What a replay shows of a run: its heading, a row for every decision, problems; and how records are written."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TextIO

import msgspec
from rich.cells import cell_len, set_cell_size

from flide_agent.replay.decision import Decision
from flide_agent.replay.questions import TITLES, Questions
from flide_agent.replay.records import Problem, Run
from flide_agent.replay.text import line
from flide_agent.replay.totals import counted

_SHOWN_PROBLEMS = 5  # a file of thousands of rows in a format that is not read should not flood the screen


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of known width: longer texts are cut, a longer number takes the space before the next columns. narrow leaves out
    what m already says. then: columns for what the agent did next, 0 for none. moments: whether a row says which moment of
    its step it is about. last: the highest number of a step."""

    questions: Questions
    narrow: bool = False
    then: int = 0
    moments: bool = False
    last: int = 0
    columns: tuple[tuple[str, int], ...] = field(init=False)
    """Title and width of each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self._columns()))

    @classmethod
    def fitting(cls, questions: Questions, width: int | None, moments: bool = False, last: int = 0) -> Layout:
        """The widest layout for a terminal of so many columns; None is no terminal, where lines may be long."""
        whole = cls(questions, moments=moments, last=last)
        if width is None:
            return replace(whole, then=40)
        taken = cell_len(whole.header())
        if width < taken:
            return replace(whole, narrow=True)
        spare = width - taken - 2
        return replace(whole, then=min(spare, 60) if spare >= 16 else 0)

    def _columns(self) -> list[tuple[str, int]]:
        fixed = [("step", max(4, len(str(self.last)))), ("moment", 8), ("tokens", 6), ("m", 6), ("reused", 6)]
        fixed += [("computed", 8), ("reason", 8)]
        asked = [(_short(TITLES.get(name, name), 10), self._width(name)) for name in self.questions]
        left_out = ({"reused"} if self.narrow else set()) | (set() if self.moments else {"moment"})
        return [c for c in fixed if c[0] not in left_out] + asked + [("ms", 7)]

    def _width(self, name: str) -> int:
        question = self.questions[name]
        if question.get("type") == "choice":
            return 12
        levels = question.get("criteria") if question.get("type") == "score" else None
        highest = str(len(levels) - 1) if isinstance(levels, list) else "0"  # the service says what is wrong with others
        return max(len(highest) + len(".00?"), cell_len(_short(TITLES.get(name, name), 10)))

    def header(self) -> str:
        return self._aligned([title for title, _ in self.columns]) + ("  then" if self.then else "")

    def _aligned(self, cells: list[str]) -> str:
        """Every cell ends where its column does, unless what stands before it leaves no room."""
        row, end = "", -1
        for text, (_, width) in zip(cells, self.columns, strict=True):
            end += 1 + width
            row += " " * bool(row) + " " * (end - _wide(row) - bool(row) - _wide(text)) + text
        return row

    def row(self, d: Decision) -> str:
        # What one request decides at several moments, it costs once.
        cost = (d.computed_tokens, _short(d.reason, 8), _milliseconds(d.milliseconds)) if d.first else ('"', '"', '"')
        cells = [str(d.step.index), *([d.moment] if self.moments else []), str(d.history_tokens), str(d.m)]
        cells += [] if self.narrow else [str(d.reused_tokens)]
        cells += [
            str(cost[0]),
            cost[1],
            *(cell(d.answers.get(name)) + "?" * (name in d.out_of_scope) for name in self.questions),
            cost[2],
        ]
        return self._aligned(cells) + (f"  {_cut(d.step.action, self.then)}" if self.then else "")


def cell(answer: dict[str, Any] | None) -> str:
    """An answer in a few characters: P(yes), the chosen option with its probability, or the expected level."""
    if answer is None:
        return "-"
    if answer["type"] == "noul":
        return f"{answer['noul']:.2f}"
    if answer["type"] == "score":
        return f"{answer['score']:.2f}"
    p = answer["probabilities"].get(answer["choice"], math.nan)
    return f"{_short(answer['choice'], 6)} {p:.2f}"


def _cut(text: str, width: int) -> str:
    """`line`, cut to columns of the terminal: some characters take two."""
    text = line(text, width)
    return text if _wide(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _wide(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


_short = lru_cache(1024)(_cut)
"""Of texts that come again and again: reasons and options."""


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 99_999.95 else f"{value:.0f}"


def heading(run: Run, steps: int) -> str:
    """The line above a run's rows."""
    name = f" {run.name}" if run.name else ""
    row = f":{run.row}" if run.row != 1 else ""
    note = f"  [{'; '.join(run.notes)}]" if run.notes else ""
    return f"{line(run.file, 160)}{row}{name} ({run.format}, {counted(steps, 'step')}){note}"


class Shown:
    """Counts the problems of each file that were printed, so that one file cannot flood the screen."""

    def __init__(self) -> None:
        self.by_file: Counter[str] = Counter()

    def say(self, problem: Problem) -> str | None:
        """The line to print for a problem; None once enough were printed for its file."""
        self.by_file[problem.file] += 1
        n = self.by_file[problem.file]
        if n > _SHOWN_PROBLEMS:
            return None
        more = " (more of this file are counted, not shown)" if n == _SHOWN_PROBLEMS else ""
        return line(str(problem), 400) + more


def write(out: TextIO, record: dict[str, Any]) -> None:
    """One line of JSON, flushed: a replay that is stopped loses nothing. ASCII, so control codes stay escaped."""
    out.write(written(record) + "\n")
    out.flush()


def written(value: Any) -> str:
    """JSON in ASCII, a tenth of `json.dumps`'s time. Numbers that are not finite become null."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # lone surrogates, as in names of files that are not UTF-8
        return json.dumps(value, separators=(",", ":"))
    return text if text.isascii() else _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


_BEYOND_ASCII = re.compile("[^\x00-\x7f]+")


def problem_record(problem: Problem) -> dict[str, Any]:
    return {"kind": "problem", "file": problem.file, "line": problem.line, "column": problem.column, "message": problem.message}
