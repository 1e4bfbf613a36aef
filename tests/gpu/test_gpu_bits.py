"""Equal bits on the GPU: together and alone, forked and isolated, resumed and fresh, moved through the host. No tolerance."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from flide_engine.cuda import CudaForward
from flide_engine.cuda import shape as shapes
from flide_engine.engine import Engine, RequestResult
from flide_engine.models import LinearLayer
from flide_engine.segments import GRID, Kind, Readout, Request, Round, Segment
from forests import Forest, random_forest, random_request, resumed


def bits(result: RequestResult, skip: int = 0) -> torch.Tensor:
    """All logits of the segments from `skip` on, as one tensor."""
    return torch.from_numpy(np.concatenate([x for s in result.logits[skip:] for x in s] or [np.zeros(0, np.float32)]))


def release(*results: RequestResult) -> None:
    for r in results:
        for c in r.checkpoints.values():
            c.release()


def isolated(request: Request, segment: int) -> Request:
    """One segment with its ancestors alone."""
    chain = [segment]
    while request.segments[chain[-1]].parent >= 0:
        chain.append(request.segments[chain[-1]].parent)
    chain = chain[::-1]
    parts = [replace(request.segments[s], parent=i - 1, saves=(), readouts=()) for i, s in enumerate(chain[:-1])]
    return Request((*parts, replace(request.segments[segment], parent=len(chain) - 2)), request.checkpoint)


def run_one(engine: Engine, request: Request) -> RequestResult:
    return engine.run(Round((request,))).results[0]


class Tally:
    """How many comparisons were made and which failed."""

    def __init__(self) -> None:
        self.made = 0
        self.failed: list[str] = []

    def equal(self, what: str, a: torch.Tensor, b: torch.Tensor) -> None:
        self.made += 1
        assert torch.isfinite(a).all(), f"{what}: not finite"
        if not torch.equal(a, b):
            self.failed.append(f"{what}: {int((a != b).sum())} of {a.numel()} differ by up to {float((a - b).abs().max()):.3g}")

    def same_state(self, engine: Engine, what: str, result: RequestResult, other: RequestResult) -> None:
        for at, c in result.checkpoints.items():
            x, y = engine.export(c).tensors, engine.export(other.checkpoints[at]).tensors
            for name in x:
                self.equal(f"{what} checkpoint {at} {name}", x[name].float(), y[name].float())


def check_ways(
    engine: Engine, run: Callable[..., tuple[RequestResult, ...]], order: Sequence[int], forest: Forest, tally: Tally, what: str
) -> None:
    """One round as run(0, *requests) gives it, and as run(way, *requests) does for each way of `order`: logits and states; then one
    step of each request resumed, in every way."""
    want = run(0, *forest.requests)
    for way in order:
        got = run(way, *forest.requests)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            tally.equal(f"{what} request {i} way {way}", bits(a), bits(b))
            tally.same_state(engine, f"{what} request {i} way {way}", a, b)
        release(*got)
    for i, result in enumerate(want):
        for (_, m), checkpoint in result.checkpoints.items():
            first, *others = [run(way, resumed(forest.requests[i], checkpoint))[0] for way in sorted({0, *order})]
            for other in others:
                tally.equal(f"{what} request {i} resumed at {m}", bits(other, 1), bits(first, 1))
            release(first, *others)
            break
    release(*want)
    assert not tally.failed, tally.failed[:4]


def check_round(engine: Engine, forest: Forest, rng: np.random.Generator, tally: Tally, *, states: bool) -> None:
    """One round: every request alone, one segment isolated, one request resumed, and one through export and import."""
    together = engine.run(Round(forest.requests)).results
    for i, request in enumerate(forest.requests):
        alone = run_one(engine, request)
        tally.equal(f"request {i} alone", bits(alone), bits(together[i]))
        if states:
            tally.same_state(engine, f"request {i}", alone, together[i])
        release(alone)
    i = int(rng.integers(len(forest.requests)))
    request, whole = forest.requests[i], together[i]
    j = int(rng.integers(len(request.segments)))
    if request.segments[j].readouts:
        got = run_one(engine, isolated(request, j))
        tally.equal(f"segment {j} isolated", bits(got), torch.from_numpy(np.concatenate(whole.logits[j])))
        release(got)
    if whole.checkpoints:
        positions = sorted(p for _, p in whole.checkpoints)
        m = positions[int(rng.integers(len(positions)))]
        checkpoint = whole.checkpoints[0, m]
        again = run_one(engine, resumed(request, checkpoint))
        tally.equal(f"resumed at {m}", bits(again, 1), bits(whole, 1))
        for at, c in again.checkpoints.items():
            x, y = engine.export(c), engine.export(whole.checkpoints[at])
            for name in x.tensors:
                tally.equal(f"resumed at {m} checkpoint {at} {name}", x.tensors[name].float(), y.tensors[name].float())
        moved = engine.import_(engine.export(checkpoint))
        beside = engine.run(Round((forest.requests[-1 - i], resumed(request, moved)))).results
        tally.equal(f"moved through the host at {m}", bits(beside[1], 1), bits(whole, 1))
        release(again, *beside)
        moved.release()
    release(*together)


def slow(engine: Engine) -> bool:
    """float32 products of the larger models in fixed order run at a twentieth of bfloat16's rate."""
    return engine.info.dtype == "float32" and engine.model.config.hidden > 1024


