"""Recordings of decisions, and checking a later run against one: has the model, the wording or any answer changed?"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flide_agent.replay.compare import apart
from flide_agent.replay.decision import Decision
from flide_agent.replay.moments import BEFORE, PROPOSED
from flide_agent.replay.pack import Pack
from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.text import line

VERSION = 1
_SHOWN = 20


def header(pack: Pack, identity: dict[str, Any]) -> dict[str, Any]:
    """The first line of a recording. identity: of the model, as far as the service tells."""
    return {"kind": "recording", "version": VERSION, "questions": _digest(pack.questions), "identity": identity}


def record(d: Decision) -> dict[str, Any]:
    """One decision: its place, a hash of exactly what was read, the answers, who gave them."""
    return {
        "kind": "recorded",
        "file": Path(d.run.file).name,
        "row": d.run.row,
        "run": d.run.name,
        "step": d.step.index,
        "moment": d.moment,
        "history": _digest([d.run.tools, d.messages, *([d.step.proposed] if d.moment == PROPOSED else [])]),
        "model": d.model,
        "prompt_format": d.prompt_format,
        "answers": d.answers,
    }


@dataclass
class Verification:
    """A recording that decisions are held against. tolerance: how far a probability may be off; 0.0 asks for equal bits."""

    path: Path
    head: dict[str, Any]
    waiting: dict[tuple[Any, ...], list[dict[str, Any]]]
    tolerance: float = 0.0
    checked: int = 0
    worst: float = 0.0
    drifts: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, tolerance: float) -> Verification:
        """Raises QuestionsError when it is no recording."""
        rows = list(_rows(path))
        if not rows or rows[0].get("kind") != "recording" or rows[0].get("version") != VERSION:
            raise QuestionsError(f"{path}: is no recording of version {VERSION}; make one with --record")
        waiting: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for number, row in enumerate(rows[1:], 2):
            if not {"file", "row", "run", "step", "history", "answers", "model", "prompt_format"} <= set(row):
                raise QuestionsError(f"{path}:{number}: a decision without all of its fields")
            waiting.setdefault(_place(row), []).append(row)
        return cls(path, rows[0], waiting, tolerance)

    def begin(self, now: dict[str, Any]) -> None:
        """Compare the heads: the questions and the model behind the service."""
        if now["questions"] != self.head.get("questions"):
            self._drift("questions", "the questions are not those of the recording")
        then = self.head.get("identity") or {}
        for key, value in now["identity"].items():
            if key in then and then[key] != value:
                self._drift("identity", f"{key}: {then[key]} when it was recorded, {value} now")

    def check(self, d: Decision) -> None:
        """Compare one decision with the recorded one of the same place."""
        now = record(d)
        then = self.waiting.get(_place(now), [])
        where = _where(_place(now))
        if not then:
            self._drift("new", f"{where}: is not in the recording")
            return
        old = then.pop(0)
        self.checked += 1
        for key in ("history", "model", "prompt_format"):
            if old[key] != now[key]:
                self._drift(key, f"{where}: {key} changed" + (f" from {old[key]} to {now[key]}" if key != "history" else ""))
        try:
            distance = 0.0 if old["answers"] == now["answers"] else apart(old["answers"], now["answers"])
        except (KeyError, TypeError, AttributeError):
            distance = 1.0
        self.worst = max(self.worst, distance)
        if distance > self.tolerance or (self.tolerance == 0.0 and old["answers"] != now["answers"]):
            self._drift("answers", f"{where}: an answer is {distance:.3g} off")

    def end(self) -> None:
        """What was recorded and did not come again."""
        for place, left in self.waiting.items():
            for _ in left:
                self._drift("missing", f"{_where(place)}: was recorded and did not come again")

    @property
    def drifted(self) -> bool:
        return bool(self.drifts)

    def lines(self) -> list[str]:
        """The result for people."""
        if not self.drifted:
            return [
                f"verified: {self.checked} decisions as recorded"
                + (f", at most {self.worst:.3g} off" if self.worst else ", to the last bit")
            ]
        counts = ", ".join(f"{name} {n}" for name, n in self.drifts.most_common())
        more = sum(self.drifts.values()) - len(self.shown)
        return [f"DRIFT: {counts}; {self.checked} decisions compared, at most {self.worst:.3g} off", *self.shown] + (
            [f"and {more} more"] if more else []
        )

    def summary(self) -> dict[str, Any]:
        return {"checked": self.checked, "worst": self.worst, "drifts": dict(self.drifts)}

    def _drift(self, kind: str, text: str) -> None:
        self.drifts[kind] += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(line(text, 300))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["file"], row["row"], row["run"], row["step"], row.get("moment", BEFORE)


def _where(place: tuple[Any, ...]) -> str:
    file, row, _, step, moment = place
    return f"{file}:{row} step {step}" + ("" if moment == BEFORE else f" ({moment})")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as f:
            for number, text in enumerate(f, 1):
                value = json.loads(text)
                if not isinstance(value, dict):
                    raise QuestionsError(f"{path}:{number}: is not an object")
                yield value
    except OSError as e:
        raise QuestionsError(f"{path}: cannot be read: {e.strerror or e}") from e
    except QuestionsError:
        raise
    except (ValueError, RecursionError) as e:
        raise QuestionsError(f"{path}: is no recording: {e}") from e
