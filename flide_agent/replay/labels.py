"""Reference labels: what a format knows of a step, and what a label file adds."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from flide_agent.replay.moments import MOMENTS
from flide_agent.replay.pack import Reading
from flide_agent.replay.questions import QuestionsError

_PLACE = ("run", "file", "row", "step", "moment")
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


class Labels:
    """Labels of a file: JSON lines or CSV of step, run or file (and row), and one value a label.

    A line names its decision by `step` and by `run` (the run's name) or `file` (with or without folders), `row` where a file has
    several, and `moment` where a label is not for all questions about the step; its other fields are labels, or they stand under
    the key `labels`. A label is for the question that is asked at that step, at whichever moment.
    """

    def __init__(self) -> None:
        self.by_place: dict[tuple[str, str, str, int, str], dict[str, Any]] = {}

    @classmethod
    def load(cls, path: Path) -> Labels:
        """Raises QuestionsError that names the line."""
        out = cls()
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
            given = raw["labels"] if isinstance(raw.get("labels"), dict) else {k: v for k, v in raw.items() if k not in _PLACE}
            kind = "run" if raw.get("run") else "file"
            row, moment = str(raw.get("row") or ""), str(raw.get("moment") or "")
            if moment and moment not in MOMENTS:
                raise QuestionsError(f"{path}:{number}: moment must be one of {', '.join(MOMENTS)}")
            out.by_place.setdefault((kind, name, row, step, moment), {}).update(
                {k: v for k, v in given.items() if v not in (None, "")}
            )
        return out

    def of(self, file: str, row: int, run: str, step: int, moment: str, own: dict[str, Any]) -> dict[str, Any]:
        """A decision's labels: those of its format, and over them those of the file."""
        if not self.by_place:
            return own
        out = dict(own)
        base = Path(file).name
        for place in (("file", base, ""), ("file", base, str(row)), ("run", run, ""), ("run", run, str(row))):
            for at in ("", moment):
                out |= self.by_place.get((*place, step, at), {})
        return out


def expected(reading: Reading, question: dict[str, Any], labels: dict[str, Any]) -> str | None:
    """The option that the labels of a step say is right: a name, a level's number as text, "true" or "false"; None for none."""
    value = labels.get(reading.reference) if reading.reference else None
    if value is None:
        return None
    key = str(value).lower() if isinstance(value, bool) else str(value)
    if reading.map:
        if key not in reading.map:
            return None
        mapped = reading.map[key]
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
