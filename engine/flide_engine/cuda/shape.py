"""PassShape: the sizes that a pass is launched with. A captured graph serves every plan of one shape, so shapes are few."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from operator import attrgetter

import numpy as np

from flide_engine.cuda.capacity import SMALLEST, capacities, row_capacity
from flide_engine.kernels.gdn_chunks import chunk_capacity
from flide_engine.kernels.tiles import MOST_SPANS
from flide_engine.plan import Int32, RoundPlan
from flide_engine.segments import GRID, Kind

APART_FROM = 4096
"""From how many rows on a linear layer's output gate has a product of its own, beside the walk over trunks and branches; with fewer it
comes with the layer's first product, and the walk's kernels start early instead (kernels.early). The bits are the same (tried at start).
On an H200 a pass of 0.8B takes 1.02 times as long apart at 2,816 rows, 1.01 at 3,584, 0.97 at 7,680. Read at each launch; a captured pass
keeps what stood here."""
FEWEST_SEGMENTS = 4
FEWEST_LABELS = 16
CHEAP_ROWS = 256
"""Up to about so many rows a bf16 product takes little longer than reading its weights (990 TFLOP/s against 4.8 TB/s on an H200)."""
MOST_PADDING = 1_024
"""Rows that a borrowed shape may add: about 20 ms of 4B, less than a capture takes. Also the widest step of row capacities."""
RUNGS_AHEAD = 3
LEAST_OWN = 64
"""Rows from which a short pass has a graph of its own made ahead. Of 4B on an H200, up to 128 rows behind 3,300 take about 4.3 ms in a
graph of their own and 4.85 in one of 256."""


def apart(rows: int) -> bool:
    """Whether output gates have products of their own in a pass of so many rows."""
    return rows >= APART_FROM


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
    segment. spans: key spans of the longest history, or more. most_labels: labels of one readout. locals: local segments of a level.
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
    locals: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(_sizes(self)))  # shapes are looked up at each launch

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def covers(self, other: PassShape) -> bool:
        """Whether a pass launched with these sizes runs any plan of `other`: no size is smaller.

        What a plan leaves over is padding that kernels pass by: rows of no segment, segments of no rows, lists of -1 (also for whole
        levels), ancestors of no rows, tiles of no segment, readouts behind the count. A size is where a launch ends or how far
        apart things lie, never how a row is computed, so the bits are those of the plan's own shape.
        """
        return all(map(int.__ge__, _sizes(self), _sizes(other)))

    def kernels(self, tokens_a_tile: int = 0) -> tuple[object, ...]:
        """What decides which compiled kernels a pass needs. Triton compiles for a size that is 1, a multiple of 16, or neither, unless told
        not to; torch selects up to 16 rows by another kernel; the rest is whether a kernel runs at all. Products were all loaded by the
        self-test.

        tokens_a_tile: of its attention, which has kernels of its own for each; 0 where a model has one.
        """
        kinds = tuple(1 if n == 1 else 16 if n % 16 == 0 else 2 for n in (self.rows, self.segments, self.chunks))
        runs = map(bool, (self.readouts, self.trunk_levels, self.local_levels, self.one_branch, apart(self.rows)))
        return (*kinds, tokens_a_tile, self.readouts > 16, self.spans > 1, *runs)

    @property
    def one_branch(self) -> bool:
        """One trunk at most and one branch at most, which is then walked in the launch that walks the trunk."""
        return (self.trunks, self.trunk_levels, self.locals, self.local_levels) == (1, 1, 1, 1)

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


_sizes = attrgetter(*(f.name for f in fields(PassShape)))


def most_rows(rows: int, limit: int) -> int:
    """Rows up to which a pass that needs a capacity of `rows` may be launched with more: half as many again, at least CHEAP_ROWS and at
    most MOST_PADDING more, so that the padding costs less than the capture it saves; never beyond `limit`, the capacity of the longest
    pass."""
    return max(rows, min(max(CHEAP_ROWS, rows + rows // 2), rows + MOST_PADDING, limit))


def lender(wanted: PassShape, held: Collection[PassShape], limit: int) -> PassShape | None:
    """Of the shapes held the one to run `wanted` with, the wanted one itself before all: it covers it with the fewest rows, then with the
    fewest launches and the smallest tables. None when there is none within most_rows."""
    if wanted in held:
        return wanted
    most = most_rows(wanted.rows, limit)
    fit = [s for s in held if wanted.rows <= s.rows <= most and s.covers(wanted)]
    return min(fit, key=lambda s: (s.rows, s.trunk_levels + s.local_levels, s.spans, _sizes(s)), default=None)


def missing_ahead(
    shape: PassShape, held: Collection[PassShape], limit: int, usable: Callable[[PassShape], bool]
) -> PassShape | None:
    """What to hold next so that passes like `shape`, but for their rows, find something to borrow: first with more rows, as many as
    RUNGS_AHEAD graphs are lent to in turn, then with fewer, then as many with twice the spans of history. Before those with fewer come
    short ones, for which padding is much of what they cost: each has its own. None when nothing usable is missing."""
    sizes = capacities(limit)

    def rung(rows: int, spans: int) -> tuple[PassShape | None, bool]:
        """(what is lent to so many rows, else the largest usable shape that could be; whether it is held)."""
        wanted = replace(shape, rows=rows, spans=spans)
        if (lent := lender(wanted, held, limit)) is not None:
            return lent, True
        most = most_rows(rows, limit)
        return next(filter(usable, (replace(wanted, rows=c) for c in reversed(sizes) if rows <= c <= most)), None), False

    def ladder(above: int, upto: int, rungs: int) -> PassShape | None:
        for rows in sizes:
            if above < rows <= upto and rungs:
                found, there = rung(rows, shape.spans)
                if found is not None and not there:
                    return found
                above, rungs = (rows, rungs) if found is None else (found.rows, rungs - 1)
        return None

    if (more := ladder(shape.rows, limit, RUNGS_AHEAD)) is not None:
        return more
    for rows in (n for n in sizes if LEAST_OWN <= n <= CHEAP_ROWS):
        own = replace(shape, rows=rows, readouts=min(rows, shape.readouts))
        if own not in held and usable(own):
            return own
    if (fewer := ladder(0, shape.rows, len(sizes))) is not None:
        return fewer
    found, there = rung(shape.rows, 2 * shape.spans)
    return None if there else found


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
        spans=power_of_two(_spans(int(keys.max(initial=0)), first_split)),
        most_labels=power_of_four(int(np.diff(plan.label_ptr).max(initial=0)), FEWEST_LABELS),
        locals=1 if max(map(len, locals_), default=0) == 1 else segments if locals_ else 0,
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