def test_random_rounds(engine: Engine, rounds: range) -> None:
    """All of `rounds` in bfloat16; in float32, whose products are slow here, a third (0.8B) or a twentieth of them, and shorter."""
    tally, before = Tally(), engine.memory.free()
    exact = engine.info.dtype == "float32"
    every = int(os.environ.get("FLIDE_GPU_EVERY", "20" if slow(engine) else "3")) if exact else 1
    seeds = rounds[: len(rounds) // every]
    for seed in seeds:
        rng = np.random.default_rng(seed)
        most = int(rng.choice([40, 80, 130] if exact else [80, 300, 900]))
        check_round(engine, random_forest(rng, engine.info.vocab_size, most=most), rng, tally, states=seed % 8 == 0)
        assert not tally.failed, f"round {seed}: {tally.failed[:4]}"
        if (seed + 1) % 25 == 0:
            print(f"\n{engine.info.model} {engine.info.dtype}: up to seed {seed}, {tally.made} comparisons equal", flush=True)
    assert engine.memory.free() == before
    print(
        f"\n{engine.info.model} {engine.info.dtype}, {engine.model.config.layers} layers: {len(seeds)} rounds from seed {seeds.start}, "
        f"{tally.made} comparisons, all equal"
    )


@pytest.mark.parametrize("n", [20 * GRID + 10, 8192 + 3 * GRID + 10])
def test_resumed_at_every_grid_position(engine: Engine, n: int) -> None:
    """Resumed everywhere beside a neighbour; of a trunk longer than the first key split, which is cut into passes, at its edges."""
    if n > 8192 and slow(engine):
        pytest.skip("float32 products of this size take minutes")
    rng, tally = np.random.default_rng(0), Tally()
    trunk = rng.integers(0, engine.info.vocab_size, n).astype(np.int32)
    request = random_request(rng, engine.info.vocab_size, depth=3, branches=4, trunk=trunk, most=100)
    positions = range(GRID, n + 1, GRID) if n < 8192 else (GRID, 4096, 8192 - GRID, 8192, 8192 + GRID)
    request = Request((replace(request.segments[0], saves=tuple(positions)), *request.segments[1:]))
    fresh = run_one(engine, request)
    other = random_request(rng, engine.info.vocab_size, depth=2, branches=3, saves=False, most=100)
    for m in positions:
        got = engine.run(Round((other, resumed(request, fresh.checkpoints[0, m])))).results
        tally.equal(f"resumed at {m}", bits(got[1], 1), bits(fresh, 1))
        release(*got)
    release(fresh)
    assert not tally.failed, tally.failed[:4]
    assert tally.made == len(positions)


def test_one_split_changed_is_noticed(engine: Engine) -> None:
    """The negative control: the same pass with keys split at another position must not pass these comparisons."""
    rng = np.random.default_rng(1)
    trunk = rng.integers(0, engine.info.vocab_size, 200).astype(np.int32)
    request = random_request(rng, engine.info.vocab_size, depth=2, branches=3, trunk=trunk, saves=False)
    usual = bits(run_one(engine, request))
    assert torch.equal(usual, bits(run_one(engine, request)))
    forward = engine._forward
    try:
        engine._forward = CudaForward(engine.model, engine.memory, 1024, first_split=128)
        assert not torch.equal(usual, bits(run_one(engine, request)))
    finally:
        engine._forward = forward


def test_products_were_checked(engine: Engine) -> None:
    for shape in engine.self_test.slower:
        print(f"\n{engine.info.model} {engine.info.dtype}: [{shape.out}, {shape.inner}] in fixed order: {shape.reason}")
    assert engine.self_test.stable
    assert len(engine.self_test.shapes) >= 5


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 63, 64, 65, 4097, 9000])
def test_any_length_runs(engine: Engine, rows: int) -> None:
    """Streams around every capacity's edge, longer than one pass included; a repeat gives the same bits."""
    if rows > 4096 and slow(engine):
        pytest.skip("float32 products of this size take minutes")
    rng = np.random.default_rng(rows)
    trunk = rng.integers(0, engine.info.vocab_size, rows).astype(np.int32)
    request = random_request(rng, engine.info.vocab_size, depth=2, branches=2, trunk=trunk, most=20, saves=False)
    first = bits(run_one(engine, request))
    assert torch.isfinite(first).all()
    assert torch.equal(first, bits(run_one(engine, request)))


