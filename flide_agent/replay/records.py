"""What a reader yields: runs with their steps, and the problems that it met."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Wire = dict[str, Any]
"""One message as it is sent to the service: role, content, and where present name, tool_calls, tool_call_id."""


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of the recorded agent.

    index: from 1, in the order of the file.
    messages: what the agent saw before it acted; nothing of the action itself, nothing that came after it.
    source: where the messages come from: "query" and "messages" were recorded as sent, "history" is all of it up to there.
    action: what the agent then did, one line or more. For showing beside the answers; it is never sent.
    labels: what the file itself knows about the step, to compare answers with: `last_failed` (the last command), `next_tool`,
    `security_risk`. Never sent.
    at: when the agent acted, seconds since 1970, where the file says so.
    proposed: the agent's message, for questions that see it before it is carried out.
    result: what came back until the agent decided again; empty where the file has nothing, or the run was over.
    then: labels once the result is there: those of the next step, since its history is this one.
    """

    index: int
    messages: list[Wire]
    source: str
    action: str
    labels: dict[str, Any] = field(default_factory=dict)
    at: float | None = None
    proposed: list[Wire] = field(default_factory=list)
    result: list[Wire] = field(default_factory=list)
    then: dict[str, Any] = field(default_factory=dict)

    def after(self) -> list[Wire]:
        """The history with the action and its result: what the step saw, and what came."""
        return [*self.messages, *self.proposed, *self.result]


@dataclass(frozen=True, slots=True)
class Run:
    """One agent run out of a file.

    file: the path as given. row: line of the file in a JSONL, number of the attempt in a file that holds several, else 1.
    name: the instance id or environment, "" where the file has none. format: such as "swe-agent-1.1", "nebius", "chat".
    notes: what was replaced or left out while reading, for people. tools: schemas of the agent's tools, sent with each step.
    """

    file: str
    row: int
    name: str
    format: str
    steps: list[Step]
    notes: list[str] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Problem:
    """A file or a row that cannot be read; the others go on. str() is one line that names the place."""

    file: str
    message: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place += f":{self.line}"
            if self.column is not None:
                place += f":{self.column}"
        return f"{place}: {self.message}"


class ReadError(ValueError):
    """A value that has the shape of a format and breaks its rules. The message names the field."""
