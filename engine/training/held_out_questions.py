"""What is asked about a history of a held-out source: the wordings of the default pack, and others to compare them with."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from flide_agent.questions import Choice, Noul, Option, Question, Score
from training.asks import EXCEPTIONS, HOW_MANY, LEVELS, WHICH_EXCEPTION, WHICH_FILE, WHICH_PROGRAM, WHICH_TOOL, YES_NO
from training.held_out_labels import Done, Fact

KIND_TEXTS = {
    "look": "list a folder, open, read or scroll a file",
    "search": "search in files or for files",
    "edit": "create, change, move or delete a file",
    "run": "run a program, a test or an installation",
}


def questions(fact: Fact, rng: random.Random, actions: Sequence[Done]) -> Iterator[tuple[str, Question, int, str, str]]:
    """(name, question, right, truth, test): two wordings of each yes/no question, three orders of each choice."""
    for name, truth in fact.yes_no.items():
        kind = YES_NO[name]
        yes, no = kind.sides[0]
        yield name, Noul(kind.yes[0], yes, no), 0 if truth else 1, str(truth), "plain"
        yield name, Noul(rng.choice(kind.no)), 1 if truth else 0, str(truth), "reversed"
    if fact.steps:
        level = 0 if fact.steps <= 3 else 1 if fact.steps <= 8 else 2 if fact.steps <= 15 else 3
        yield "step_count", Score(HOW_MANY[0], LEVELS, LEVELS), level, str(level), "plain"
    words = {w.strip("'\"/") for a in actions for w in a.text.split() if w.endswith((".py", ".txt", ".cfg", ".md"))}
    choices = [
        ("last_program", WHICH_PROGRAM[0], fact.program, {a.program for a in actions}, ("ls", "grep", "python", "edit", "git")),
        ("exception_type", WHICH_EXCEPTION[0], fact.exception, set(), EXCEPTIONS),
        ("last_edited_file", WHICH_FILE[0], fact.file, words, ("setup.py", "README.md", "main.py", "utils.py")),
    ]
    for name, text, right, seen, common in choices:
        if not right:
            continue
        others = sorted(s for s in seen if s and s != right and right not in s and s not in right)
        rng.shuffle(others)
        others += [c for c in common if c != right and c not in others]
        yield from _orders(name, text, right, "", [Option(o) for o in (right, *others[:3])], rng)
    if fact.kind:
        options = [Option(k, t) for k, t in KIND_TEXTS.items()]
        yield from _orders("last_tool_kind", WHICH_TOOL[0], fact.kind, fact.kind, options, rng)


def _orders(name: str, text: str, right: str, truth: str, options: list[Option], rng: random.Random) -> Iterator[Any]:
    for order in range(3):
        rng.shuffle(options)
        place = next(i for i, o in enumerate(options) if o.name == right)
        yield name, Choice(text, tuple(options)), place, truth, "plain" if order == 0 else "order"


def options_of(question: Question) -> tuple[str, ...]:
    """What stands at each label, in order."""
    if isinstance(question, Choice):
        return tuple(o.name for o in question.options)
    return question.levels if isinstance(question, Score) else ("yes", "no")
