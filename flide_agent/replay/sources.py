"""What the command's arguments name: files, patterns, folders, stdin."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from flide_agent.replay.files import STDIN

ENDINGS = (".traj", ".json", ".jsonl", ".ndjson", ".parquet", ".eval", ".gz")
"""Names that are taken out of a folder; a file that is named itself is read whatever its name."""
_EVENT = re.compile(r"event-\d+-[\w-]+\.json")


def sources(arguments: Iterable[Path]) -> Iterator[Path]:
    """Every path to read, in order: folders and patterns sorted by name, whole trees, no hidden names, no links to folders.

    A folder of single events ("event-00001-....json") is one source. What leads nowhere is given back as it is, so that
    reading it says so.
    """
    for argument in arguments:
        text = str(argument)
        if text == STDIN or argument.is_file():
            yield argument
        elif argument.is_dir():
            yield from _tree(argument)
        elif glob.has_magic(text):
            found = sorted(glob.glob(text, recursive=True))
            for name in found:
                yield from _tree(Path(name)) if Path(name).is_dir() else (Path(name),)
            if not found:
                yield argument
        else:
            yield argument


def _tree(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        if any(_EVENT.fullmatch(n) for n in names):
            yield Path(place)
            continue
        for name in sorted(names):
            if name.endswith(ENDINGS) and not name.startswith("."):
                yield Path(place) / name
