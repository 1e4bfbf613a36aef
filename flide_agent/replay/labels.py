"""Reference labels: what a format knows of a step, and what a label file adds."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flide_agent.replay.moments import MOMENTS
from flide_agent.replay.pack import Pack, Reading
from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.totals import counted

_PLACE = ("run", "file", "row", "step", "moment")
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")

_EXAMPLES = 3
_Place = tuple[str, str, str, int, str]
"""What a line is about: "run" or "file", its name, row ("" for any), step, moment ("" for any)."""


class Labels:
    """Labels of a file: JSON lines or CSV of step, run or file (and row), and one value a label.

    A line names its decision by `step` and by `run` (the run's name) or `file` (with or without folders), `row` where a file has
    several, and `moment` where a label is not for all questions about the step; its other fields are labels, or they stand under
    the key `labels`. A label is for the question that is asked at that step, at whichever moment.
    """

    def __init__(self) -> None:
        self.path = Path()
        self.by_place: dict[_Place, dict[str, Any]] = {}
        self._lines: dict[_Place, list[int]] = {}
        self._asked: set[_Place] = set()
        """Places that a decision came from."""

    @classmethod
    def load(cls, path: Path) -> Labels:
        """Raises QuestionsError that names the line."""
        out = cls()
        out.path = path
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as e:
            raise QuestionsError(f"{path}: cannot be read: {getattr(e, 'strerror', None) or e}") from e
        for number, raw in _lines(text, path):
            try:
                step = int(raw["step"])
                name = str(raw["run"]) if raw.get("run") else Path(str(raw["file"])).name
            except (KeyError, TypeError, ValueError):
                raise QuestionsError(f"{path}:{number}: needs a step number, and run or file") from None
            if None in raw:
                raise QuestionsError(f"{path}:{number}: has more cells than the first line has names")
            given = raw["labels"] if isinstance(raw.get("labels"), dict) else {k: v for k, v in raw.items() if k not in _PLACE}
            kind = "run" if raw.get("run") else "file"
            row, moment = str(raw.get("row") or ""), str(raw.get("moment") or "")
            if moment and moment not in MOMENTS:
                raise QuestionsError(f"{path}:{number}: moment must be one of {', '.join(MOMENTS)}")
            place = kind, name, row, step, moment
            out._lines.setdefault(place, []).append(number)
            out.by_place.setdefault(place, {}).update({k: v for k, v in given.items() if v not in (None, "")})
        return out

    def of(self, file: str, row: int, run: str, step: int, moment: str, own: dict[str, Any]) -> dict[str, Any]:
        """A decision's labels: those of its format, and over them those of the file."""
        if not self.by_place:
            return own
        out = dict(own)
        base = Path(file).name
        for place in (("file", base, ""), ("file", base, str(row)), ("run", run, ""), ("run", run, str(row))):
            for at in ("", moment):
                here = *place, step, at
                if here in self.by_place:
                    self._asked.add(here)
                    out |= self.by_place[here]
        return out

    def use(self, pack: Pack) -> Use:
        """What the questions of a pack make of the file, and which of its lines were asked about so far."""
        use = Use(self.path, sum(map(len, self._lines.values())))
        by_reference: dict[str, list[str]] = {}
        for question, reading in pack.readings.items():
            by_reference.setdefault(reading.reference, []).append(question)
        for place, given in self.by_place.items():
            lines = self._lines[place]
            read = False
            for column, value in given.items():
                asking = by_reference.get(column, [])
                if any(expected(pack.readings[q], pack.questions[q], {column: value}) is not None for q in asking):
                    read = True
                elif asking:
                    use.values.append(f"{column} {str(value)!r} (line {lines[0]})")
                elif column not in use.columns:
                    use.columns[column] = pack.readings[column].reference if column in pack.readings else None
            use.read += read * len(lines)
            if place in self._asked:
                use.matched += read * len(lines)
            else:
                kind, name, row, step, moment = place
                text = f"line {lines[0]} ({kind} {name}{row and f' row {row}'}, step {step}{moment and f', {moment}'})"
                use.elsewhere.extend([text] * len(lines))
        return use


@dataclass
class Use:
    """What became of a label file. lines: of labels. read: of them, those with a value that a question understands. matched: of
    those, lines about something that was asked. elsewhere: the others that were not asked about, in words. values: labels that no
    question understands. columns: names that no question compares with, and of those that are names of questions the reference.
    """

    path: Path
    lines: int
    read: int = 0
    matched: int = 0
    elsewhere: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    columns: dict[str, str | None] = field(default_factory=dict)

    def unread(self) -> list[str]:
        """For people: what no question can be compared with, known before anything is asked."""
        out = [] if self.lines else [f"{self.path}: holds no labels"]
        for column, reference in list(self.columns.items())[:_EXAMPLES]:
            why = ""
            if reference is not None:
                why = f"; question {column!r} has " + (f"the reference {reference!r}" if reference else "no reference")
            out.append(f"{self.path}: no question has the reference {column!r}, so this column is not used{why}")
        if len(self.columns) > _EXAMPLES:
            out.append(f"{self.path}: nor are {len(self.columns) - _EXAMPLES} further columns")
        if self.values:
            out.append(f"{self.path}: {counted(len(self.values), 'value')} that no question understands: {_first(self.values)}")
        return out

    def unasked(self) -> list[str]:
        """For people: lines about nothing that was asked."""
        if not self.elsewhere:
            return []
        n = f"{len(self.elsewhere)} of {counted(self.lines, 'line')}"
        return [f"{self.path}: {n} of labels match nothing that was asked: {_first(self.elsewhere)}"]

    def record(self) -> dict[str, Any]:
        """For the summary."""
        return {
            "file": str(self.path),
            "lines": self.lines,
            "matched": self.matched,
            "unmatched": len(self.elsewhere),
            "unknown_values": len(self.values),
            "unused_columns": list(self.columns),
        }


def _first(some: list[str]) -> str:
    return ", ".join(some[:_EXAMPLES]) + (", ..." if len(some) > _EXAMPLES else "")


def expected(reading: Reading, question: dict[str, Any], labels: dict[str, Any]) -> str | None:
    """The option that the labels of a step say is right: a name, a level's number as text, "true" or "false"; None for none."""
    value = labels.get(reading.reference) if reading.reference else None
    if value is None:
        return None
    key = str(value).lower() if isinstance(value, bool) else str(value)
    if reading.map:
        mapped = reading.map.get(key)
        if mapped is None and (question["type"] == "noul" or isinstance(value, bool)):  # true, yes and 1 are one key
            mapped = next((v for k, v in reading.map.items() if yes(k) is not None and yes(k) is yes(key)), None)
        if mapped is None:
            return None
        key = str(mapped).lower() if isinstance(mapped, bool) else str(mapped)
    if question["type"] == "noul":
        said = yes(key)
        return None if said is None else str(said).lower()
    options = question.get("criteria") or {}
    names = [str(i) for i in range(len(options))] if question["type"] == "score" else list(options)
    return key if key in names else None


def yes(value: object) -> bool | None:
    """A label as yes or no: a file of labels has only text; None for anything else."""
    low = str(value).lower()
    return True if low in _YES else False if low in _NO else None


def _lines(text: str, path: Path) -> Any:
    if path.suffix == ".csv":
        yield from enumerate(csv.DictReader(io.StringIO(text)), 2)
        return
    for number, row in enumerate(text.splitlines(), 1):
        if not row.strip():
            continue
        try:
            value = json.loads(row)
        except (ValueError, RecursionError) as e:
            raise QuestionsError(f"{path}:{number}: not valid JSON: {e}") from e
        if not isinstance(value, dict):
            raise QuestionsError(f"{path}:{number}: is not an object")
        yield number, value
