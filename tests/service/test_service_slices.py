"""Long requests in slices: the same bits as in one piece, no memory kept, and nobody waits for all of a long one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
import pytest
from flide_engine.engine import Engine, RequestResult
from flide_engine.segments import Kind, Readout, Request, Round, Segment, Tokens

from flide_agent import default_model
from flide_agent.dispatch import Dispatcher
from flide_agent.line import Item, Line
from flide_agent.slices import UNCUT, Slices

ROWS = 64
RANDOM = np.random.default_rng(7)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(str(default_model.DIRECTORY), device="cpu", memory_bytes=64 << 20)


def tokens(n: int) -> Tokens:
    return RANDOM.integers(20, 3000, n).astype(np.int32)


def leaf(parent: int, n: int) -> Segment:
    return Segment(tokens(n), parent, Kind.LOCAL, readouts=(Readout(n - 1, (40, 41, 42)),))


def request(trunk: int, branches: int, candidates: int, saves: tuple[int, ...] = (), checkpoint: object = None) -> Request:
    start = 0 if checkpoint is None else checkpoint.m  # type: ignore[attr-defined]
    segments = [Segment(tokens(trunk), saves=tuple(start + s for s in saves))]
    segments += [leaf(0, int(RANDOM.integers(3, 40))) for _ in range(branches)]
    for _ in range(candidates):
        segments.append(Segment(tokens(int(RANDOM.integers(5, 60))), 0, Kind.LOCAL))
        at = len(segments) - 1
        segments += [leaf(at, int(RANDOM.integers(3, 40))) for _ in range(3)]
    return Request(tuple(segments), checkpoint=checkpoint, share_key=b"k")  # type: ignore[arg-type]


def in_slices(engine: Engine, whole: Request, rows: int) -> tuple[RequestResult, list[int]]:
    slices, sizes = Slices(whole, rows), []
    while slices.done is None:
        sizes.append(slices.next.tokens())
        assert slices.next is slices.next
        slices.take(engine.run(Round((slices.next,))).results[0])
    slices.drop()
    return slices.done, sizes


CASES = [  # trunk, branches, candidates, saves
    (600, 2, 0, (256, 576)),
    (640, 2, 0, (64, 640)),
    (37, 14, 0, ()),
    (64, 14, 0, (64,)),
    (0, 20, 0, ()),
    (200, 10, 2, (192,)),
    (5, 1, 6, ()),
]


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_slices_have_the_bits_of_the_whole(engine: Engine, case: tuple[int, int, int, tuple[int, ...]], resumed: bool) -> None:
    free = engine.memory.free()
    checkpoint = None
    if resumed:
        first = engine.run(Round((Request((Segment(tokens(128), saves=(128,)),)),))).results[0]
        checkpoint = first.checkpoints[0, 128]
    whole = request(*case, checkpoint=checkpoint)
    result = engine.run(Round((whole,))).results[0]
    cut, sizes = in_slices(engine, whole, ROWS)
    assert len(sizes) > 1
    assert max(sizes) <= 2 * UNCUT * ROWS
    for ours, theirs in zip(cut.logits, result.logits, strict=True):
        assert len(ours) == len(theirs)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert set(cut.checkpoints) == set(result.checkpoints)
    for key, kept in cut.checkpoints.items():
        a, b = engine.export(kept), engine.export(result.checkpoints[key])
        assert a.tensors.keys() == b.tensors.keys()
        assert all(a.tensors[name].equal(b.tensors[name]) for name in a.tensors)
    extra = cut.computed_tokens - result.computed_tokens
    assert extra == sum(sizes) - whole.tokens()
    if whole.tokens() - case[0] <= UNCUT * ROWS:
        assert extra == 0, "a long history with few branches costs no further row"
    for checkpoints in (cut.checkpoints, result.checkpoints):
        for each in checkpoints.values():
            each.release()
    if checkpoint is not None:
        checkpoint.release()
    assert engine.memory.free() == free


def test_negative_control(engine: Engine) -> None:
    """Another trunk gives other bits: the comparison can fail."""
    whole = request(300, 2, 0)
    other = Request((Segment(tokens(300)), *whole.segments[1:]))
    assert not np.array_equal(in_slices(engine, whole, ROWS)[0].logits[1][0], in_slices(engine, other, ROWS)[0].logits[1][0])


def test_short_requests_stay_whole() -> None:
    whole = request(UNCUT * ROWS, 0, 0)
    assert Slices(whole, ROWS).next is whole
    odd = Request((Segment(tokens(1000), readouts=(Readout(3, (1,)),)),))
    assert Slices(odd, ROWS).next is odd, "a shape that is none of ours is not cut"


def test_given_up_half_way_keeps_nothing(engine: Engine) -> None:
    free = engine.memory.free()
    slices = Slices(request(600, 2, 0, (128, 512)), ROWS)
    for _ in range(5):
        slices.take(engine.run(Round((slices.next,))).results[0])
    slices.drop()
    assert engine.memory.free() == free


@pytest.fixture
def dispatcher(engine: Engine) -> Iterator[Dispatcher]:
    d = Dispatcher(engine, lambda full: False, max_round_tokens=512, slice_tokens=ROWS)
    d.start()
    yield d
    assert d.close(30)


def test_a_short_one_passes_a_long_one(dispatcher: Dispatcher) -> None:
    long = dispatcher.enqueue(request(4000, 1, 0), b"long")
    short = dispatcher.enqueue(request(20, 1, 0), b"short")
    short.result(30)
    assert not long.done(), "the short one did not wait for all of the long one"
    assert long.result(60).seconds > 5 * short.result().seconds
    assert dispatcher.counters.requests == 2
    assert dispatcher.counters.slices > 50


def test_an_owner_s_flood_delays_others_by_its_share_only(dispatcher: Dispatcher) -> None:
    flood = [dispatcher.enqueue(request(200, 1, 0), b"flood") for _ in range(24)]
    calm = [dispatcher.enqueue(request(200, 1, 0), b"calm") for _ in range(2)]
    for each in calm:
        each.result(60)
    assert sum(f.done() for f in flood) <= 12, "two of the calm one go with about two of the flood"
    for each in flood:
        each.result(60)


def test_one_who_left_is_not_served_to_the_end(engine: Engine, dispatcher: Dispatcher) -> None:
    free = engine.memory.free()
    place = dispatcher.enqueue(request(4000, 1, 0, (2048,)))
    while dispatcher.counters.slices < 3:
        time.sleep(0.005)
    place.left = True
    end = time.monotonic() + 20
    while engine.memory.free() != free:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert dispatcher.counters.slices < 60
    assert dispatcher.counters.cancelled == 1


def test_ever_new_owners_do_not_pass_an_old_one_forever() -> None:
    """Each round 4 new sessions come; one that was just served waits for no more than a few rounds."""
    line = Line(1000, 1 << 20, 0.0)

    def come(owner: str) -> Item:
        item = Item(Slices(request(100, 1, 0), 4096), owner.encode(), 0.0, tokens=130)
        line.add(item)
        return item

    for number in range(20):
        come(f"first-{number}")
    old = come("old")
    waited: list[int] = []
    for number in range(60):
        for each in range(4):
            come(f"new-{number}-{each}")
        taken, gone = line.take(520)
        assert not gone
        if old in taken:
            waited.append(number)
            old = come("old")
    assert len(waited) >= 5, waited
    assert max(b - a for a, b in itertools.pairwise(waited)) <= 15, waited
