"""Captured passes give the bits of eager ones, in their own shape and in larger ones, whatever came between capture and replay."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from flide_engine.cuda.capacity import capacities
from flide_engine.cuda.shape import PassShape, most_rows
from flide_engine.engine import Engine
from flide_engine.segments import Kind, Readout, Request, Round, Segment
from forests import random_forest, random_request, resumed
from test_gpu_bits import Tally, bits, release, run_one


@pytest.fixture(scope="module")
def pair(engine: Engine) -> Iterator[tuple[Engine, Engine]]:
    """(graphs, no graphs) over one model and one memory."""
    from flide_engine.cuda import CudaForward

    if engine.info.dtype == "float32" and engine.model.config.hidden > 1024:
        pytest.skip("float32 products of this size are slow; the graphs of bfloat16 are the same code")
    eager = Engine(engine.model, engine.memory, CudaForward(engine.model, engine.memory, 4096, graphs=False), 4096)
    eager._forward._products.fixed |= engine._forward._products.fixed  # type: ignore[attr-defined]
    yield engine, eager
    eager._forward = None  # type: ignore[assignment] - a failed test keeps the engine, which must not keep its workspace
    torch.cuda.empty_cache()


def test_replay_equals_eager(pair: tuple[Engine, Engine], rounds: range) -> None:
    """Each round eagerly, then three times with graphs and another round of a shape in between; checkpoints resumed by both."""
    graphs, eager = pair
    held = graphs._forward.graphs  # type: ignore[attr-defined]
    tally, before = Tally(), held.replayed
    last: Request | None = None
    for seed in rounds[: max(12, len(rounds) // 4)]:
        rng = np.random.default_rng(seed)
        forest = random_forest(rng, graphs.info.vocab_size, most=int(rng.choice([80, 300, 900])))
        want = eager.run(Round(forest.requests)).results
        for _ in range(3):
            got = graphs.run(Round(forest.requests)).results
            for i, (a, b) in enumerate(zip(got, want, strict=True)):
                tally.equal(f"round {seed} request {i}", bits(a), bits(b))
            if last is not None:
                release(run_one(graphs, last))
            if forest.requests[0].checkpoint is None and got[0].checkpoints:
                (_, m), checkpoint = min(got[0].checkpoints.items(), key=lambda x: x[0][1])
                again = run_one(eager, resumed(forest.requests[0], checkpoint))
                tally.equal(f"round {seed} resumed at {m}", bits(again, 1), bits(want[0], 1))
                release(again)
            release(*got)
        release(*want)
        last = random_request(rng, graphs.info.vocab_size, depth=2, branches=2, saves=False, most=100)
        assert not tally.failed, tally.failed[:4]
    print(f"\n{graphs.info.model}: {tally.made} comparisons equal; {len(held)} graphs, {held.captured} captured, "
          f"{held.replayed - before} replays, {held.borrowed} of all borrowed, {held.eager} eager")  # fmt: skip
    assert held.captured > 0
    assert held.replayed > before


def larger(rng: np.random.Generator, wanted: PassShape) -> PassShape:
    """A shape that covers the wanted one, each size larger half the time."""

    def more(n: int, *others: int) -> int:
        return max(n, int(rng.choice(others))) if rng.random() < 0.5 else n

    rows = more(wanted.rows, *[c for c in capacities(4096) if c <= most_rows(wanted.rows, 4096)][-4:])
    segments = more(wanted.segments, 2 * wanted.segments)
    trunk_levels = more(wanted.trunk_levels, wanted.trunk_levels + 1)
    return PassShape(
        rows=rows,
        readouts=more(wanted.readouts, *[c for c in capacities(256) if c <= rows]),
        segments=segments,
        trunks=segments if wanted.trunks > 1 else more(wanted.trunks, segments) or min(1, trunk_levels),
        trunk_levels=trunk_levels,
        local_levels=more(wanted.local_levels, wanted.local_levels + 1),
        locals=more(wanted.locals, wanted.segments if wanted.locals else 0),
        depth=more(wanted.depth, 2 * wanted.depth),
        spans=more(wanted.spans, 2 * wanted.spans),
        most_labels=more(wanted.most_labels, 4 * wanted.most_labels),
    )


def test_borrowed_equals_eager(pair: tuple[Engine, Engine], rounds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round eagerly, in its own shapes, and in larger ones: launch by launch, captured and replayed. Logits and checkpoints."""
    graphs, eager = pair
    held = graphs._forward.graphs  # type: ignore[attr-defined]
    tally, before = Tally(), held.borrowed
    for seed in rounds[: max(8, len(rounds) // 10)]:
        rng = np.random.default_rng(seed)
        forest = random_forest(rng, graphs.info.vocab_size, most=int(rng.choice([80, 300, 900])))
        want = eager.run(Round(forest.requests)).results
        for name in ("own", "larger", "larger", "lent"):
            drawn = int(rng.integers(1 << 30))  # the same larger shapes in each of the three runs
            for again in range(3):
                draws = np.random.default_rng(drawn)
                with monkeypatch.context() as patch:
                    if name != "lent":
                        patch.setattr(held, "choose", lambda w, draws=draws, own=name == "own": w if own else larger(draws, w))
                    got = graphs.run(Round(forest.requests)).results
                for i, (a, b) in enumerate(zip(got, want, strict=True)):
                    tally.equal(f"round {seed} request {i}, {name} {again}", bits(a), bits(b))
                    tally.same_state(graphs, f"round {seed} request {i}, {name} {again}", a, b)
                release(*got)
        release(*want)
        assert not tally.failed, tally.failed[:4]
    print(f"\n{graphs.info.model}: {tally.made} comparisons equal; {len(held)} graphs, {held.captured} captured, "
          f"{held.borrowed - before} borrowed")  # fmt: skip
    assert held.borrowed > before


def test_a_shape_that_does_not_cover_is_noticed(pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a graph with a level of branches too few must not pass."""
    graphs, eager = pair
    held, workspace = graphs._forward.graphs, graphs._forward._workspace  # type: ignore[attr-defined]
    rng = np.random.default_rng(8)
    request = random_request(rng, graphs.info.vocab_size, depth=2, branches=3, saves=False, most=60)
    want = bits(run_one(eager, request))
    assert torch.equal(bits(run_one(graphs, request)), want)
    monkeypatch.setattr(held, "choose", lambda w: replace(w, local_levels=w.local_levels - 1))
    for _ in range(3):
        workspace.stream.mixed.zero_()
        assert not torch.equal(bits(run_one(graphs, request)), want)
    monkeypatch.undo()
    assert torch.equal(bits(run_one(graphs, request)), want)


def test_idle_captures_what_was_borrowed_and_stops(pair: tuple[Engine, Engine]) -> None:
    """No pass waits for the capture of a shape that can be borrowed; idle makes it and shapes around it, a bounded number, and what
    it runs meanwhile writes nothing."""
    graphs, eager = pair
    held = graphs._forward.graphs  # type: ignore[attr-defined]
    rng = np.random.default_rng(9)

    def request(trunk: int, saves: tuple[int, ...] = ()) -> Request:
        first, own = rng.integers(0, graphs.info.vocab_size, trunk), rng.integers(0, graphs.info.vocab_size, 20)
        question = Segment(own.astype(np.int32), 0, Kind.LOCAL, (), (Readout(19, (5, 6, 7)),))
        return Request((Segment(first.astype(np.int32), saves=saves), question))

    big, small = request(410, (64, 384)), request(290)
    want = bits(run_one(eager, small))
    held.clear()
    for _ in range(2):
        release(run_one(graphs, big))
    saved = run_one(graphs, big)
    checkpoint = next(iter(saved.checkpoints.values()))
    kept = graphs.export(checkpoint).tensors
    captured, borrowed, eagerly = held.captured, held.borrowed, held.eager
    assert torch.equal(bits(run_one(graphs, small)), want)
    assert (held.captured, held.borrowed, held.eager) == (captured, borrowed + 1, eagerly)
    held._compiled.clear()  # so that a pass of nothing must come first
    pieces, began = 0, time.monotonic()
    while graphs.idle():
        pieces += 1
        assert pieces < 40
    seconds = time.monotonic() - began
    assert held.captured > captured + 1
    assert held.eager > eagerly
    assert not graphs.idle()
    made = held.captured
    for trunk in (10, 100, 290, 330, 390, 500, 600):
        r = request(trunk)
        assert torch.equal(bits(run_one(graphs, r)), bits(run_one(eager, r)))
    assert held.captured == made, "all of these were ready or could be borrowed"
    assert torch.equal(bits(run_one(graphs, small)), want)
    assert held.borrowed < borrowed + 1 + 7, "it has a graph of its own now"
    for name, tensor in graphs.export(checkpoint).tensors.items():
        assert torch.equal(tensor, kept[name])
    release(saved)
    print(f"\n{graphs.info.model}: {pieces} pieces in {seconds:.2f} s, {made - captured} captures")


def test_stale_metadata_is_noticed(pair: tuple[Engine, Engine]) -> None:
    """The negative control: a replay that reads the plan before it must not pass."""
    graphs, eager = pair
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, graphs.info.vocab_size, (2, 150)).astype(np.int32)
    a = random_request(rng, graphs.info.vocab_size, depth=2, branches=3, trunk=one, saves=False, most=30)
    same = Request((replace(a.segments[0], tokens=other), *a.segments[1:]))
    for _ in range(3):
        run_one(graphs, a)
    want = bits(run_one(eager, same))
    assert torch.equal(bits(run_one(graphs, same)), want)
    forward = graphs._forward
    block = forward._block  # type: ignore[attr-defined]
    post, prepared = block.post, graphs.prepare(Round((a,)))
    stale = prepared.staged.pop()
    graphs.discard(prepared)
    try:
        block.post = lambda staged, logits_at: post(stale, logits_at)
        assert not torch.equal(bits(run_one(graphs, same)), want)
    finally:
        block.post = post
    assert torch.equal(bits(run_one(graphs, same)), want)


def test_a_pass_that_fails_leaves_the_next_ones_right(pair: tuple[Engine, Engine]) -> None:
    """Before its fetch is enqueued and behind it: the mailbox goes on from where the device is."""
    for engine in pair:
        forward, rng = engine._forward, np.random.default_rng(5)
        requests = [random_request(rng, engine.info.vocab_size, depth=2, branches=n, saves=False, most=60) for n in (1, 4)]
        want = [bits(run_one(engine, r)) for r in requests]
        for owner, name in ((forward._block, "fetch"), (forward, "tables")):  # type: ignore[attr-defined]
            graphs, forward.graphs = forward.graphs, None  # type: ignore[attr-defined]
            whole = getattr(owner, name)

            def fails(*_: object) -> None:
                raise RuntimeError("as if memory had run out")

            setattr(owner, name, fails)
            try:
                with pytest.raises(RuntimeError, match="memory had run out"):
                    run_one(engine, requests[0])
            finally:
                setattr(owner, name, whole)
                forward.graphs = graphs  # type: ignore[attr-defined]
            for request, expected in zip(requests * 2, want * 2, strict=True):
                assert torch.equal(bits(run_one(engine, request)), expected)


def test_graph_dropped_and_captured_again(pair: tuple[Engine, Engine]) -> None:
    """A workspace that grows voids the graphs; the next passes have the same bits."""
    graphs, _ = pair
    rng = np.random.default_rng(3)
    request = random_request(rng, graphs.info.vocab_size, depth=2, branches=3, saves=False, most=100)
    held = graphs._forward.graphs  # type: ignore[attr-defined]
    held.clear()  # nothing to borrow
    want = [bits(run_one(graphs, request)) for _ in range(3)][-1]
    held.clear()
    assert len(held) == 0
    assert torch.equal(bits(run_one(graphs, request)), want)
    assert len(held) == 1


def test_capture_beside_exports(pair: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are exported by another thread while passes are captured and replayed."""
    graphs, eager = pair
    monkeypatch.setattr(graphs._forward.graphs, "choose", lambda wanted: wanted)  # type: ignore[attr-defined]
    rng = np.random.default_rng(4)
    trunk = rng.integers(0, graphs.info.vocab_size, 700).astype(np.int32)
    saved = run_one(graphs, random_request(rng, graphs.info.vocab_size, depth=1, branches=1, trunk=trunk, most=20))
    checkpoint = next(iter(saved.checkpoints.values()))
    stop, failures, count = threading.Event(), [], [0]

    def export() -> None:
        want = graphs.export(checkpoint).tensors
        while not stop.is_set():
            got = graphs.export(checkpoint).tensors
            failures.extend(name for name in want if not torch.equal(want[name], got[name]))
            count[0] += 1

    thread = threading.Thread(target=export)
    thread.start()
    try:
        began = time.monotonic()
        for n in range(1, 40):
            request = random_request(rng, graphs.info.vocab_size, depth=2, branches=1 + n % 9, saves=False, most=20 + 17 * n)
            want = bits(run_one(eager, request))
            for _ in range(3):
                assert torch.equal(bits(run_one(graphs, request)), want)
            if time.monotonic() - began > 20 and n > 8:
                break
    finally:
        stop.set()
        thread.join()
    release(saved)
    assert not failures
    assert count[0] > 3


def test_more_passes_in_flight_than_landings(pair: tuple[Engine, Engine]) -> None:
    """Submitted behind one another and collected last first: each finds its own logits, and a discarded round takes nobody's."""
    from flide_engine.cuda.landing import LANDINGS

    graphs, eager = pair
    rng = np.random.default_rng(6)
    requests = [
        random_request(rng, graphs.info.vocab_size, depth=2, branches=1 + n % 3, saves=False, most=30)
        for n in range(LANDINGS + 5)
    ]
    want = [bits(run_one(eager, r)) for r in requests]
    tickets = []
    for i, r in enumerate(requests):
        prepared = graphs.prepare(Round((r,)))
        if i % 3 == 0:
            graphs.discard(graphs.prepare(Round((requests[-1],))))
        tickets.append(graphs.submit(prepared))
    for ticket, expected in zip(reversed(tickets), reversed(want), strict=True):
        assert torch.equal(bits(graphs.collect(ticket).results[0]), expected)
