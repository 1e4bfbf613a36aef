"""Where a step's checkpoints are worth taking: at its end, and where the next history is expected to leave this one.

A history is left at a message. Most are continued at their end; hosts that rewrite old messages in a moving window leave it
a fixed number of messages before its end, so that number is learned (a Habit) and the next step saves there in advance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from flide_engine.segments import GRID

from flide_agent.sessions.history import History
from flide_agent.store import Kind

if TYPE_CHECKING:
    from flide_agent.sessions.records import StepRecord

INNER = 4
"""Message boundaries before the end that are saved as well: a last message is replaced, retried, or removed again."""
FIRST_RUNG = 1024
"""Tokens before the end of the ladder's first rung; the next ones are twice as far each."""
HABITS = 4
FORGOTTEN = 64
"""Steps after which a habit that was not seen again is dropped."""


class Habit(msgspec.Struct, frozen=True, array_like=True):
    """Histories were left `back` messages before their end (1: at the last one), `extra` tokens into that message: those that
    the old and the new text of it have in common, such as its heading. step: when this was last seen."""

    back: int
    extra: int
    step: int


def habit(left: History, common: int, step: int) -> Habit | None:
    """How a history was left by one that agrees with its first `common` tokens; None when it was continued."""
    if common >= len(left.tokens):
        return None
    block = bisect_right(left.ends, common)
    if not block:
        return None
    return Habit(len(left.ends) - block, common - left.ends[block - 1], step)


def learned(habits: Sequence[Habit], new: Habit | None, step: int) -> tuple[Habit, ...]:
    """The habits after a step, last seen first."""
    kept = [h for h in habits if step - h.step < FORGOTTEN and (new is None or h.back != new.back)]
    return tuple([new, *kept] if new is not None else kept)[:HABITS]


def places(history: History, habits: Iterable[Habit], junction: int) -> dict[int, Kind]:
    """Grid positions worth a checkpoint and what each is for, ascending.

    junction: the deepest grid position up to which this history agrees with an earlier one (0: none). Where histories parted
    once, they do so again: siblings of an edited history, runs with one long first message.
    """
    ends, length = history.ends, len(history.tokens)
    out: dict[int, Kind] = {}

    def take(position: int, kind: Kind) -> None:
        position -= position % GRID
        if position > 0:
            out[position] = max(kind, out.get(position, kind))

    for end in ends[-INNER - 1 : -1]:
        take(end, Kind.INNER)
    rung = FIRST_RUNG
    while rung < length:
        at = bisect_right(ends, length - rung)
        if at:
            take(ends[at - 1], Kind.RUNG)
        rung *= 2
    take(junction, Kind.FORK)
    for h in habits:
        block = len(ends) - h.back
        if block > 0:
            take(ends[block - 1], Kind.FORK)
            take(min(ends[block - 1] + h.extra, ends[block]), Kind.FORK)
    take(length, Kind.STEP)
    take(history.prefix, Kind.PREFIX)
    return dict(sorted(out.items()))


def ranks(steps: Sequence[StepRecord]) -> dict[bytes, Kind]:
    """What the ends of a session's kept steps are good for, by key. steps: the one answered last is last.

    The last two, then a ladder: the nearest end that lies 1,024, 2,048, 4,096, ... tokens or more before the last one.
    """
    out: dict[bytes, Kind] = {}
    rung = FIRST_RUNG
    length = steps[-1].tokens if steps else 0
    for n, step in enumerate(reversed(steps)):
        if not step.checkpoints:
            continue
        _, key = step.checkpoints[-1]
        if key in out:
            continue
        if n < 2:
            out[key] = Kind.STEP
        elif length - step.tokens >= rung:
            out[key] = Kind.RUNG
            while length - step.tokens >= rung:
                rung *= 2
        else:
            out[key] = Kind.OLD
    return out
