"""Going on with a replay that was interrupted: what its JSONL holds is not asked again, what is missing is added to it."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from flide_agent.replay.compare import Other
from flide_agent.replay.decision import Decision
from flide_agent.replay.history import Histories
from flide_agent.replay.moments import AFTER
from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.records import Problem, Run, Step
from flide_agent.replay.report import problem_record
from flide_agent.replay.walk import Stopped

_FIELDS = ("file", "row", "run", "step", "moment", "request", "questions", "model", "prompt_format", "begun", "milliseconds",
           "messages", "history", "answers", "session")  # fmt: skip
_Key = tuple[str, int, str, int, str]


class Resumed:
    """The decisions of a JSONL, read from it again as a run comes to them, so that memory holds their places alone.

    path: the file; what a killed process left of a last line is cut off. requests: the highest number of a request in it.
    seconds: how long the replay had run. models: (name, prompt format) of those that answered. Safe to share between threads.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self.requests = 0
        self.seconds = 0.0
        self.models: set[tuple[str, str]] = set()
        self._places: dict[_Key, deque[int]] = {}
        self._problems: set[str] = set()
        self._seen: set[int] = set()
        self._then: set[tuple[str, int, str]] = set()
        self._now: set[tuple[str, int, str]] = set()
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        for offset, record in self._records():
            if record.get("kind") == "problem":
                self._problems.add(json.dumps(record))
            elif record.get("kind") == "decision":
                self._add(offset, record, digest)

    def _add(self, offset: int, record: dict[str, Any], digest: str) -> None:
        if not all(name in record for name in _FIELDS):
            raise QuestionsError(
                f"{self.path}: a decision without all of its fields; only files of this version can be gone on with"
            )
        if record["questions"] != digest:
            raise QuestionsError(f"{self.path}: was written with other questions; give those, or another file")
        self._places.setdefault(_key(record), deque()).append(offset)
        self._then.add((record["file"], record["row"], record["run"]))
        self.requests = max(self.requests, int(record["request"]))
        self.seconds = max(self.seconds, record["begun"] + record["milliseconds"] / 1000)
        self.models.add((record["model"], record["prompt_format"]))

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            with self.path.open("rb+") as f:
                offset = number = 0
                for number, raw in enumerate(f, 1):
                    if not raw.endswith(b"\n"):
                        break  # the last line, cut
                    value = json.loads(raw)
                    if not isinstance(value, dict):
                        raise QuestionsError(f"{self.path}:{number}: is not an object")
                    yield offset, value
                    offset += len(raw)
                f.truncate(offset)
        except OSError as e:
            raise QuestionsError(f"{self.path}: cannot be read: {e.strerror or e}") from e
        except QuestionsError:
            raise
        except (ValueError, RecursionError) as e:
            raise QuestionsError(f"{self.path}:{number}: not the output of --json: {e}") from e

    def take(self, run: Run, step: Step, moment: str, histories: Histories) -> Decision | None:
        """The recorded decision, once. Raises Stopped when the history is another one now."""
        self._now.add((run.file, run.row, run.name))
        places = self._places.get((run.file, run.row, run.name, step.index, moment))
        with self._lock:
            if not places:
                return None
            if self._file is None:
                self._file = self.path.open("rb")
            self._file.seek(places.popleft())
            record: dict[str, Any] = json.loads(self._file.readline())
            first = record["request"] not in self._seen
            self._seen.add(record["request"])
        messages = len(step.after() if moment == AFTER else step.messages)
        if (messages, step.source) != (record["messages"], record["source"]):
            now, then = f"{messages} messages ({step.source})", f"{record['messages']} ({record['source']})"
            raise Stopped(
                f"{run.file}: step {step.index} has {now}, in {self.path} it has {then}: another file or --mode", True
            )
        if histories.of(step, moment) != record["history"]:
            name = f"{run.file}:{run.row}" + (f" ({run.name})" if run.name else "")
            raise Stopped(
                f"{name}: the history of step {step.index} ({moment}) is not the one that was asked about in {self.path}; "
                "replay it anew with --json",
                True,
            )
        return _decision(run, step, record, first)

    def strangers(self) -> list[str]:
        """Runs of the file in whose place another one was found now."""
        rows = {place[:2] for place in self._now}
        gone = sorted(place for place in self._then - self._now if place[:2] in rows)
        return [
            f"{file}:{row} was {name or 'without a name'} in {self.path} and is another run now" for file, row, name in gone
        ]

    def said(self, problem: Problem) -> bool:
        """Whether the file tells of this problem."""
        return json.dumps(problem_record(problem)) in self._problems

    def check(self, d: Decision) -> None:
        """Raises Stopped when another model answers now."""
        if self.models and (d.model, d.prompt_format) not in self.models:
            before = ", ".join(sorted(f"{model} ({wording})" for model, wording in self.models))
            raise Stopped(f"{self.path} was answered by {before}; here answers {d.model} ({d.prompt_format})", True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _key(record: dict[str, Any]) -> _Key:
    return record["file"], record["row"], record["run"], record["step"], record["moment"]


def _decision(run: Run, step: Step, record: dict[str, Any], first: bool) -> Decision:
    other = record.get("other")
    fields = {name: record[name] for name in Decision.__dataclass_fields__ if name in record}
    fields |= {"run": run, "step": step, "other": None if other is None else Other(**other), "first": first, "known": True}
    try:
        return Decision(**fields)
    except TypeError as e:
        raise Stopped(f"a decision of {run.file} without all of its fields: {e}", True) from e
