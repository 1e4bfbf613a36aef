"""Programmatic dependent launch: the programs of a kernel start while the kernel before it on the stream ends, and wait for it.

What a kernel so launched does before `wait_for_previous` runs beside the one before it. There it may read only what was complete when
that one let it start: the metadata of the pass, weights, and what was written further in front. A kernel lets its follower start by
`let_next_start`, which it calls behind its own wait, so that whatever stood in front of it has ended by then (norm_rope_query calls it at
once: its follower reads nothing but tables before its wait). From compute capability 9.0 on. Both stand behind
`if EARLY:` where they are called, since a call takes Triton's interpreter half a millisecond.
"""

from __future__ import annotations

from typing import Any

from flide_engine.kernels.language import tl, triton


@triton.jit
def wait_for_previous():
    """Until the kernel before this one has ended and its writes can be seen. What follows relies on that this kernel ends later, so at
    least one program calls it, and every one that reads or writes what others write."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_start():
    """The kernel behind this one may start once all programs have come here."""
    tl.extra.cuda.gdc_launch_dependents()


def launch(early: bool) -> dict[str, Any]:
    """Launch options of a kernel that calls wait_for_previous."""
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}
