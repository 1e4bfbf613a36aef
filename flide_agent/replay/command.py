"""The `replay` command: files in, decisions out, through a service of this process or one behind a URL."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from flide_agent.errors import FlideError
from flide_agent.replay.compare import NO_CACHE, NoCache, Side, Stateless
from flide_agent.replay.labels import Labels
from flide_agent.replay.load import Pace, Rate, over
from flide_agent.replay.pack import DEFAULT_PACK, Pack, load
from flide_agent.replay.page import Page
from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.reading import read
from flide_agent.replay.recording import Verification, header, record
from flide_agent.replay.records import Problem, Run, Step
from flide_agent.replay.report import problem_record, write
from flide_agent.replay.scores import Scores
from flide_agent.replay.screen import Screen
from flide_agent.replay.sources import sources
from flide_agent.replay.text import line, plain
from flide_agent.replay.walk import Decides, Decision, Event, Stopped, Walk
from flide_agent.settings import Settings

DONE, PROBLEMS, WRONG, NO_SERVICE, DRIFT, INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Exit codes."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was told. url: a server to ask; None runs one in this process from `settings`."""

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


class Outputs:
    """Everything that is written while a replay runs."""

    def __init__(self, options: Options, pack: Pack, stack: ExitStack) -> None:
        # First: the same file may be recorded anew.
        self.verification = Verification.load(options.verify, options.tolerance) if options.verify else None
        self.json = stack.enter_context(_output(options.json)) if options.json else None
        self.failures = stack.enter_context(_output(str(options.failures))) if options.failures else None
        self.recording = stack.enter_context(_output(str(options.record))) if options.record else None
        self.page = stack.enter_context(Page(options.html, pack)) if options.html else None
        self.scores = Scores(pack, options.target_error)

    def begin(self, pack: Pack, identity: dict[str, Any]) -> None:
        head = header(pack, identity)
        if self.recording is not None:
            write(self.recording, head)
        if self.verification is not None:
            self.verification.begin(head)

    def take(self, event: Event) -> None:
        if self.page is not None:
            self.page.take(event)
        if isinstance(event, Decision):
            self.scores.add(event)
            if self.json is not None:
                write(self.json, event.record())
            if self.recording is not None:
                write(self.recording, record(event))
            if self.verification is not None:
                self.verification.check(event)
        elif isinstance(event, Problem):
            for out in (self.json, self.failures):
                if out is not None:
                    write(out, problem_record(event))


def run(options: Options) -> int:
    """Replay the files; returns the exit code. Everything for people goes to stderr when the JSONL takes stdout."""
    console = Console(stderr=options.json == "-", highlight=False, markup=False, emoji=False)
    say = Console(stderr=True, highlight=False, markup=False, emoji=False)
    try:
        pack = load(options.questions) if options.questions else DEFAULT_PACK
        labels = Labels.load(options.labels) if options.labels else Labels()
        with ExitStack() as stack:
            out = Outputs(options, pack, stack)
            service = stack.enter_context(_service(options))
            walk = _walk(options, pack, labels, service, stack)
            if options.record or options.verify:
                out.begin(pack, _identity(service))
            files = sum(1 for _ in sources(options.files))
            screen = stack.enter_context(Screen(console, pack.questions, files, options.agents))
            code = _replay(options, walk, screen, out)
            if not options.keep and code != NO_SERVICE:
                walk.forget()
            return code
    except (QuestionsError, OSError) as e:
        say.print(f"flide-agent replay: {line(str(e), 1000)}", soft_wrap=True)
        return WRONG
    except FlideError as e:
        say.print(f"flide-agent replay: {line(e.message, 1000)}", soft_wrap=True)
        return NO_SERVICE


def _walk(options: Options, pack: Pack, labels: Labels, service: Decides, stack: ExitStack) -> Walk:
    def known(run: Run, step: Step) -> dict[str, Any]:
        return labels.of(run.file, run.row, run.name, step.index, step.labels)

    return Walk(
        service,
        pack.questions,
        options.steps,
        label=known,
        wait=Pace(options.rate) if options.rate is not None else None,
        side=_side(options, service, stack),
        warm=options.warm,
        window=None if options.keep else 64,
    )


def _side(options: Options, service: Decides, stack: ExitStack) -> Side | None:
    if options.compare is None:
        return None
    if options.compare == NO_CACHE:
        return NoCache(service)  # type: ignore[arg-type]  # the options allow it with a service in this process alone
    from flide_agent.client import Client

    return Stateless(stack.enter_context(Client(options.compare, api_key=options.api_key, timeout=300.0)))


def _replay(options: Options, walk: Walk, screen: Screen, out: Outputs) -> int:
    code = DONE
    complete = False
    try:
        for event in over(walk, _found(options), options.agents):
            screen.show(event)
            out.take(event)
        code = PROBLEMS if screen.totals.problems else DONE
        complete = True
    except Stopped as e:
        screen.console.print(f"stopped: {line(str(e), 1000)}", style="red", soft_wrap=True)
        code = WRONG if e.questions else NO_SERVICE
    except KeyboardInterrupt:
        screen.console.print("interrupted", style="red")
        code = INTERRUPTED
    screen.progress.stop()
    screen.summary()
    scored = out.scores.results()
    for text in out.scores.lines(scored):
        screen.console.print(plain(text), soft_wrap=True)
    summary = screen.totals.record() | ({"scores": scored} if scored else {})
    if out.verification is not None and complete:
        out.verification.end()
        for text in out.verification.lines():
            screen.console.print(plain(text), style="red" if out.verification.drifted else "green", soft_wrap=True)
        code = DRIFT if out.verification.drifted else code
        summary["verification"] = out.verification.summary()
    if out.json is not None:
        write(out.json, summary)
    if out.page is not None:
        out.page.finish(screen.totals, scored)
        screen.console.print(f"report    {line(str(options.html), 300)}", soft_wrap=True)
    return code


def _found(options: Options) -> Iterator[Run | Problem]:
    """Runs and problems of all files, at most `limit` runs."""
    left = options.limit
    for path in sources(options.files):
        for item in read(path, options.mode):
            if isinstance(item, Run):
                if left == 0:
                    return
                left = None if left is None else left - 1
            yield item


def _identity(service: Decides) -> dict[str, Any]:
    """Which model answers, as far as the service tells: its weights in this process, its name and date behind a URL."""
    from flide_agent.client import Client
    from flide_agent.local import LocalService

    if isinstance(service, LocalService):
        info = service.service.engine.info
        return {"weights": info.weights_digest, "prompt_format": service.service.decider.prompts.format}
    if isinstance(service, Client):
        models = service.models().get("models")
        first = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
        return {"model": json.dumps(first.get("name")), "release_date": json.dumps(first.get("release_date"))}
    return {}


@contextmanager
def _output(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stdout
        return
    with Path(name).open("w", encoding="utf-8") as f:
        yield f


@contextmanager
def _service(options: Options) -> Iterator[Decides]:
    if options.url is not None:
        from flide_agent.client import Client

        with Client(options.url, api_key=options.api_key, timeout=300.0) as client:
            yield client
        return
    from flide_agent.local import LocalService

    with LocalService(options.settings) as service:
        yield service