def test_sum_over_the_vocabulary(engine: Engine) -> None:
    """The same bits alone and in a round, near a plain float64 sum's size, and another for another question."""
    if slow(engine):
        pytest.skip("float32 products of this size are slow; the sum itself is float32 in both dtypes")
    rng, vocab = np.random.default_rng(5), engine.info.vocab_size

    def asked(n: int) -> Segment:
        return Segment(
            rng.integers(0, vocab, n).astype(np.int32), 0, Kind.LOCAL, readouts=(Readout(n - 1, (1, 2, 3), mass=True),)
        )

    trunk = Segment(rng.integers(0, vocab, 200).astype(np.int32))
    questions = [asked(20 + i % 7) for i in range(70)]
    many = run_one(engine, Request((trunk, *questions)))
    sums = [s[0] for s in many.sums[1:]]
    assert all(s is not None and np.isfinite(s) for s in sums)
    assert len(set(sums)) > 60
    for i in (0, 33, 69):
        alone = run_one(engine, Request((trunk, questions[i])))
        assert alone.sums[1][0] == sums[i]
        assert torch.equal(bits(alone, 1), torch.from_numpy(many.logits[1 + i][0]))
        assert sums[i] > float(many.logits[1 + i][0].max()), "the labels are part of the vocabulary"


def test_gate_apart_equals_gate_in_the_first_product(engine: Engine, rounds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two orders of a linear layer's products, eagerly, captured and replayed: logits, states and resumed steps."""
    if slow(engine):
        pytest.skip("float32 products of this size are slow; the order is the same code in bfloat16")
    pair: list[tuple[bool, Engine]] = []
    for apart in (True, False):
        monkeypatch.setattr(shapes, "APART_FROM", 0 if apart else 1 << 30)
        pair.append((apart, Engine(engine.model, engine.memory, CudaForward(engine.model, engine.memory, 4096), 4096)))
    layer = next(x for x in engine.model.layers if isinstance(x, LinearLayer))
    kinds = {(w.shape[0], w.shape[1]) for w in (layer.in_all, layer.in_first, layer.in_z)}
    if any(kinds & e._forward._products.fixed for _, e in pair):  # type: ignore[attr-defined]
        for _, e in pair:  # another kernel has other bits: what is compared is the order of the same one
            e._forward._products.fixed |= kinds  # type: ignore[attr-defined]
            e._forward._one_gate = True  # type: ignore[attr-defined]

    def run(which: int, *requests: Request) -> tuple[RequestResult, ...]:
        monkeypatch.setattr(shapes, "APART_FROM", 0 if pair[which][0] else 1 << 30)
        return tuple(pair[which][1].run(Round(requests)).results)

    tally, before = Tally(), engine.memory.free()
    try:
        for seed in rounds[: 6 if engine.info.dtype == "float32" else max(12, len(rounds) // 8)]:
            rng = np.random.default_rng(seed)
            forest = random_forest(rng, engine.info.vocab_size, most=int(rng.choice([80, 300, 900])))
            check_ways(engine, run, (1, 0, 1, 0, 1), forest, tally, f"round {seed}")
    finally:
        for _, e in pair:
            e._forward = None  # type: ignore[assignment] - a failed test keeps the engine, which must not keep its workspace
        torch.cuda.empty_cache()
    assert engine.memory.free() == before
    print(f"\n{engine.info.model} {engine.info.dtype}: {tally.made} comparisons equal")
