"""Long openings of histories: what a framework tells its agent of tools and rules, and an example of another run.

An example is the hard part of a prompt: it shows commands, errors and edits that are none of this run's.
"""

# ruff: noqa: E501 - tables of sentences read best a line each
from __future__ import annotations

import random

from training.facts import Episode

_ABOUT = {
    "look": ("shows a part of a file", "lists a folder", "opens a file at a line", "prints what a path holds", "scrolls the window"),
    "search": ("searches text in files", "finds files by name", "greps the project", "looks a pattern up"),
    "edit": ("replaces lines of a file", "creates a file", "writes text to a path", "changes one place; fails when the old text is not found", "deletes what is named"),
    "run": ("runs a program", "executes a command and returns its output", "runs the tests; a failing test is reported as an error"),
    "submit": ("hands in the result and ends the run", "finishes the task"),
    "other": ("does something else", "asks for help"),
}  # fmt: skip
_NOTES = (
    "If a command fails, read its error before you go on.",
    "Commands that print nothing have worked unless an error is shown.",
    "Do not repeat a command that failed with the same arguments.",
    "Indentation matters; an edit with a syntax error is rejected.",
    "Edits are only kept when the linter finds no error.",
    "Never answer yes or no without having looked.",
    "You see the last command's output, cut when it is too long.",
    "A traceback in a test's output is not always your fault.",
    "One tool call in each reply. The environment answers with its output.",
    "Paths are absolute unless the tool says otherwise.",
    "When all tests pass, submit. Until then go on.",
    "The window shows 100 lines. Use goto or scroll to move.",
    "Programs with a prompt of their own (vim, python without a script) hang and are stopped.",
    "Files in the temporary folder are deleted in the end.",
    "The user does not see your thoughts.",
    "Think about which tool was used last, and whether it worked.",
    "If you are stuck in a loop, try something new.",
    "Use search before you open large files.",
)
_HEADS = (
    "COMMANDS",
    "## Tools",
    "You have these tools:",
    "Available actions",
    "TOOLS AND THEIR USE",
    "<tools>",
    "Command reference:",
)
_LEADS = ("Here is a demonstration of how to solve a task. It is another task than yours.", "EXAMPLE", "--- example run, not yours ---", "An earlier agent worked like this:", "<demonstration>",
          "Below is a sample trajectory. Do not copy it.")  # fmt: skip
_TAILS = (
    "--- end of the example ---",
    "</demonstration>",
    "Now your task begins.",
    "END OF EXAMPLE\n\nYour own task follows.",
    "(end of the sample)",
)


def manual(rng: random.Random, episode: Episode) -> str:
    """The tools of a run as a framework would describe them, with rules."""
    names: dict[str, str] = {}
    for action in episode.actions:
        names.setdefault(action.name, action.kind)
    lines = [rng.choice(_HEADS), ""]
    sign = rng.choice(("- {n}: {a}", "{n}\n  docstring: {a}\n  signature: {n} <{p}>", "* `{n}({p})` - {a}.", "{n} <{p}> # {a}"))
    for name, kind in names.items():
        about = rng.choice(_ABOUT.get(kind, _ABOUT["other"]))
        lines.append(sign.format(n=name, a=about, p=rng.choice(("path", "command", "query", "file", "text", "start:end"))))
    notes = rng.sample(_NOTES, rng.randint(3, len(_NOTES)))
    mark = rng.choice(("{i}. {t}", "- {t}", "* {t}", "({i}) {t}"))
    lines += ["", rng.choice(("RULES", "Notes", "IMPORTANT", "Tips:", "Please note")), ""]
    lines += [mark.format(i=i, t=text) for i, text in enumerate(notes, 1)]
    return "\n".join(lines)


def example(rng: random.Random, other: Episode) -> str:
    """A few actions of another run as one text."""
    limit = rng.choice((200, 600, 1500))
    said = rng.choice(("$ {c}", "```\n{c}\n```", "Action: {c}", "ASSISTANT: {t}\n{c}", "> {c}"))
    observed = rng.choice(("{o}", "Observation: {o}", "ENVIRONMENT:\n{o}", "<output>\n{o}\n</output>"))
    lines = [rng.choice(_LEADS), "", other.task[:600], ""]
    for action in other.actions[: rng.randint(2, 8)]:
        lines.append(said.format(c=action.command[:400], t=action.thought))
        lines.append(observed.format(o=action.output.rstrip("\n")[:limit]))
    return "\n".join([*lines, "", rng.choice(_TAILS)])
