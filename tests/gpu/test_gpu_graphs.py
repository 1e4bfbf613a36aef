"""Captured passes give the bits of eager ones, for any mix of requests, whatever came between capture and replay."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine
from flide_engine.segments import Request, Round
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
          f"{held.replayed - before} replays, {held.eager} eager")  # fmt: skip
    assert held.captured > 0
    assert held.replayed > before


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
    want = [bits(run_one(graphs, request)) for _ in range(3)][-1]
    held = graphs._forward.graphs  # type: ignore[attr-defined]
    held.clear()
    assert len(held) == 0
    assert torch.equal(bits(run_one(graphs, request)), want)
    assert len(held) == 1


def test_capture_beside_exports(pair: tuple[Engine, Engine]) -> None:
    """Checkpoints are exported by another thread while passes are captured and replayed."""
    graphs, eager = pair
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
