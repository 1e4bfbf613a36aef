"""Passes in the graph of a larger shape: which shape is borrowed, and what is captured in quiet moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from flide_engine.cuda.capacity import capacities
from flide_engine.cuda.forward import NOTHING
from flide_engine.cuda.graphs import ENOUGH_PADDING, MOST_WANTED, Graphs
from flide_engine.cuda.metadata import MetadataBlock
from flide_engine.cuda.shape import MOST_PADDING, PassShape, lender, missing_ahead, most_rows
from hypothesis import given, settings
from hypothesis import strategies as st

LIMIT = 16_384
MOST_GUESSES = 22
"""One for each rung of a ladder to LIMIT, those that start from where a shape is, and the short ones of their own."""
NAMES = [f.name for f in fields(PassShape)]
SHAPES = st.builds(
    lambda rows, readouts, segments, many, trunk_levels, local_levels, depth, spans, labels: PassShape(
        rows, min(rows, readouts), segments, (segments if many else 1) if trunk_levels else 0, trunk_levels, local_levels, depth,
        spans, labels, (segments if many else 1) if local_levels else 0,
    ),
    st.sampled_from(capacities(LIMIT)[:40]), st.sampled_from([0, 16, 64, 256]), st.sampled_from([4, 8, 16]), st.booleans(),
    st.integers(0, 2), st.integers(0, 2), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.sampled_from([16, 64]),
)  # fmt: skip
SMALL = PassShape(
    rows=320, readouts=16, segments=4, trunks=1, trunk_levels=1, local_levels=1, depth=1, spans=1, most_labels=16, locals=1
)  # fmt: skip


def brute_force(wanted: PassShape, held: set[PassShape], limit: int) -> set[PassShape]:
    """Everything that may be lent, by its definition, field by field."""
    found = set()
    for s in held:
        enough = all(getattr(s, name) >= getattr(wanted, name) for name in NAMES)
        more = s.rows - wanted.rows
        cheap = more <= MOST_PADDING and (s.rows <= 256 or 2 * more <= wanted.rows) and s.rows <= limit
        if enough and (more == 0 or cheap):
            found.add(s)
    return found


@settings(max_examples=500, deadline=None)
@given(SHAPES, st.sets(SHAPES, max_size=12), st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 400)), max_size=6),
       st.sampled_from([512, 2048, LIMIT]))  # fmt: skip
def test_the_lender_is_the_one_of_a_search_over_all(
    wanted: PassShape, held: set[PassShape], grown: list[tuple[str, int]], limit: int
) -> None:
    held = held | {replace(wanted, **{name: getattr(wanted, name) + more}) for name, more in grown}
    got, all_ = lender(wanted, held, limit), brute_force(wanted, held, limit)
    if wanted in held:
        assert got == wanted
    elif not all_:
        assert got is None
    else:
        assert got in all_
        assert got is not None
        assert got.rows == min(s.rows for s in all_), "it is the one with the fewest rows"


@given(SHAPES, SHAPES, SHAPES)
def test_covering_is_an_order_and_derived_sizes_follow_it(a: PassShape, b: PassShape, c: PassShape) -> None:
    assert a.covers(a)
    assert not (a.covers(b) and b.covers(a)) or a == b
    assert not (a.covers(b) and b.covers(c)) or a.covers(c)
    top = PassShape(*(max(getattr(a, n), getattr(b, n)) for n in NAMES))
    assert top.covers(a)
    for tokens_a_tile in (16, 32):
        assert top.tiles(tokens_a_tile) >= a.tiles(tokens_a_tile)
    assert top.chunks >= a.chunks
    assert top.saves >= a.saves


def test_padding_is_bounded_and_any_capacity_has_the_next_one_within_reach() -> None:
    for limit in (256, 4096, LIMIT):
        for rows, above in pairwise(capacities(limit)):
            assert above <= most_rows(rows, limit) <= min(limit, rows + MOST_PADDING)
        assert most_rows(limit, limit) == limit
        assert most_rows(limit + 512, limit) == limit + 512, "longer than any pass is: it borrows at its own rows alone"


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.sets(SHAPES, max_size=6), st.integers(0, 7))
def test_guesses_end_and_leave_no_gap(shape: PassShape, held: set[PassShape], odd: int) -> None:
    """odd: capacities that are not usable leave room for those below them."""
    held, made = held | {shape}, []

    def usable(s: PassShape) -> bool:
        return odd == 0 or s.rows // 64 % 8 != odd

    while (guess := missing_ahead(shape, held, LIMIT, usable)) is not None:
        assert usable(guess)
        assert guess not in held
        assert replace(guess, rows=shape.rows, spans=shape.spans, readouts=shape.readouts) == shape
        assert guess.readouts in (shape.readouts, guess.rows)
        made.append(guess)
        held.add(guess)
    assert len(made) <= MOST_GUESSES
    if odd == 0:
        top = max([g.rows for g in made if g.spans == shape.spans], default=shape.rows)
        for rows in [c for c in capacities(LIMIT) if c <= top]:
            assert lender(replace(shape, rows=rows, readouts=min(rows, shape.readouts)), held, LIMIT) is not None
        assert lender(replace(shape, spans=2 * shape.spans), held, LIMIT) is not None
        for rows in (64, 128, 192, 256):
            assert replace(shape, rows=rows, readouts=min(rows, shape.readouts)) in held, "short passes are not padded"


class Recorder:
    """`log`: what was captured; a replay enqueues again."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def capture(self, enqueue: Callable[[], None]) -> Any:
        self.log.append(enqueue)
        return type("Graph", (), {"replay": staticmethod(enqueue)})()

    def settle(self) -> None:
        self.log.append("settle")

    def renew(self) -> None:
        self.log.append("renew")


