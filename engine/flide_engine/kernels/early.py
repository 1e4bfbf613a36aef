"""Programmatic dependent launch: the programs of a kernel start while the kernel before it on the stream ends, and wait for it.

What a kernel so launched does before `wait_for_previous` runs beside the one before it. There it may read only what was complete when
that one began: the metadata of the pass, and weights. A kernel lets its follower start by `let_next_start`, which it calls behind its
own wait, so that whatever began before the kernel in front has ended by then. From compute capability 9.0 on.
"""

from __future__ import annotations

from typing import Any

from flide_engine.kernels.language import tl, triton


@triton.jit
def wait_for_previous(EARLY: tl.constexpr):
    """Until the kernel before this one has ended and its writes can be seen. What follows relies on that this kernel ends later, so every
    program calls it, or at least one whenever there is anything to do."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """The kernel behind this one may start once all programs have come here."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


def launch(early: bool) -> dict[str, Any]:
    """Launch options of a kernel that calls wait_for_previous."""
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}
