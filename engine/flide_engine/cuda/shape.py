"""PassShape: the sizes that a pass is launched with. A captured graph serves every plan of one shape, so shapes are few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flide_engine.cuda.capacity import SMALLEST, row_capacity
from flide_engine.kernels.gdn_chunks import chunk_capacity
from flide_engine.kernels.tiles import MOST_SPANS
from flide_engine.plan import Int32, RoundPlan
from flide_engine.segments import GRID, Kind

FEWEST_SEGMENTS = 4
FEWEST_LABELS = 16


def power_of_two(n: int, least: int = 1) -> int:
    return max(least, 1 << max(0, n - 1).bit_length())


def power_of_four(n: int, least: int = 1) -> int:
    """The smallest of least, 4 * least, 16 * least, ... that holds n."""
    capacity = least
    while capacity < n:
        capacity *= 4
    return capacity


@dataclass(frozen=True)
class PassShape:
    """Capacities of everything that a launch or an address depends on; all else follows from them or stands in the metadata.

    trunks: segments of a level of trunks. trunk_levels, local_levels: levels that have any. depth: local ancestors listed per
    segment. spans: key spans of the longest history. most_labels: labels of one readout.
    """

    rows: int
    readouts: int
    segments: int
    trunks: int
    trunk_levels: int
    local_levels: int
    depth: int
    spans: int
    most_labels: int

    def kernels(self) -> tuple[object, ...]:
        """What decides which compiled kernels a pass needs, with something to spare: sizes are compiled for where they are 1 or
        multiples of 16."""
        sizes = (self.rows, self.readouts, self.segments, self.trunks, self.saves, self.chunks)
        kinds = tuple(0 if n == 0 else 1 if n == 1 else 16 if n % 16 == 0 else 2 for n in sizes)
        return (*kinds, self.readouts > 16, self.trunk_levels, self.local_levels, self.depth, self.spans, self.most_labels)

    @property
    def chunks(self) -> int:
        """Delta-rule chunks."""
        return chunk_capacity(self.rows, self.segments)

    @property
    def saves(self) -> int:
        """Checkpoints: one a grid position of a trunk at most."""
        return self.rows // GRID + self.trunks * self.trunk_levels

    def tiles(self, tokens_a_tile: int) -> int:
        """Entries of the attention tile table."""
        return (-(-self.rows // tokens_a_tile) + self.segments) * self.spans


def shape_of(plan: RoundPlan, first_split: int) -> PassShape:
    """The shape that serves a plan."""
    keys = np.where(plan.seg_kind == 0, plan.seg_start + plan.seg_len, plan.seg_hist)  # trunk tokens that a last row sees
    rows, readouts = row_capacity(plan.rows), len(plan.readout_row)
    trunks, locals_ = by_level(plan, Kind.TRUNK), by_level(plan, Kind.LOCAL)
    segments = power_of_two(len(plan.seg_len), FEWEST_SEGMENTS)
    return PassShape(
        rows=rows,
        readouts=min(rows, power_of_four(readouts, max(SMALLEST, segments))) if readouts else 0,
        segments=segments,
        trunks=1 if max(map(len, trunks), default=0) == 1 else segments if trunks else 0,
        trunk_levels=len(trunks),
        local_levels=len(locals_),
        depth=power_of_two(plan.seg_locals.shape[1]),
        spans=_spans(int(keys.max(initial=0)), first_split),
        most_labels=power_of_four(int(np.diff(plan.label_ptr).max(initial=0)), FEWEST_LABELS),
    )


def _spans(keys: int, first_split: int) -> int:
    """`spans_of` one number: more keys never have fewer spans."""
    return 1 + sum([(first_split << i) < keys for i in range(MOST_SPANS - 1)])


def by_level(plan: RoundPlan, kind: Kind) -> list[Int32]:
    """Segments of a kind, one array for each level that has any, levels ascending."""
    known: dict[Kind, list[Int32]] = plan.__dict__.setdefault("_by_level", {})  # asked for twice a pass
    if kind not in known:
        known[kind] = _by_level(plan, kind)
    return known[kind]


def _by_level(plan: RoundPlan, kind: Kind) -> list[Int32]:
    own = np.flatnonzero(plan.seg_kind == kind).astype(np.int32)
    levels = plan.seg_level[own]
    if not len(own):
        return []
    if levels.min() == levels.max():
        return [own]
    return [own[levels == level] for level in np.unique(levels)]