class Counting:
    """Passes through Graphs as CudaForward makes them. ran: the shape of each."""

    def __init__(self, most: int = 512) -> None:
        self.recorder, self.ran = Recorder(), list[PassShape]()
        self.graphs = Graphs(self.recorder, LIMIT, most)

    def run(self, wanted: PassShape) -> PassShape:
        chosen = self.graphs.choose(wanted)
        self.graphs.run(chosen, lambda: self.ran.append(chosen), wanted)
        return chosen

    def idle(self) -> PassShape | None:
        shape = self.graphs.next_wanted() or self.graphs.next_guess(lambda _: True)
        if shape is not None:
            if self.graphs.compiled(shape):
                self.graphs.capture(shape, lambda: self.ran.append(shape))
            else:
                self.graphs.run(shape, lambda: None, shape)
        return shape

    @property
    def counts(self) -> tuple[int, int, int, int]:
        g = self.graphs
        return g.eager, g.captured, g.replayed, g.borrowed


def test_a_shape_without_a_graph_borrows_and_is_captured_when_idle() -> None:
    c = Counting()
    big = replace(SMALL, rows=448)
    c.run(big)  # compiles
    assert c.counts == (1, 0, 0, 0)
    c.run(big)  # nothing was idle meanwhile: captured while it waits
    assert c.counts == (1, 1, 1, 0)
    for n in range(1, 4):
        assert c.run(SMALL) == big
        assert c.counts == (1, 1, 1 + n, n)
    other = replace(SMALL, rows=384)
    c.run(other)
    assert c.idle() == SMALL, "the one that most was paid for goes first"
    assert c.idle() == other
    assert c.run(SMALL) == SMALL
    assert c.counts == (1, 3, 6, 4)
    assert all(chosen.covers(SMALL) for chosen in c.ran)


def test_an_eager_first_pass_is_captured_when_idle_and_larger_ones_after_it_and_then_no_more() -> None:
    c = Counting()
    c.run(SMALL)
    assert c.idle() == SMALL
    found = []
    while (guess := c.idle()) is not None:
        found.append(guess)
    assert 0 < len(found) <= MOST_GUESSES
    assert all(g.kernels() == SMALL.kernels() for g in found), "nothing is compiled for a guess"
    assert c.counts == (1, 1 + len(found), 0, 0)
    for rows in [r for r in capacities(LIMIT) if r <= max(g.rows for g in found)]:
        chosen = c.run(replace(SMALL, rows=rows))
        assert chosen in (SMALL, *found)
    assert c.graphs.eager == 1
    assert c.graphs.captured == 1 + len(found), "no pass waited for a capture"


