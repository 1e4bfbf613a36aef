"""How a command ends before its time: SIGTERM as an exception, so that what was opened is closed; nobody reads its output."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED, UNREAD = 130, 143, 141
"""Exit codes: 128 and the number of SIGINT, SIGTERM, SIGPIPE."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came; handled wherever an interrupt is."""


@contextmanager
def terminable(error: BaseException) -> Iterator[None]:
    """Inside, the first SIGTERM raises `error` in the main thread; more of them are ignored, since it is ending already."""
    if threading.current_thread() is not threading.main_thread():  # Python takes handlers from the main thread alone
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise error

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def code_of(interrupt: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


def unread() -> int:
    """The exit code where nobody reads stdout any more. What is still in its buffer goes nowhere, and without a word."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stdout that is no file
        pass
    return UNREAD
