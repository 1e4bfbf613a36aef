"""The four calls behind which payloads lie: a local directory now (`files`), a tier that several machines share later.

An object is named by what it is (`address`): checkpoint key, kind and span, and a key says model, numerics, tenant and all tokens. As
the engine gives the same bits for the same key, two objects of one address have the same content. The local tier adds an
incarnation to the address (`new_name`): an object may come back while its former file is still read or waits to be removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Protocol

from flide_agent.store.identity import framed


def address(kind: str, key: bytes, m: int, since: int) -> str:
    """Name of an object: 40 hex digits and its kind. kind: "kv" (pages of [since, m)) or "state" (at m; since equals m)."""
    return f"{hashlib.sha256(framed('object', kind, key, m, since)).hexdigest()[:40]}.{kind}"


def new_name(kind: str, key: bytes, m: int, since: int) -> str:
    """A name that no file has had: the address and an incarnation."""
    stem, _, suffix = address(kind, key, m, since).rpartition(".")
    return f"{stem}-{os.urandom(8).hex()}.{suffix}"


class Source(Protocol):
    """An object opened for reading. size: its bytes. Close it when done."""

    size: int

    def read_into(self, offset: int, into: memoryview) -> int:
        """Fill `into` from offset on; returns how many bytes there were. Raises OSError."""

    def close(self) -> None: ...


class Objects(Protocol):
    """Immutable objects. Thread-safe for reading; puts and deletes come from one thread. All raise OSError when the medium fails."""

    def put(self, name: str, chunks: Iterable[bytes | memoryview], size: int) -> None:
        """Keep an object of `size` bytes, whole and durable when this returns; nothing of it is left when it raises."""

    def get(self, name: str) -> Source:
        """Open an object. Raises FileNotFoundError when there is none."""

    def exists(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are there, whole."""

    def delete(self, name: str) -> bool:
        """Remove an object; True when it is gone, whether it was there or not. False: try again later."""
