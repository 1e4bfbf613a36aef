"""Where logits land: pinned host memory that the last kernel of a pass writes, so that no copy follows the pass."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor
LANDINGS = 8
"""Passes whose logits may be waiting at once; those of an older one are copied out when its place is needed."""
FIRST_SIZE = 1 << 14


class Landing:
    """The logits of one pass, on their way until the event behind it has come. at: its first entry of the buffer."""

    def __init__(self, at: int, labels: int, buffer: npt.NDArray[np.float32]) -> None:
        self.at, self._labels, self._buffer = at, labels, buffer
        self._event: torch.cuda.Event | None = None
        self._sums: Tensor | None = None
        self._result: npt.NDArray[np.float32] | None = None

    def launched(self, sums: Tensor | None) -> torch.cuda.Event:
        """The pass is enqueued. sums: more float32 results on the device, to stand behind the logits. Returns the event behind it all."""
        if sums is not None:
            self._sums = torch.empty(sums.shape, dtype=torch.float32, pin_memory=True)
            self._sums.copy_(sums, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()
        return self._event

    def done(self) -> bool:
        return self._result is not None or self._event is None or self._event.query()

    def result(self) -> npt.NDArray[np.float32]:
        """Waits. Logits, then sums."""
        if self._result is None:
            if self._event is not None:
                self._event.synchronize()
            logits = self._buffer[self.at : self.at + self._labels]
            self._result = logits.copy() if self._sums is None else np.concatenate([logits, self._sums.numpy()])
        return self._result


class Landings:
    """Places in turn. Used by one thread."""

    def __init__(self) -> None:
        self.buffer = torch.empty(0)
        self._numbers = self.buffer.numpy()
        self._size = 0
        self._turn = 0
        self._held: deque[Landing] = deque()

    def reserve(self, labels: int) -> bool:
        """Make room for a pass of so many labels. True when the buffer moved: graphs that write to the old one are void."""
        if labels <= self._size:
            return False
        self._settle(0)
        self._size = max(2 * labels, FIRST_SIZE)
        self.buffer = torch.empty(LANDINGS * self._size, dtype=torch.float32, pin_memory=True)
        self._numbers = self.buffer.numpy()
        return True

    def take(self, labels: int) -> Landing:
        """The next place, for a pass that is about to be enqueued."""
        self.make_room()  # done already, unless the last launch failed
        landing = Landing(self._turn * self._size, labels, self._numbers)
        self._turn = (self._turn + 1) % LANDINGS
        self._held.append(landing)
        return landing

    def make_room(self) -> None:
        """For the next pass, once one is enqueued: the GPU has work meanwhile. Waits only where as many are on their way as there are
        places."""
        self._settle(LANDINGS - 1)

    def empty(self, labels: int) -> Landing:
        """Of a pass that computes nothing."""
        return Landing(0, labels, np.zeros(labels, np.float32))

    def _settle(self, most: int) -> None:
        """Copy out what was enqueued first until at most so many places are held."""
        while len(self._held) > most:
            self._held.popleft().result()
