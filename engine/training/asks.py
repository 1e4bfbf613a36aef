"""Questions with rule truth: what each asks, in many wordings, and what the recorded facts answer.

Every yes/no question has wordings of both polarities; a negated wording turns the answer around. Options are shuffled.
"""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from flide_agent.questions import Choice, Noul, Option, Question, Score
from training import truths
from training.truths import Truth, View


@dataclass(frozen=True, slots=True)
class Asked:
    """name: the kind of question; right: index of the right label; group: what its balance is kept over."""

    name: str
    question: Question
    right: int
    group: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A yes/no question. yes, no: wordings that ask for the fact and for its opposite; sides: descriptions of both, in that order."""

    truth: Truth
    yes: tuple[str, ...]
    no: tuple[str, ...]
    sides: tuple[tuple[str, str], ...]


YES_NO: dict[str, Kind] = {
    "last_command_failed": Kind(truths.failed, (
        "Did the last command that the agent ran fail?", "Did the last command fail?", "Has the most recent command failed?", "Did the latest tool call end in an error?",
        "Is the last result a failure?", "The agent's last action failed.", "Was the last command unsuccessful?", "Does the last output show that the command failed?",
        "Did the agent's most recent action go wrong?", "Did the previous step produce an error?", "last command failed", "Look at the final observation. Is it an error?"),
        ("Did the last command succeed?", "Did the last command work without an error?", "Was the most recent tool call successful?", "The last command did what it should.",
         "Did the latest action complete without failing?", "Is the last result free of errors?", "Was the last step successful?", "last command ok"),
        (("its output shows an error, a failing test, a refusal or a timeout", "it did what it was meant to do, or no command has been run yet"), ("it failed", "it worked"), ("an error came back", "no error came back"))),
    "traceback": Kind(truths.traceback, (
        "Does the last observation contain a Python traceback?", "Is there a traceback in the last output?", "Did the last command print a stack trace?", "Does the most recent output show a Traceback?",
        "traceback in last output", "Was an exception's traceback printed by the last command?", "The final observation holds a Python stack trace.", "Can a Python traceback be seen in the latest result?"),
        ("Is the last output free of tracebacks?", "The last observation has no traceback.", "Did the last command run without printing a traceback?", "No stack trace in the latest output?"),
        (("a traceback is printed", "there is none"), ("it has a stack trace", "it has no stack trace"))),
    "any_file_edited": Kind(truths.edited, (
        "Has the agent changed any file so far?", "Was any file edited up to now?", "Did the agent create, change or delete a file in this run?", "Has anything been modified yet?",
        "files edited so far", "Is there at least one edit in the history?", "Has the agent made a change that took effect?", "The agent has already modified something."),
        ("Has the agent left all files as they were so far?", "No file has been changed yet.", "Is everything still unmodified?", "Has the agent only looked and not edited up to now?"),
        (("at least one file was changed", "nothing was changed"), ("an edit took effect", "no edit took effect"))),
    "last_changed_file": Kind(truths.last_edited, (
        "Did the last command change a file?", "Was a file modified by the last action?", "Is the last action an edit that took effect?", "The latest step wrote to a file.",
        "Did the most recent command create, change or delete something?", "last action edited"),
        ("Did the last action leave all files unchanged?", "The last command changed nothing.", "Was the latest action without effect on files?", "Did the last step only read or run?"),
        (("a file is different now", "no file is different"), ("it changed something", "it changed nothing"))),
    "tests_passed": Kind(truths.passed, (
        "Did the tests pass when they were run last?", "Did all tests pass at the last test run?", "Was the most recent test run green?", "Are the tests passing as of the last run?",
        "tests passed at last run", "The last run of the tests succeeded.", "Was the latest test run successful?"),
        ("Did any test fail at the last test run?", "Was the most recent test run red?", "The last test run failed.", "Are there failing tests as of the last run?", "Did the tests fail when last run?"),
        (("all passed", "some failed or could not run"), ("green", "red"))),
    "tests_run": Kind(truths.tested, (
        "Has the agent run the tests yet?", "Were tests run in this history?", "Did the agent execute any test suite so far?", "tests run so far", "The tests have been run at least once."),
        ("Is the agent still to run the tests for the first time?", "No tests have been run so far.", "Has no test been executed yet?", "The agent never ran the tests."),
        (("at least one test run", "no test run"),)),
    "submitted": Kind(truths.submitted, (
        "Has the agent submitted its work?", "Did the agent hand in its result?", "Is the run finished by a submission?", "submitted", "The agent has submitted.", "Was the final answer handed in?"),
        ("Is the agent still working, with nothing submitted?", "The agent has not submitted yet.", "Is the submission still to come?", "Has nothing been handed in so far?"),
        (("it was handed in", "it goes on"), ("submitted", "not submitted"))),
    "repeated": Kind(truths.repeated, (
        "Did the agent repeat the same command?", "Is the last command identical to the one before it?", "Did the agent run exactly the same command twice in a row?", "repeated the last command",
        "Was the last action a repetition of the previous action?", "The agent just did the same thing again."),
        ("Is the last command different from the one before?", "Did the agent do something new in its last step?", "The last two commands differ.", "Was the last action a new one?"),
        (("the same command again", "another command"), ("a repetition", "something new"))),
    "looping": Kind(truths.looping, (
        "Has the agent run the same command three or more times in a row?", "Is the agent stuck in a loop of one command?", "Is the agent stuck: does it repeat one command again and again?",
        "Were the last three commands all identical?", "agent loops", "The agent keeps running the same command."),
        ("Is the agent free of loops, its last three commands not all the same?", "The agent is not stuck on one command.", "Do the last three commands differ somewhere?", "Is the agent moving on?"),
        (("three equal commands in a row", "no such loop"), ("it repeats itself", "it moves on"))),
    "empty_output": Kind(truths.empty, (
        "Was the output of the last command empty?", "Did the last command print nothing?", "Is there no output in the last observation?", "last output empty", "The last command was silent.",
        "Did the most recent action return nothing?"),
        ("Did the last command print something?", "Is there output in the last observation?", "The last result is not empty.", "Did the latest command return any text?"),
        (("nothing was printed", "something was printed"), ("empty", "not empty"))),
    "ever_failed": Kind(truths.ever_failed, (
        "Has any command failed so far?", "Was there at least one failing command in this run?", "Did something go wrong at any step?", "any failure so far", "The run has seen an error at least once."),
        ("Have all commands worked so far?", "No command has failed up to now.", "Is the history free of failures?", "Did every step succeed?"),
        (("at least one failed", "none failed"),)),
    "two_failures": Kind(truths.two_failed, (
        "Did the last two commands both fail?", "Have the two most recent commands failed?", "Two failures in a row at the end?", "The agent's last two actions both ended in an error."),
        ("Did at least one of the last two commands work?", "The last two commands did not both fail.", "Was one of the two latest actions successful?"),
        (("both failed", "at least one worked"),)),
}  # fmt: skip

TOOLS: dict[str, tuple[str, ...]] = {
    "look": ("list a folder, open, read or scroll a file", "looks at files or folders", "reads", "view or list something", "inspection of a file or directory"),
    "search": ("search in files or for files", "searches the code", "finds files or text", "grep or find", "a search for text or names"),
    "edit": ("create, change, move or delete a file", "changes a file", "writes", "edit or create a file", "a modification of files"),
    "run": ("run a program, a test or an installation", "runs tests or a program", "executes code", "python, tests or another program", "an execution of a program"),
}  # fmt: skip
TOOL_NAMES = {
    "look": ("look", "read", "view"),
    "search": ("search", "find"),
    "edit": ("edit", "write", "change"),
    "run": ("run", "execute", "test"),
}
WHICH_TOOL = ("Which kind of tool was used last?", "Which kind of tool did the agent use last?", "What kind of action was the last one?", "What did the agent do in its last step?", "Classify the most recent command.",
               "The last tool call was of which kind?", "last tool kind", "What type of command came last?", "Which of these describes the latest action?", "Pick the kind of the agent's last command.")  # fmt: skip
WHICH_PROGRAM = ("Which command did the agent run last?", "What is the name of the last tool or program?", "Which program ran last?", "The last command started with which word?", "last program",
                  "Which tool was called in the last step?", "Name the most recent command.", "Which of these was used last?", "What was called last?", "Pick the program of the last command.")  # fmt: skip
WHICH_EXCEPTION = ("Which exception does the last traceback show?", "Which error type ended the last command?", "What kind of exception was raised last?", "Name the exception in the last output.",
                    "exception type", "Which exception class is printed last?", "The last traceback ends in which exception?", "What went wrong in Python's words?", "Which error came up?", "Pick the exception.")  # fmt: skip
WHICH_FILE = ("Which file was changed last?", "Which file did the agent edit most recently?", "The last modification was made to which file?", "last edited file", "Name the file of the latest edit.",
               "Where did the last change go?", "Which of these files was written last?", "What did the agent change last?", "Pick the file edited last.", "The most recently modified file is which?")  # fmt: skip
HOW_MANY = ("How many commands has the agent run so far?", "How long is this run, in commands?", "How many actions are in the history?", "Number of steps so far?", "Rate the length of the run.",
             "How many times did the agent act?", "steps so far", "Count the agent's actions.", "How far is the run, by number of actions?", "How many tool calls were made?")  # fmt: skip
LEVELS = ("1 to 3", "4 to 8", "9 to 15", "16 or more")
AT_START = (
    "last_command_failed",
    "traceback",
    "any_file_edited",
    "tests_run",
    "submitted",
    "repeated",
    "looping",
    "ever_failed",
    "last_changed_file",
    "two_failures",
)
"""Questions whose answer is no before the first command."""
LEVEL_ENDS = ("", " commands", " actions")
_PROGRAMS = (
    "ls",
    "cat",
    "grep",
    "find",
    "python",
    "sed",
    "git",
    "rm",
    "mkdir",
    "pytest",
    "echo",
    "open",
    "edit",
    "submit",
    "head",
    "pip",
)
EXCEPTIONS = (
    "ValueError",
    "TypeError",
    "KeyError",
    "ImportError",
    "ModuleNotFoundError",
    "AssertionError",
    "AttributeError",
    "ZeroDivisionError",
    "FileNotFoundError",
    "SyntaxError",
    "RuntimeError",
    "NameError",
)
NAMES = (*YES_NO, "last_tool_kind", "last_program", "exception_type", "last_edited_file", "step_count")


def ask(name: str, view: View, rng: random.Random) -> Asked | None:
    """One wording of the question about the view, with its answer; None where the facts do not decide it."""
    if name in YES_NO:
        return _yes_no(name, view, rng)
    last = view.actions[-1]
    if name == "step_count":
        if view.partial:
            return None
        n = len(view.actions)
        level = 0 if n <= 3 else 1 if n <= 8 else 2 if n <= 15 else 3
        levels = tuple(t + rng.choice(LEVEL_ENDS) for t in LEVELS)
        return Asked(name, Score(rng.choice(HOW_MANY), levels, levels), level, str(level))
    if name == "last_tool_kind":
        if last.kind not in TOOLS:
            return None
        options = {kind: (rng.choice(TOOL_NAMES[kind]), rng.choice(texts)) for kind, texts in TOOLS.items()}
        return _choice(
            name, rng.choice(WHICH_TOOL), last.kind, list(options), rng, lambda k: _worded(options[k], rng), last.kind
        )
    if name == "last_program":
        right = last.program if view.source != "desk" else last.name
        if not right.replace("_", "").isalnum() or len(right) > 24:
            return None
        seen = {a.program if view.source != "desk" else a.name for a in view.actions} - {right}
        return _copied(
            name,
            rng.choice(WHICH_PROGRAM),
            right,
            sorted(s for s in seen if s.replace("_", "").isalnum() and len(s) < 24),
            _PROGRAMS,
            rng,
        )
    if name == "exception_type":
        right = last.exception
        if not right or right not in (view.outputs[-1] or ""):
            return None
        return _copied(
            name,
            rng.choice(WHICH_EXCEPTION),
            right,
            sorted({a.exception for a in view.actions} - {right, ""}),
            EXCEPTIONS,
            rng,
        )
    edits = [a.edited[0] for a in view.actions if len(a.edited) == 1 and a.edited[0] in a.command]
    if name != "last_edited_file" or view.source == "desk" or not edits or any(len(a.edited) > 1 for a in view.actions):
        return None
    seen = {
        word.strip("'\"/") for a in view.actions for word in a.command.split() if word.endswith((".py", ".txt", ".cfg", ".md"))
    }
    return _copied(
        name,
        rng.choice(WHICH_FILE),
        edits[-1],
        sorted(s for s in seen if len(s) < 60 and edits[-1] not in s),
        ("setup.py", "README.md", "tests/test_core.py", "main.py", "utils.py", "docs/index.md"),
        rng,
    )


def _yes_no(name: str, view: View, rng: random.Random) -> Asked | None:
    truth = YES_NO[name].truth(view)
    return None if truth is None else _with_truth(name, truth, rng)


def at_start(name: str, rng: random.Random) -> Asked:
    """One wording of a question of AT_START on a history in which nothing was done yet: the answer is that it was not."""
    return _with_truth(name, False, rng)


def _with_truth(name: str, truth: bool, rng: random.Random) -> Asked:
    kind = YES_NO[name]
    turned = rng.random() < 0.4
    text = rng.choice(kind.no if turned else kind.yes)
    yes, no = rng.choice(kind.sides) if rng.random() < 0.5 else ("", "")
    if turned:
        yes, no = no, yes
    right = truth != turned
    return Asked(name, Noul(text, yes, no), 0 if right else 1, f"{truth}-{turned}")


def _worded(option: tuple[str, str], rng: random.Random) -> Option:
    name, text = option
    return Option(name, text) if rng.random() < 0.6 else Option(text)


def _choice(
    name: str, text: str, right: str, keys: list[str], rng: random.Random, worded: Callable[[str], Option], group: str
) -> Asked:
    rng.shuffle(keys)
    return Asked(name, Choice(text, tuple(worded(k) for k in keys)), keys.index(right), group)


def _copied(name: str, text: str, right: str, seen: list[str], common: tuple[str, ...], rng: random.Random) -> Asked:
    """A choice of four names, distractors from the history first."""
    others = rng.sample(seen, min(len(seen), rng.choice((1, 2, 3))))
    others += rng.sample([c for c in common if c != right and c not in others], 3 - len(others))
    return _choice(name, text, right, [right, *others], rng, Option, "")
