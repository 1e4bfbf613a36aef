"""Recorded episodes of princeton-nlp/intercode (MIT) as runs: bash, python, ctf and sql commands with their outputs.

The files hold no exit status, so failure follows rules on the output; what they cannot decide stays undecided.
"""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from training.facts import Action, Episode

_FAILED = re.compile(
    r"^(/bin/)?(ba)?sh: |^Traceback \(most recent|^(error|ERROR)\b|command not found|: No such file or directory|^[A-Za-z]*Error:|invalid (option|argument)|syntax error|"
    r"missing operand|[Uu]nknown column|doesn't exist|You have an error in your SQL|^fatal:|Permission denied|Malformed Action|timed out|cannot (access|open|stat)", re.MULTILINE
)  # fmt: skip
_DOUBT = re.compile(r"error|fail|invalid|cannot|denied|warning", re.IGNORECASE)
_KINDS = {"look": ("ls", "cat", "head", "tail", "less", "wc", "stat", "du", "file", "SHOW", "DESC", "DESCRIBE"), "search": ("grep", "find", "rg", "locate"),
          "edit": ("mv", "cp", "rm", "mkdir", "touch", "sed -i", "tee", "chmod", "rmdir"), "run": ("python", "python3", "gcc", "make", "bash", "pip")}  # fmt: skip


def episodes(path: Path) -> Iterator[Episode]:
    """Every episode that can be read; lines that are no JSON are left out."""
    with gzip.open(path, "rb") as file:
        for line in file:
            try:
                raw = json.loads(line)
            except ValueError:
                continue
            actions = [
                _action(str(command), str(output))
                for command, output in zip(raw["actions"], raw["observations"], strict=True)
                if str(command).strip()
            ]
            if actions:
                yield Episode("intercode", "shell", str(raw["task"]), tuple(actions), "/")


def _action(command: str, output: str) -> Action:
    first = command.split()[0]
    submit = first.lower() in ("submit", "submit()")
    kind = "submit" if submit else next((kind for kind, words in _KINDS.items() if first in words), "other")
    if (kind == "search" and "|" in command) or ";" in command or "&&" in command:
        kind = "other"
    failed: bool | None = bool(_FAILED.search(output[:4000]))
    if not failed and _DOUBT.search(output[:4000]):
        failed = None
    code = int(bool(failed))
    return Action(
        "submit" if submit else "bash", {} if submit else {"command": command}, command, kind, output, code, failed, first
    )


def split(found: list[Episode], rng: random.Random, part: float = 0.1) -> tuple[list[Episode], list[Episode]]:
    """(training, held-out) by task, so that no task is on both sides."""
    tasks = sorted({e.task for e in found})
    held = set(rng.sample(tasks, int(part * len(tasks))))
    return [e for e in found if e.task not in held], [e for e in found if e.task in held]
