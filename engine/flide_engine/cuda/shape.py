"""PassShape: the sizes that a pass is launched with. A captured graph serves every plan of one shape, so shapes are few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flide_engine.cuda.capacity import row_capacity
from flide_engine.kernels.gdn_chunks import chunk_capacity
from flide_engine.kernels.tiles import segment_spans
from flide_engine.plan import Int32, RoundPlan
from flide_engine.segments import Kind

FEWEST_PAGES = 16
FEWEST_LABELS = 64


def count_capacity(n: int) -> int:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, ...: the smallest of these that holds n. Unused programs then stay below a third."""
    if n <= 4:
        return n
    power: int = 1 << (n - 1).bit_length()
    return power * 3 // 4 if n <= power * 3 // 4 else power


def power_of_two(n: int, least: int = 1) -> int:
    return max(least, 1 << max(0, n - 1).bit_length())


@dataclass(frozen=True)
class PassShape:
    """Capacities of everything that a launch or an address depends on.

    trunks, locals: segments of each level that has any, levels ascending. depth: local ancestors listed per segment. spans: key
    spans of the longest history. most_labels: labels of one readout.
    """

    rows: int
    readouts: int
    segments: int
    trunks: tuple[int, ...]
    locals: tuple[int, ...]
    saves: int
    tables: int
    pages: int
    depth: int
    spans: int
    labels: int
    most_labels: int

    @property
    def chunks(self) -> int:
        """Delta-rule chunks."""
        return chunk_capacity(self.rows, self.segments)

    def tiles(self, tokens_a_tile: int) -> int:
        """Entries of the attention tile table."""
        return (-(-self.rows // tokens_a_tile) + self.segments) * self.spans


def shape_of(plan: RoundPlan, first_split: int) -> PassShape:
    """The shape that serves a plan."""
    spans = segment_spans(plan.seg_len, plan.seg_start, plan.seg_kind, plan.seg_hist, first_split)
    readouts = len(plan.readout_row)
    return PassShape(
        rows=row_capacity(plan.rows),
        readouts=row_capacity(readouts) if readouts else 0,
        segments=count_capacity(len(plan.seg_len)),
        trunks=tuple(count_capacity(len(s)) for s in by_level(plan, Kind.TRUNK)),
        locals=tuple(count_capacity(len(s)) for s in by_level(plan, Kind.LOCAL)),
        saves=count_capacity(len(plan.save_pos)),
        tables=count_capacity(plan.page_table.shape[0]),
        pages=power_of_two(plan.page_table.shape[1], FEWEST_PAGES),
        depth=plan.seg_locals.shape[1],
        spans=int(spans.max(initial=1)),
        labels=power_of_two(len(plan.label_ids), FEWEST_LABELS),
        most_labels=power_of_two(int(np.diff(plan.label_ptr).max(initial=0)), 8),
    )


def by_level(plan: RoundPlan, kind: Kind) -> list[Int32]:
    """Segments of a kind, one array for each level that has any, levels ascending."""
    found = [np.flatnonzero((plan.seg_level == level) & (plan.seg_kind == kind)) for level in range(plan.levels)]
    return [s.astype(np.int32) for s in found if len(s)]
