"""What a replay is told, and everything that it writes while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from flide_agent.replay.decision import Decision, Event
from flide_agent.replay.load import Rate
from flide_agent.replay.pack import Pack
from flide_agent.replay.page import Page
from flide_agent.replay.paths import keep_apart
from flide_agent.replay.recording import Verification, header, record
from flide_agent.replay.records import Problem
from flide_agent.replay.report import problem_record, write
from flide_agent.replay.resume import Resumed
from flide_agent.replay.scores import Scores
from flide_agent.replay.sources import sources
from flide_agent.settings import Settings


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was told. url: a server to ask; None runs one in this process from `settings`. resume: the file of an
    earlier --json, which is gone on with and added to."""

    files: list[Path]
    settings: Settings
    url: str | None = None
    api_key: str | None = None
    questions: Path | None = None
    mode: str = "as-sent"
    limit: int | None = None
    steps: tuple[int, int | None] = (1, None)
    json: str | None = None
    keep: bool = False
    labels: Path | None = None
    html: Path | None = None
    failures: Path | None = None
    record: Path | None = None
    verify: Path | None = None
    tolerance: float = 0.0
    agents: int = 1
    rate: Rate | None = None
    warm: bool = False
    compare: str | None = None
    target_error: float = 0.05
    every: int = 1
    resume: Path | None = None

    def inputs(self) -> list[Path | Problem]:
        """What the files, folders and patterns name. Raises QuestionsError where one of the outputs would write over an input."""
        found = sources(self.files)
        given = {"--json": self.json, "--html": self.html, "--failures": self.failures, "--record": self.record,
                 "--resume": self.resume}  # fmt: skip
        read = {"--questions": self.questions, "--labels": self.labels, "--verify": self.verify}
        keep_apart(
            [(option, Path(path)) for option, path in given.items() if path is not None],
            [*((option, path) for option, path in read.items() if path is not None)]
            + [("the input", path) for path in found if isinstance(path, Path)],
            self.files,
        )
        return found


class Outputs:
    """Everything that is written while a replay runs."""

    def __init__(self, options: Options, pack: Pack, past: Resumed | None, stack: ExitStack) -> None:
        self.verification = Verification.load(options.verify, options.tolerance) if options.verify else None
        self.past = past
        if past is not None:
            self.json: TextIO | None = stack.enter_context(past.path.open("a", encoding="utf-8"))
        else:
            self.json = stack.enter_context(output(options.json))
        self.failures = stack.enter_context(output(options.failures))
        self.recording = stack.enter_context(output(options.record))
        self.page = stack.enter_context(Page(options.html, pack)) if options.html else None
        self.scores = Scores(pack, options.target_error)

    def begin(self, pack: Pack, identity: dict[str, Any]) -> None:
        head = header(pack, identity)
        if self.recording is not None:
            write(self.recording, head)
        if self.verification is not None:
            self.verification.begin(head)

    def take(self, event: Event) -> None:
        """Write one event. Raises Stopped when it cannot stand beside what is resumed."""
        told = False
        if self.past is not None:
            if isinstance(event, Decision) and not event.known:
                self.past.check(event)
            told = (isinstance(event, Decision) and event.known) or (isinstance(event, Problem) and self.past.said(event))
        if self.page is not None:
            self.page.take(event)
        if isinstance(event, Decision):
            self.scores.add(event)
            if self.json is not None and not told:
                write(self.json, event.record())
            if self.recording is not None:
                write(self.recording, record(event))
            if self.verification is not None:
                self.verification.check(event)
        elif isinstance(event, Problem):
            for out in (None if told else self.json, self.failures):
                if out is not None:
                    write(out, problem_record(event))


@contextmanager
def output(name: str | Path | None) -> Iterator[TextIO | None]:
    """A file to write; "-" is stdout, None is none. Raises OSError."""
    if name is None:
        yield None
        return
    if str(name) == "-":
        yield sys.stdout
        return
    with Path(name).open("w", encoding="utf-8") as f:
        yield f
