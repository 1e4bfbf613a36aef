"""What the store refuses. Everything that goes wrong after it is open degrades to computing again and is counted instead."""

from __future__ import annotations

from flide_agent.errors import StartError


class StoreError(StartError):
    """The directory cannot be used: unknown schema, network file system, not writable. The message says what to do."""

    error_type = "store_error"


class StoreBusy(StoreError):
    """Another process owns the directory; `pid` is that process when the lock file names it."""

    error_type = "store_busy"

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class MustLoad(Exception):
    """What is looked for has to be brought from host memory or disk first, which takes a while."""
