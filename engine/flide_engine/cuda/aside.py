"""A second stream for work that needs nothing of what the pass does next."""

from __future__ import annotations

import torch


class Aside:
    """`with aside:` enqueues beside the current stream, behind what is on it already; `join()` before its results are read.

    In a captured graph the two become parallel branches. Without a GPU everything runs in line. The stream has a higher priority than
    others, in a graph too: few programs that take long belong here, as they get places before the waiting programs of wide work on
    the current stream. (It is not the other way round since no stream's priority lies below the default stream's.)
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._main: torch.cuda.Stream | None = None

    def __enter__(self) -> None:
        if self._stream is not None:
            self._main = torch.cuda.current_stream(self._stream.device)
            self._stream.wait_stream(self._main)
            torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        if self._main is not None:
            torch.cuda.set_stream(self._main)

    def join(self) -> None:
        """What follows on the current stream waits for what went aside."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
