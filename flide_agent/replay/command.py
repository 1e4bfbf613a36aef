"""The `replay` command: files in, decisions out, through a service of this process or one behind a URL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console

from flide_agent.errors import FlideError
from flide_agent.replay.questions import DEFAULT, QuestionsError, load
from flide_agent.replay.reading import read
from flide_agent.replay.records import Problem, Run
from flide_agent.replay.report import problem_record, write
from flide_agent.replay.screen import Screen
from flide_agent.replay.sources import sources
from flide_agent.replay.text import line
from flide_agent.replay.walk import Decides, Decision, Stopped, Walk
from flide_agent.settings import Settings

DONE, PROBLEMS, WRONG, NO_SERVICE, INTERRUPTED = 0, 1, 2, 3, 130
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


def run(options: Options) -> int:
    """Replay the files; returns the exit code. Everything for people goes to stderr when the JSONL takes stdout."""
    console = Console(stderr=options.json == "-", highlight=False, markup=False, emoji=False)
    say = Console(stderr=True, highlight=False, markup=False, emoji=False)
    try:
        questions = load(options.questions) if options.questions else DEFAULT
        with ExitStack() as stack:
            out = stack.enter_context(_output(options.json)) if options.json else None
            service = stack.enter_context(_service(options))
            walk = Walk(service, questions, options.steps)
            screen = stack.enter_context(Screen(console, questions, sum(1 for _ in sources(options.files))))
            code = _replay(options, walk, screen, out)
            if not options.keep and code != NO_SERVICE:
                walk.forget()
            return code
    except QuestionsError as e:
        say.print(f"flide-agent replay: {line(str(e), 1000)}", soft_wrap=True)
        return WRONG
    except OSError as e:
        say.print(f"flide-agent replay: {line(str(e), 1000)}", soft_wrap=True)
        return WRONG
    except FlideError as e:
        say.print(f"flide-agent replay: {line(e.message, 1000)}", soft_wrap=True)
        return NO_SERVICE


def _replay(options: Options, walk: Walk, screen: Screen, out: TextIO | None) -> int:
    code = DONE
    try:
        for event in walk.over(_found(options)):
            screen.show(event)
            if out is not None and isinstance(event, Decision):
                write(out, event.record())
            elif out is not None and isinstance(event, Problem):
                write(out, problem_record(event))
        code = PROBLEMS if screen.totals.problems else DONE
    except Stopped as e:
        screen.console.print(f"stopped: {line(str(e), 1000)}", style="red", soft_wrap=True)
        code = WRONG if e.questions else NO_SERVICE
    except KeyboardInterrupt:
        screen.console.print("interrupted", style="red")
        code = INTERRUPTED
    screen.progress.stop()
    screen.summary()
    if out is not None:
        write(out, screen.totals.record())
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
