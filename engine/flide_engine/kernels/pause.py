"""A kernel that does nothing: what follows it on its stream starts a little later."""

from __future__ import annotations

from typing import Any

from flide_engine.kernels.language import triton

Tensor = Any


@triton.jit
def _pause(unused):
    """One program, which ends at once."""


def pause(place: Tensor, times: int = 1) -> None:
    """Some microseconds on the current stream. place: any tensor of the device; neither read nor written."""
    for _ in range(times):
        _pause[(1,)](place, num_warps=1)
