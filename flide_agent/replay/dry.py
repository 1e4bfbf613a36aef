"""`flide-agent replay --dry-run`: what would be asked and how many tokens that is, with the model's tokenizer and no engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from flide_agent.ending import unread
from flide_agent.errors import InvalidRequest, StartError
from flide_agent.messages import InputError, InputErrors, Message, canonical_all
from flide_agent.model_files import prompts_of
from flide_agent.questions import parse_questions
from flide_agent.replay.moments import Asked, Plan
from flide_agent.replay.outputs import Options, output
from flide_agent.replay.pack import DEFAULT_PACK, Pack, load
from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.reading import all_runs
from flide_agent.replay.records import Problem, Run, Wire
from flide_agent.replay.report import Shown, problem_record, write
from flide_agent.replay.screen import Plain
from flide_agent.replay.text import line
from flide_agent.replay.totals import counted
from flide_agent.replay.walk import selected

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts
    from flide_agent.prompts.trunk import Trunk

GRID = 64


@dataclass
class Estimate:
    """Counts of a run, or of all. longest: tokens of the longest history. whole: tokens of every request from its start;
    computed: when each request goes on from the last multiple of 64 that it shares with the one before it in its run."""

    steps: int = 0
    decisions: int = 0
    requests: int = 0
    longest: int = 0
    whole: int = 0
    computed: int = 0
    moments: Counter[str] = field(default_factory=Counter)

    def add(self, other: Estimate) -> None:
        for name in ("steps", "decisions", "requests", "whole", "computed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        self.moments += other.moments

    def record(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "decisions": self.decisions,
            "requests": self.requests,
            "longest_history_tokens": self.longest,
            "computed_without_reuse": self.whole,
            "computed_tokens": self.computed,
            "moments": dict(self.moments),
        }


class Counting:
    """Counts requests as the service would read them. Raises QuestionsError for questions that it would refuse."""

    def __init__(self, prompts: Prompts, pack: Pack) -> None:
        self.prompts, self.plan = prompts, Plan(pack.questions, pack.moments, pack.needing)
        try:
            self.branches = {
                n: len(prompts.question(q).tokens) for n, q in parse_questions(pack.questions, ("questions",)).items()
            }
        except (InputError, InputErrors) as e:
            raise QuestionsError(InvalidRequest(e.details()).message) from e

    def count(self, run: Run, steps: tuple[int, int | None], every: int) -> Estimate:
        """Raises InputError, InputErrors for messages that the service would refuse."""
        some = selected(run.steps, steps, every)
        out = Estimate(steps=len(some))
        before: Trunk | None = None
        for asked, trunk in self._trunks(run, [self.plan.asked(*parts) for parts in self.plan.parts(some)]):
            shared = 0 if before is None else _common(before.tokens, trunk.tokens) // GRID * GRID
            branches = self._branches(asked)
            out.requests += 1
            out.decisions += len(asked.parts)
            out.moments.update(moment for _, moment in asked.parts)
            out.longest = max(out.longest, len(trunk.tokens))
            out.whole += len(trunk.tokens) + branches
            out.computed += len(trunk.tokens) - shared + branches
            before = trunk
        return out

    def _branches(self, asked: Asked) -> int:
        """Every question stands on the history, and once more on the candidate."""
        own = sum(self.branches[name] for name in asked.questions)
        if not asked.on_candidate:
            return own
        first = len(asked.messages) + 1
        messages = canonical_all(asked.candidate, ("candidate",))
        return 2 * own + sum(len(self.prompts.message(first + i, m).tokens) for i, m in enumerate(messages))

    def _trunks(self, run: Run, requests: list[Asked]) -> Iterator[tuple[Asked, Trunk]]:
        """Only messages that the request before did not have are tokenised."""
        sent: list[Wire] = []
        read: list[Message] = []
        trunk: Trunk | None = None
        for asked in requests:
            keep = 0
            while keep < min(len(sent), len(asked.messages)) and sent[keep] == asked.messages[keep]:
                keep += 1
            read = read[:keep] + canonical_all(asked.messages[keep:], ("messages",))
            trunk = self.prompts.history(run.tools, read, base=trunk, keep=keep)
            sent = asked.messages
            yield asked, trunk


def run(options: Options) -> int:
    """Say what would be asked; returns the exit code: 0, 1 with problems, 2 for wrong questions, 3 without the tokenizer."""
    console = Plain(stderr=options.json == "-")
    say = Plain(stderr=True)
    try:
        inputs = options.inputs()
        pack = load(options.questions) if options.questions else DEFAULT_PACK
        counting = Counting(prompts_of(options.settings.model)[0], pack)
        for name, question in pack.questions.items():
            about = f"{question['type']}, {pack.readings[name].moment}, {counting.branches[name]} tokens"
            console.print(f"{line(name, 40)} ({about}): {line(str(question.get('instructions', '')), 120)}", soft_wrap=True)
        return _count(options, inputs, counting, console)
    except BrokenPipeError:
        return unread()
    except (QuestionsError, OSError) as e:
        say.print(f"flide-agent replay: {line(str(e), 1000)}", soft_wrap=True)
        return 2
    except StartError as e:
        say.print(f"flide-agent replay: {line(e.message, 1000)}", soft_wrap=True)
        return 3


def _count(options: Options, inputs: list[Path | Problem], counting: Counting, console: Console) -> int:
    total, runs, problems, shown = Estimate(), 0, 0, Shown()
    with output(options.json) as out, output(options.failures) as failures:
        for item in all_runs(inputs, options.mode, options.limit):
            if isinstance(item, Run):
                try:
                    found = counting.count(item, options.steps, options.every)
                except (InputError, InputErrors) as e:
                    item = Problem(item.file, f"would be refused: {line(str(e))}", item.row)
            if isinstance(item, Problem):
                problems += 1
                text = shown.say(item)
                for f in (out, failures):
                    if f is not None:
                        write(f, problem_record(item))
            else:
                runs += 1
                total.add(found)
                text = f"{line(item.file, 160)}{f':{item.row}' if item.row != 1 else ''} {item.name}: {_told(found)}"
                if out is not None:
                    place = {"file": item.file, "row": item.row, "run": item.name, "format": item.format}
                    write(out, {"kind": "planned", **place, **found.record()})
            if text is not None:
                console.print(text, soft_wrap=True)
        console.print(f"{counted(runs, 'run')}, {counted(problems, 'problem')}: {_told(total)}", soft_wrap=True)
        console.print(f"tokens are those of the model {options.settings.model!r}", soft_wrap=True)
        if out is not None:
            write(out, {"kind": "summary", "dry_run": True, "runs": runs, "problems": problems, **total.record()})
    return 1 if problems else 0


def _told(e: Estimate) -> str:
    asked = f"{counted(e.steps, 'step')}, {counted(e.decisions, 'decision')} in {counted(e.requests, 'request')}"
    return f"{asked}; longest history {e.longest:,} tokens; {e.whole:,} tokens without reuse, {e.computed:,} with it"


def _common(a: Any, b: Any) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
