"""Bytes of bodies that are being worked on: the memory that requests may take before anything is known of them."""

from __future__ import annotations

from flide_agent.errors import Overloaded


class Inflight:
    """Belongs to one event loop. limit: bytes; one request may always come, whatever its size."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.requests = 0

    def enter(self, size: int) -> Share:
        """A share of `size` bytes, to be left once. Raises Overloaded."""
        share = Share(self)
        share.grow(size)
        self.requests += 1
        return share


class Share:
    """What one request holds."""

    __slots__ = ("_of", "size")

    def __init__(self, of: Inflight) -> None:
        self._of, self.size = of, 0

    def grow(self, by: int) -> None:
        """More bytes are needed. Raises Overloaded when they would exceed the limit; the share stays as it was then."""
        others = self._of.bytes - self.size
        if others > 0 and self._of.bytes + by > self._of.limit:
            raise Overloaded(f"{self._of.bytes} bytes of requests are being worked on", retry_after=1.0, reason="bytes")
        self._of.bytes += by
        self.size += by

    def leave(self) -> None:
        self._of.bytes -= self.size
        self._of.requests -= 1
        self.size = 0
