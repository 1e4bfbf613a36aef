"""Bytes of bodies that are being worked on: the memory that requests may take before anything is known of them."""

from __future__ import annotations

import mmap
from array import array

from flide_agent.errors import Overloaded


class Board:
    """What several processes have in flight: (bytes, requests) of each, in memory that they share. Each writes its own row."""

    ROW = 16

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        """memory: shared and as long as its rows; None is one row of this process alone."""
        self._numbers: memoryview | array[int] = array("q", [0, 0]) if memory is None else memoryview(memory).cast("q")

    def read(self) -> tuple[int, int]:
        """(bytes, requests) of all."""
        return sum(self._numbers[0::2]), sum(self._numbers[1::2])

    def add(self, row: int, size: int, requests: int) -> None:
        self._numbers[2 * row] += size
        self._numbers[2 * row + 1] += requests

    def clear(self, row: int) -> None:
        """Its process has gone."""
        self._numbers[2 * row] = self._numbers[2 * row + 1] = 0


class Inflight:
    """Belongs to one event loop. limit: bytes of all processes on the board; one request may always come, whatever its size."""

    def __init__(self, limit: int, board: Board | None = None, row: int = 0) -> None:
        self.limit, self._row = limit, row
        self.board = board or Board()

    @property
    def bytes(self) -> int:
        return self.board.read()[0]

    @property
    def requests(self) -> int:
        return self.board.read()[1]

    def add(self, size: int, requests: int = 0) -> None:
        self.board.add(self._row, size, requests)

    def enter(self, size: int) -> Share:
        """A share of `size` bytes, to be left once. Raises Overloaded."""
        share = Share(self)
        share.grow(size)
        self.add(0, 1)
        return share


class Share:
    """What one request holds."""

    __slots__ = ("_of", "size")

    def __init__(self, of: Inflight) -> None:
        self._of, self.size = of, 0

    def grow(self, by: int) -> None:
        """More bytes are needed. Raises Overloaded when they would exceed the limit; the share stays as it was then."""
        now = self._of.bytes
        if now > self.size and now + by > self._of.limit:
            raise Overloaded(f"{now} bytes of requests are being worked on", retry_after=1.0, reason="bytes")
        self._of.add(by)
        self.size += by

    def leave(self) -> None:
        self._of.add(-self.size, -1)
        self.size = 0
