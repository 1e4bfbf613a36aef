"""Row counts in use: a stream is padded to one of few capacities, so products meet few shapes."""

from __future__ import annotations

from bisect import bisect_left

SMALLEST = 16
"""Fewest rows of a product with a fixed order of sums."""
STEPS = ((64, 1_024), (128, 2_048), (256, 4_096), (512, 8_192), (1_024, 16_384))
"""(step, up to): products run in tiles of 64 or 128 rows, so finer steps would gain nothing."""

_TABLE = [SMALLEST, 32]
for _step, _end in STEPS:
    _TABLE += range(_TABLE[-1] // _step * _step + _step, _end + 1, _step)


def row_capacity(rows: int) -> int:
    """The smallest capacity that holds `rows` rows."""
    if rows <= _TABLE[-1]:
        return _TABLE[bisect_left(_TABLE, rows)]
    step = STEPS[-1][0]
    return -(-rows // step) * step


def capacities(limit: int) -> list[int]:
    """All capacities that a stream of at most `limit` rows can get, ascending."""
    largest = row_capacity(limit)
    step = STEPS[-1][0]
    return [c for c in _TABLE if c <= largest] + list(range(_TABLE[-1] + step, largest + 1, step))
