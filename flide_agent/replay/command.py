"""The `replay` command: files in, decisions out, through a service of this process or one behind a URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from flide_agent.ending import Terminated, code_of, terminable, unread
from flide_agent.errors import FlideError
from flide_agent.replay.compare import NO_CACHE, NoCache, Side, Stateless
from flide_agent.replay.labels import Labels, Use
from flide_agent.replay.load import Pace, over
from flide_agent.replay.moments import Plan
from flide_agent.replay.outputs import Options, Outputs
from flide_agent.replay.pack import DEFAULT_PACK, Pack, described, load
from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.reading import all_runs
from flide_agent.replay.records import Problem, Run, Step
from flide_agent.replay.report import write
from flide_agent.replay.resume import Resumed
from flide_agent.replay.screen import Plain, Screen
from flide_agent.replay.text import line, plain
from flide_agent.replay.totals import Totals, counted
from flide_agent.replay.walk import WINDOW, Decides, Stopped, Walk, labels_at

__all__ = ["Options", "run"]

DONE, PROBLEMS, WRONG, NO_SERVICE, DRIFT = 0, 1, 2, 3, 4
"""Exit codes; those of `ending` are for a replay that was ended."""

FILES_NAMED = 3
"""At most, where nothing was asked."""


def run(options: Options) -> int:
    """Replay the files; returns the exit code. Everything for people goes to stderr when the JSONL takes stdout."""
    say = Plain(stderr=True)
    try:
        with terminable(Terminated()):
            return _run(options, say)
    except KeyboardInterrupt as e:  # while it starts, or once more while it cleans up
        say.print("interrupted")
        return code_of(e)
    except BrokenPipeError:
        return unread()
    except (QuestionsError, OSError) as e:
        say.print(f"flide-agent replay: {line(str(e), 1000)}", soft_wrap=True)
        return WRONG
    except FlideError as e:
        say.print(f"flide-agent replay: {line(e.message, 1000)}", soft_wrap=True)
        return NO_SERVICE


def _run(options: Options, say: Console) -> int:
    found = options.inputs()
    pack = load(options.questions) if options.questions else DEFAULT_PACK
    labels = Labels.load(options.labels) if options.labels else Labels()
    if options.labels:
        _tell_unread(labels.use(pack), say)
    with ExitStack() as stack:
        past = Resumed(options.resume, Plan(pack.questions, pack.moments).digest) if options.resume else None
        if past is not None:
            stack.callback(past.close)
        out = Outputs(options, pack, past, stack)
        service = stack.enter_context(_service(options))
        walk = _walk(options, pack, labels, past, service, stack)
        if options.record or options.verify:
            out.begin(pack, _identity(service))
        screen = stack.enter_context(Screen(Plain(stderr=options.json == "-"), pack, len(found), options.agents))
        try:
            try:
                code = _replay(options, found, labels, walk, screen, out)
            except BrokenPipeError:
                code = unread()
            passing = options.url is None and options.settings.store is None  # a store that goes with this process
            if not (options.keep or passing or code == NO_SERVICE):
                walk.forget()
        finally:
            walk.leave()
        return code


def _walk(options: Options, pack: Pack, labels: Labels, past: Resumed | None, service: Decides, stack: ExitStack) -> Walk:
    def known(run: Run, step: Step, moment: str) -> dict[str, Any]:
        return labels.of(run.file, run.row, run.name, step.index, moment, labels_at(step, moment))

    return Walk(
        service,
        pack.questions,
        options.steps,
        options.every,
        pack.moments,
        pack.needing,
        label=known,
        wait=Pace(options.rate) if options.rate is not None else None,
        side=_side(options, service, stack),
        warm=options.warm,
        window=None if options.keep else WINDOW,
        past=past,
        inside=options.url is None and _inside(service),
        served=options.url is not None,
    )


def _inside(service: Decides) -> bool:
    from flide_agent.local import LocalService

    return isinstance(service, LocalService)


def _side(options: Options, service: Decides, stack: ExitStack) -> Side | None:
    if options.compare is None:
        return None
    if options.compare == NO_CACHE:
        return NoCache(service)  # type: ignore[arg-type]  # the options allow it with a service in this process alone
    from flide_agent.client import Client

    return Stateless(stack.enter_context(Client(options.compare, api_key=options.api_key, timeout=300.0)))


def _tell_unread(use: Use, say: Console) -> None:
    """Warn of labels that cannot be compared with. Raises QuestionsError when there are no others."""
    for text in use.unread():
        say.print(line(text, 400), soft_wrap=True)
    if not use.read:
        raise QuestionsError(f"{use.path}: no label in it is one that a question is compared with")


def _replay(options: Options, found: list[Path | Problem], labels: Labels, walk: Walk, screen: Screen, out: Outputs) -> int:
    code, complete, say = DONE, False, Plain(stderr=True)
    try:
        for event in over(walk, all_runs(found, options.mode, options.limit), options.agents):
            screen.show(event)
            out.take(event)
        code = PROBLEMS if screen.totals.problems else DONE
        complete = True
    except Stopped as e:
        screen.console.print(f"stopped: {line(str(e), 1000)}", style="red", soft_wrap=True)
        code = WRONG if e.questions else NO_SERVICE
    except KeyboardInterrupt as e:
        kept = options.resume or (options.json if options.json != "-" else None)
        more = f"; to go on, give --resume {line(str(kept), 300)} in place of --json" if kept is not None else ""
        screen.console.print("interrupted" + more, style="red", soft_wrap=True)
        code = code_of(e)
    screen.progress.stop()
    screen.summary()
    for text in _unmet(options, walk, screen) if complete else ():
        say.print(text, soft_wrap=True)
    scored = out.scores.results()
    for text in out.scores.lines(scored):
        screen.console.print(plain(text), soft_wrap=True)
    for text in out.past.strangers() if complete and out.past is not None else ():
        say.print(line(text, 400), soft_wrap=True)
        code = WRONG
    summary = screen.totals.record() | {"pack": described(out.scores.pack)} | ({"scores": scored} if scored else {})
    if options.labels is not None:
        use = labels.use(out.scores.pack)
        summary["labels"] = use.record()
        if complete:
            for text in use.unasked():
                say.print(line(text, 400), soft_wrap=True)
            code = code if use.matched else WRONG
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


def _unmet(options: Options, walk: Walk, screen: Screen) -> list[str]:
    """What was asked for and did not come about."""
    totals = screen.totals
    out = []
    if not totals.decisions and not totals.problems:
        out.append(f"nothing was asked: {_why_nothing(options, totals, list(screen.seen))}")
    paced = options.rate is not None and options.rate.recorded is not None and totals.decisions > 0
    if paced and isinstance(walk.wait, Pace) and not walk.wait.timed:
        out.append("--rate recorded: no step has a recorded time, so none was waited for")
    return out


def _why_nothing(options: Options, totals: Totals, files: list[str]) -> str:
    if not totals.runs:
        return "there is no run in what was given"
    if not totals.steps:
        named = ", ".join(line(f, 160) for f in files[:FILES_NAMED])
        more = f" and {counted(len(files) - FILES_NAMED, 'more file')}" if len(files) > FILES_NAMED else ""
        return f"there is no step, that is no action of an agent, in the {counted(totals.runs, 'run')} of {named}{more}"
    if options.steps != (1, None) or options.every != 1:
        return f"of {counted(totals.runs, 'run')}, --steps and --every choose no step with such a moment"
    return f"of {counted(totals.steps, 'step')}, none has a moment that these questions are asked at"


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
def _service(options: Options) -> Iterator[Decides]:
    if options.url is not None:
        from flide_agent.client import Client

        with Client(options.url, api_key=options.api_key, timeout=300.0) as client:
            yield client
        return
    from flide_agent.local import LocalService

    with LocalService(options.settings) as service:
        yield service
