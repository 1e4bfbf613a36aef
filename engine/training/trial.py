"""Whether a captured step does what the plain one does: gradients of two batches, and two updates from the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from training.step import Flat

NEAR = 0.05
"""Distance of two gradients by the larger order of sums alone, in parts of their norm: bfloat16 products and atomic sums."""
SAME = 1e-3
"""Distance of two updates from equal gradients, in parts of the change."""


def gradients(flat: Flat, plain: Sequence[Tensor], replay: Callable[[int], None]) -> str:
    """plain[i]: `flat.grad` of batch i; replay(i): the captured pass on it. Says how far apart they are.

    Raises RuntimeError where they differ, also when a pass gives the gradients of a batch before instead of its own.
    """
    told = []
    for i, wanted in enumerate(plain):
        flat.grad.zero_()
        replay(i)
        own = _apart(flat.grad[:-3], wanted[:-3])
        losses = (flat.grad[-3:-1] - wanted[-3:-1]).abs().max().item()
        other = min((_apart(flat.grad[:-3], x[:-3]) for j, x in enumerate(plain) if j != i), default=1.0)
        told.append(f"{own:.4f} of {other:.2f} to another batch, losses {losses:.4f}")
        between = min((_apart(wanted[:-3], x[:-3]) for j, x in enumerate(plain) if j != i), default=1.0)
        if not (own < NEAR and losses < NEAR) or (between > NEAR and not own < between / 2):
            raise RuntimeError(f"a captured pass gives other gradients: {told[-1]}")
    return "gradients apart " + "; ".join(told)


def updates(flat: Flat, plain: Sequence[Tensor], update: Callable[[], None], replay: Callable[[], None], rate: float) -> str:
    """Two updates after another, both ways, from where `flat` is; it is left as it was. Raises RuntimeError where they differ."""
    kept = flat.state()
    found = []
    for way in (update, replay):
        flat.restore(kept)
        for grad in plain:
            flat.grad.copy_(grad)
            flat.grad[-1:].fill_(rate)
            way()
        found.append(flat.state())
    flat.restore(kept)
    flat.grad.zero_()
    flat.sums.zero_()
    told = []
    for name in ("values", "first", "second"):
        moved = (found[0][name] - kept[name]).norm()
        apart = ((found[0][name] - found[1][name]).norm() / moved).item()
        told.append(f"{name} {apart:.1e}")
        if not (moved.item() > 0.0 and apart < SAME):
            raise RuntimeError(f"a captured update gives other {name}: {apart} apart, moved by {moved.item()}")
    if found[0]["count"].item() != found[1]["count"].item():
        raise RuntimeError("a captured update does not count")
    return "updates apart " + ", ".join(told)


def _apart(a: Tensor, b: Tensor) -> float:
    return float(((a - b).norm() / b.norm().clamp(min=torch.finfo(torch.float32).tiny)).item())
