"""Rounds for kernel tests: a plan, its arrays on the device, and the keys that each row may see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from flide_engine.kernels.attention import Segments
from flide_engine.plan import RoundPlan, plan_round
from flide_engine.segments import GRID, Kind, Readout, Request, Round, Segment


@dataclass
class Stored:
    """A checkpoint as the planner reads it."""

    m: int
    pages: np.ndarray
    slot: int


def tokens(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


def trunk(n: int, parent: int = -1) -> Segment:
    return Segment(tokens(n), parent, Kind.TRUNK)


def local(n: int, parent: int, readouts: tuple[int, ...] = ()) -> Segment:
    return Segment(tokens(n), parent, Kind.LOCAL, readouts=tuple(Readout(r, (0,)) for r in readouts))


def decision(state: int, *questions: int, checkpoint: Stored | None = None) -> Request:
    """A trunk and its questions, read at their last token."""
    return Request((trunk(state), *(local(n, 0, (n - 1,)) for n in questions)), checkpoint)


def what_if(first: int = 66, last: int = 70) -> Request:
    """A trunk off the grid, two candidates, questions at depth 2 and 3, and a readout inside the trunk itself."""
    return Request(
        (
            Segment(tokens(75), readouts=(Readout(70, (0,)),)),
            local(first, 0),
            local(3, 0),
            local(5, 1, (0, 4)),
            local(first - 1, 2, (first - 2,)),
            local(last, 4, (last - 1,)),
        )
    )


def plan(*requests: Request, taken: int = 0) -> RoundPlan:
    """Pages and slots are given out from `taken` on, in shuffled order."""
    rng = np.random.default_rng(0)

    def take(pages: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
        return (rng.permutation(pages) + taken).astype(np.int32), np.arange(slots, dtype=np.int32)

    return plan_round(Round(requests), take).plan


def on(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def segments(p: RoundPlan, device: torch.device) -> Segments:
    names = ("first_row", "len", "start", "kind", "hist", "table", "locals")
    return Segments(*(on(getattr(p, f"seg_{n}"), device) for n in names), on(p.page_table, device))


def visible(p: RoundPlan, row: int) -> tuple[list[tuple[int, int]], list[int]]:
    """(page, offset) of the trunk keys of a row, then the stream rows of its local keys, in order."""
    s = int(p.row_segment[row])
    own = row - int(p.seg_first_row[s]) + 1
    is_trunk = p.seg_kind[s] == Kind.TRUNK
    count = int(p.seg_start[s]) + own if is_trunk else int(p.seg_hist[s])
    pages = [(int(p.page_table[p.seg_table[s], i // GRID]), i % GRID) for i in range(count)]
    rows: list[int] = []
    if not is_trunk:
        for first, n in p.seg_locals[s]:
            rows += range(first, first + n)
        rows += range(int(p.seg_first_row[s]), int(p.seg_first_row[s]) + own)
    return pages, rows
