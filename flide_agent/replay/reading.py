"""Which reader takes a value: found by its shape, never by the file's name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flide_agent.replay import chat, nebius, sweagent
from flide_agent.replay.files import Document, documents
from flide_agent.replay.messages import text_field
from flide_agent.replay.records import Problem, ReadError, Run
from flide_agent.replay.text import Cleaned, line

READS = "SWE-agent .traj (0.x, 1.0, 1.1), nebius rows, chat messages"
MODES = ("as-sent", "raw")


def read(path: Path, mode: str = "as-sent") -> Iterator[Run | Problem]:
    """Every run of a file, row by row, and a Problem for the file or each row that cannot be read. Never raises for content.

    mode: "as-sent" takes the prompt that the agent was sent where the file recorded it (elided observations included); "raw"
    takes the whole history up to each decision, which only grows.
    """
    for found in documents(path):
        if isinstance(found, Problem):
            yield found
            continue
        try:
            yield from _runs(found, str(path), as_sent=mode == "as-sent")
        except ReadError as e:
            yield Problem(str(path), line(str(e)), found.line if found.rows else None)


def _runs(found: Document, file: str, *, as_sent: bool) -> Iterator[Run]:
    value = found.value
    name = _name(value)
    before = [f"bytes that are not UTF-8, replaced by U+FFFD: {found.replaced}"] if found.replaced else []
    attempts = sweagent.find(value)
    if attempts is not None:
        for n, attempt in enumerate(attempts, 1):
            clean = Cleaned()
            steps = sweagent.steps(attempt, clean, as_sent=as_sent)
            row = found.line if found.rows else n
            yield Run(file, row, _name(attempt) or name, sweagent.version(attempt), steps, before + clean.notes())
        return
    clean = Cleaned()
    for form, reader in (("nebius", nebius), ("chat", chat)):
        items = reader.find(value)
        if items is not None:
            steps = reader.steps(items, clean)
            yield Run(file, found.line if found.rows else 1, name, form, steps, before + clean.notes())
            return
    raise ReadError(f"no trajectory: {_shape(value)}; replay reads {READS}")


def _name(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    return line(text_field(value, "instance_id") or text_field(value, "environment"), 80)


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return "an object with the keys " + (", ".join(line(k, 30) for k in list(value)[:6]) or "(none)")
    if isinstance(value, list):
        return f"a list of {len(value)} without a role each" if value else "an empty list"
    return "a single value"
