"""What the command's arguments name: files, patterns, folders, stdin."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from flide_agent.replay.files import STDIN
from flide_agent.replay.records import Problem

ENDINGS = (".traj", ".json", ".jsonl", ".ndjson", ".parquet", ".eval", ".gz")
"""Names that are taken out of a folder; a file that is named itself is read whatever its name."""
_EVENT = re.compile(r"event-\d+-[\w-]+\.json")


def sources(arguments: Iterable[Path]) -> list[Path | Problem]:
    """Every path to read, in order, once each: folders and patterns sorted by name, whole trees, no hidden names, no links to
    folders.

    A folder of single events ("event-00001-....json") is one source. What leads nowhere is given back as it is, so that
    reading it says so. Of a folder or a pattern, what is no file (a pipe, a device) is a Problem: it may never end.
    """
    found: list[Path | Problem] = []
    seen: set[str] = set()
    for path in _named(arguments):
        if isinstance(path, Problem):
            found.append(path)
            continue
        place = STDIN if str(path) == STDIN else os.path.realpath(path)
        if place not in seen:
            seen.add(place)
            found.append(path)
    return found


def _named(arguments: Iterable[Path]) -> Iterator[Path | Problem]:
    for argument in arguments:
        text = str(argument)
        if text == STDIN or argument.is_file():
            yield argument
        elif argument.is_dir():
            yield from _tree(argument)
        elif glob.has_magic(text):
            found = sorted(glob.glob(text, recursive=True))
            for name in found:
                yield from _tree(Path(name)) if Path(name).is_dir() else (_file(Path(name)),)
            if not found:
                yield argument
        else:
            yield argument


def _tree(folder: Path) -> Iterator[Path | Problem]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        if any(_EVENT.fullmatch(n) for n in names):
            yield Path(place)
            continue
        for name in sorted(names):
            if name.endswith(ENDINGS) and not name.startswith("."):
                yield _file(Path(place) / name)


def _file(path: Path) -> Path | Problem:
    try:
        kind = path.stat().st_mode
    except OSError:  # a link that leads nowhere: reading it says so
        return path
    if stat.S_ISREG(kind):
        return path
    what = "a pipe" if stat.S_ISFIFO(kind) else "a socket" if stat.S_ISSOCK(kind) else "a device"
    return Problem(str(path), f"is {what}, not a file, and left out; a pipe that is named itself is read")
