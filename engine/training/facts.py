"""What is known of a run: recorded while it happened, never read from its text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

KINDS = ("look", "search", "edit", "run", "submit", "other")
TRACEBACK = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"^([A-Z][A-Za-z]*(?:Error|Exception|Interrupt|Warning))(?::|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Action:
    """One command and what came of it.

    name, arguments: the tool call; command: the same as one line or block of text. kind: one of KINDS. program: its first word.
    code: exit status; 124 after a timeout. failed: None where an observer without the status could not tell.
    edited: files that are different afterwards. tests: "passed", "failed", or "" when none ran.
    """

    name: str
    arguments: dict[str, Any]
    command: str
    kind: str
    output: str
    code: int
    failed: bool | None
    program: str = ""
    edited: tuple[str, ...] = ()
    tests: str = ""
    thought: str = ""

    @property
    def traceback(self) -> bool:
        return TRACEBACK in self.output

    @property
    def exception(self) -> str:
        """The exception that ends the output's last traceback, "" for none."""
        _, found, rest = self.output.rpartition(TRACEBACK)
        names = EXCEPTION.findall(rest) if found else []
        return names[0] if names else ""


@dataclass(frozen=True, slots=True)
class Episode:
    """A run. source: "package", "desk" or "intercode"; interface: which tools it used; tools: their schemas, where there are any.

    system: the system prompt, where the run has one of its own; talk: (said, answered) between actions, which are none.
    partial: actions before these are not shown, as when an agent forgets the middle of its history."""

    source: str
    interface: str
    task: str
    actions: tuple[Action, ...]
    root: str = ""
    tools: tuple[dict[str, Any], ...] = field(default=())
    partial: bool = False
    system: str = ""
    talk: tuple[tuple[str, str], ...] = ()
