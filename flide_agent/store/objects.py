"""The four calls behind which payloads lie: a local directory now (`files`), a tier that several machines share later.

An object's name is the SHA-256 of its bytes and its kind, so to put it again is to put the same. What nobody needs any more may come
back before it was removed: whoever removes looks first whether the name is in use (`nodes.Nodes.named`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Source(Protocol):
    """An object opened for reading. size: its bytes. Close it when done."""

    size: int

    def read_into(self, offset: int, into: memoryview) -> int:
        """Fill `into` from offset on; returns how many bytes there were. Raises OSError."""

    def close(self) -> None: ...


class Objects(Protocol):
    """Immutable objects. Thread-safe for reading; puts and deletes come from one thread. All raise OSError when the medium fails."""

    def put(self, kind: str, chunks: Iterable[bytes | memoryview], size: int) -> str:
        """Keep an object of `size` bytes, whole and durable when this returns; nothing of it is left when it raises.

        kind: "kv" or "state". Returns its name: 64 hex digits and the kind. One that was there already is written anew, which heals it.
        """

    def get(self, name: str) -> Source:
        """Open an object. Raises FileNotFoundError when there is none."""

    def exists(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are there, whole."""

    def delete(self, name: str) -> bool:
        """Remove an object; True when it is gone, whether it was there or not. False: try again later."""
