"""Files that a command writes are never files that it reads, nor twice the same: refused before anything is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.sources import ENDINGS

Named = tuple[str, Path]
"""A path and what the command calls it: an option, or "the input"."""


def keep_apart(outputs: Iterable[Named], inputs: Iterable[Named], folders: Sequence[Path] = ()) -> None:
    """Raises QuestionsError where an output is an input, another output, or would be taken out of a folder that is read.

    Devices and pipes may be named several times: writing to them destroys nothing.
    """
    known = {place: named for named in inputs if (place := _place(named[1])) is not None}
    roots = [(folder, os.path.realpath(folder)) for folder in folders if folder.is_dir()]
    for option, path in outputs:
        place = _place(path)
        if place is None:
            continue
        if place in known:
            other, at = known[place]
            raise QuestionsError(f"{option} {path} would write over {other} {at}; give it a path of its own")
        known[place] = option, path
        real = os.path.realpath(path)
        for folder, root in roots:
            if path.name.endswith(ENDINGS) and os.path.commonpath([root, real]) == root:
                raise QuestionsError(f"{option} {path} lies in {folder}, which is read; write it outside, or name single files")


def _place(path: Path) -> tuple[int, int] | str | None:
    """The same for all names of one file; None for what is no file, and for stdin and stdout."""
    if str(path) == "-":
        return None
    try:
        found = path.stat()
    except OSError:
        return os.path.realpath(path)
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None