def test_short_passes_get_graphs_of_their_own_ahead() -> None:
    """A request that goes on from a long state is short: after a quiet moment it is not padded, though none like it ran."""
    c = Counting()
    c.run(replace(SMALL, rows=3_328))
    found = []
    while (guess := c.idle()) is not None:
        found.append(guess.rows)
    at = found.index(64)
    assert at <= 4
    assert found[0] == min(found[:at]) == 3_328, "what ran is captured first, then what is longer"
    assert found[at : at + 4] == [64, 128, 192, 256]
    assert min(found[at + 4 :]) > 256
    for rows in (64, 128, 192, 256):
        assert c.run(replace(SMALL, rows=rows)).rows == rows


def test_a_wanted_shape_with_new_kernels_is_compiled_and_then_captured_when_idle() -> None:
    c = Counting()
    big = replace(SMALL, spans=2)
    assert big.kernels() != SMALL.kernels()
    c.run(big)
    c.run(big)
    assert c.run(SMALL) == big
    assert [c.idle(), c.idle()] == [SMALL, SMALL]
    assert c.run(SMALL) == SMALL
    assert c.counts == (2, 2, 3, 1)


def test_nothing_is_wanted_any_more_once_graphs_are_cleared() -> None:
    c = Counting()
    big = replace(SMALL, rows=448)
    for shape in (big, big, SMALL):
        c.run(shape)
    c.graphs.clear()
    assert c.recorder.log[-2:] == ["settle", "renew"]
    assert len(c.graphs) == 0
    assert c.idle() is None


def test_an_engine_that_is_never_idle_does_not_pad_for_ever() -> None:
    c = Counting()
    big = replace(SMALL, rows=448)
    for shape in (big, big):
        c.run(shape)
    passes = 0
    while c.run(SMALL) == big:
        passes += 1
    assert passes == -(-ENOUGH_PADDING // 128)
    assert c.graphs.captured == 2


def test_graphs_and_wishes_are_bounded() -> None:
    c = Counting(most=8)
    c.run(SMALL)
    for spans in range(1, 40):
        c.graphs.run(replace(SMALL, rows=SMALL.rows), lambda: None, replace(SMALL, rows=64, spans=spans))
        c.graphs.run(SMALL, lambda: None, SMALL)
    assert len(c.graphs) <= 8
    while c.idle() is not None:
        assert len(c.graphs) <= 8
    for n in range(2 * MOST_WANTED):
        c.graphs.run(SMALL, lambda: None, replace(SMALL, rows=16 + n))
    assert len(c.graphs._wanted) == MOST_WANTED


def test_a_capture_that_fails_is_not_tried_again_by_itself() -> None:
    c = Counting()
    c.run(SMALL)
    capture = c.recorder.capture

    def fails(_: Callable[[], None]) -> None:
        raise RuntimeError("out of memory")

    c.recorder.capture = fails  # type: ignore[assignment]
    for _ in ("the wanted one", "a guess"):
        with pytest.raises(RuntimeError, match="out of memory"):
            c.idle()
    assert c.idle() is None
    c.recorder.capture = capture  # type: ignore[method-assign]
    assert c.run(SMALL) == SMALL
    assert c.graphs.captured == 1


def test_a_plan_of_nothing_fits_the_smallest_block() -> None:
    block = MetadataBlock(torch.device("cpu"))
    assert not block.holds(SMALL)
    staged = block.stage(NOTHING, SMALL)
    assert staged.wanted == SMALL
    assert block.reserve(staged)
    assert block.holds(SMALL)
    assert not block.holds(replace(SMALL, rows=1 << 19))
