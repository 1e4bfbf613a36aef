"""The live side of a replay: rows as they come, a progress bar below them on a terminal, plain lines anywhere else."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from flide_agent.replay.decision import Decision, Ended, Event, Started
from flide_agent.replay.moments import BEFORE
from flide_agent.replay.pack import Pack
from flide_agent.replay.records import Problem
from flide_agent.replay.report import Layout, Shown, heading
from flide_agent.replay.text import line
from flide_agent.replay.totals import UNTRAINED, Totals

_REASONS = {"append": "green", "repeat": "green", "edit": "yellow", "fork": "yellow", "new": "cyan"}


class Plain(Console):
    """Takes text as it is. Raises BrokenPipeError where nobody reads it any more; rich would end the process there."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Screen:
    """Prints events. Text from files goes through `text.line` and is never read as markup, so it cannot steer the terminal."""

    def __init__(self, console: Console, pack: Pack, files: int, agents: int = 1) -> None:
        self.console = console
        self.agents = agents
        self.live = console.is_terminal
        self.pack = pack
        self.layout = self._layout(0)
        self.files = files
        self.seen: dict[str, None] = {}
        self.shown = Shown()
        self.totals = Totals()
        self.waiting_for_first = False
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self.live,
        )
        self.task = self.progress.add_task("reading", total=None)

    def _layout(self, last: int) -> Layout:
        """last: the highest number of a step."""
        moments = set(self.pack.moments.values()) != {BEFORE}
        return Layout.fitting(self.pack.questions, self.console.width if self.live else None, moments, last)

    def __enter__(self) -> Screen:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def show(self, event: Event) -> None:
        """Print one event and count it."""
        self.totals.add(event)
        if isinstance(event, Problem):
            self._problem(event)
        elif self.agents > 1:
            self._load(event)
        elif isinstance(event, Started):
            self._started(event)
        elif isinstance(event, Decision):
            self._decision(event)

    def _load(self, event: Event) -> None:
        """With several agents their rows would be mixed: one line for each run that is through, and what all do below it."""
        done = self.totals.decisions
        if isinstance(event, Started):
            self.seen[event.run.file] = None
        elif isinstance(event, Decision):
            if done == 1 and event.untrained:
                self._print(UNTRAINED, "yellow")
            text = (
                f"{self.agents} agents, {done} decisions, {self.totals.per_second:.1f}/s, {self.totals.share:.0%} reused, file"
            )
            total = self.files if self.files > 1 else None
            self.progress.update(self.task, description=text, total=total, completed=len(self.seen) - 1 if total else done)
        elif isinstance(event, Ended):
            self._print(f"through: {heading(event.run, len(event.run.steps))}", "")

    def summary(self) -> None:
        self._print("", "")
        for text in self.totals.lines():
            self._print(text, "yellow" if text == UNTRAINED else "")

    def _started(self, event: Started) -> None:
        self.seen[event.run.file] = None
        name = line(event.run.name or event.run.file.rpartition("/")[2], 30)
        place = f"{len(self.seen)}/{self.files} " if self.files > 1 else ""
        self.progress.update(self.task, description=f"{place}{name}", total=event.decisions, completed=0)
        if self.totals.runs > 1:
            self._print("", "")
        self._print(heading(event.run, event.steps), "bold")
        self.layout = self._layout(max((s.index for s in event.run.steps), default=0))
        self.waiting_for_first = True

    def _decision(self, event: Decision) -> None:
        if self.waiting_for_first:
            if event.untrained:
                self._print(UNTRAINED, "yellow")
            self._print(self.layout.header(), "dim")
            self.waiting_for_first = False
        self._print(self.layout.row(event), _REASONS.get(event.reason, ""))
        if self.live:
            self.progress.advance(self.task)

    def _problem(self, event: Problem) -> None:
        text = self.shown.say(event)
        if text is not None:
            self._print(text, "red")

    def _print(self, text: str, style: str) -> None:
        if self.live:
            self.console.print(Text(text, style=style), soft_wrap=True, highlight=False)
        else:  # nothing to colour or to draw around: a tenth of the time
            self.console.file.write(text + "\n")
            self.console.file.flush()
