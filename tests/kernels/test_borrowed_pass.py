"""Passes through launch sizes larger than their own, in the interpreter: no bit depends on it; and the engine's work in quiet moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flide_engine.cuda.capacity import row_capacity
from flide_engine.cuda.forward import CudaForward
from flide_engine.cuda.graphs import Graphs
from flide_engine.cuda.shape import PassShape, shape_of
from flide_engine.engine import Engine, RequestResult, make_memory
from flide_engine.kernels.tiles import MOST_SPANS
from flide_engine.models import load_model
from flide_engine.segments import Request, Round, Segment
from flide_engine.selftest import SelfTest
from test_borrow import SMALL, Recorder
from test_cuda_pass import MEMORY, branch, history, tokens

SPLIT = 64
"""So that a trunk of 66 tokens, or one behind a checkpoint of 64, has two spans of keys."""


class Landing:
    """Logits that are there already, not in pinned memory."""

    def __init__(self, view: torch.Tensor) -> None:
        self.at, self._view = 0, view

    def launched(self, _: object) -> None:
        self._got = self._view.clone().numpy()

    def done(self) -> bool:
        return True

    def result(self) -> np.ndarray:
        return self._got


class Landings:
    def __init__(self) -> None:
        self.buffer = torch.full((1024,), torch.nan)

    def reserve(self, labels: int) -> bool:
        return False

    def take(self, labels: int) -> Landing:
        return Landing(self.buffer[:labels])

    def make_room(self) -> None:
        pass


class Interpreted(CudaForward):
    """stage, launch and idle as on a GPU, with kernels interpreted and graphs that enqueue again."""

    def self_test(self) -> SelfTest:
        self._landings = Landings()  # type: ignore[assignment]
        self._products.fixed = {(w.shape[0], w.shape[1]) for w in self._weights()}  # a CPU's library reorders sums
        return SelfTest(True, ())


def interpreted(graphs: bool, name: str = "dummy:small", most: int = 256) -> Engine:
    """most: rows of a pass."""
    model = load_model(name, device="cpu", dtype=torch.float32)
    memory = make_memory(model.config, MEMORY, device=torch.device("cpu"), dtype=torch.float32)
    forward = Interpreted(model, memory, most, first_split=SPLIT)
    if graphs:
        forward.graphs = Graphs(Recorder(), row_capacity(most))
    return Engine(model, memory, forward, most)


def same(ours: Engine, other: Engine, a: RequestResult, b: RequestResult) -> bool:
    """Logits and checkpoints, bit for bit."""
    logits = all(np.array_equal(x, y) for s, t in zip(a.logits, b.logits, strict=True) for x, y in zip(s, t, strict=True))
    kept = a.checkpoints.keys() == b.checkpoints.keys() and all(
        torch.equal(x, y)
        for at in a.checkpoints
        for x, y in zip(
            ours.export(a.checkpoints[at]).tensors.values(), other.export(b.checkpoints[at]).tensors.values(), strict=True
        )
    )
    return logits and kept


interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite borrows graphs themselves")
REQUESTS = {
    "no readout, no branch": Request((Segment(tokens(66, 1), saves=(64,)),)),
    "branches on branches": Request((Segment(tokens(70, 2), saves=(64,)), branch(3, 3), branch(2, 4, parent=1))),
}
RESUMED: dict[str, tuple[Segment, ...]] = {
    "no readout, no branch": (Segment(tokens(64, 1), saves=(128,)),),
    "branches on branches": (Segment(tokens(6, 2)), branch(3, 3), branch(2, 4, parent=1)),
}
"""The same behind a checkpoint of 64 tokens, with the fewest rows."""


def resumed(ours: Engine, name: str) -> Round:
    return Round((Request(RESUMED[name], history(ours)),))


LARGER: dict[str, Callable[[PassShape], PassShape]] = {
    "rows": lambda s: replace(s, rows=row_capacity(s.rows + 1)),
    "readouts": lambda s: replace(s, readouts=max(64, s.readouts)),
    "segments, trunks and branches": lambda s: replace(s, segments=8, trunks=8, locals=8),
    "levels": lambda s: replace(s, trunk_levels=s.trunk_levels + 1, local_levels=s.local_levels + 1),
    "depth, spans, labels": lambda s: replace(s, depth=2 * s.depth, spans=s.spans + 1, most_labels=64),
}


def wanted_by(engine: Engine, round_: Round) -> PassShape:
    prepared = engine.prepare(round_)
    shape = shape_of(prepared.passes[0][1].plan, SPLIT)
    engine.discard(prepared)
    return shape


def borrowed(ours: Engine, round_: Round, shape: PassShape) -> RequestResult:
    """The round's only request, run with the graph of this shape as the only one."""
    forward: Any = ours._forward
    forward.graphs.clear()
    forward._workspace.reserve(shape)
    forward.graphs.capture(shape, forward._pass_of(shape))
    before = forward.graphs.borrowed
    got = ours.run(round_).results[0]
    assert forward.graphs.borrowed == before + 1
    return got


@interpreter
@pytest.mark.parametrize("name", REQUESTS)
def test_borrowed_passes_have_the_same_bits(name: str) -> None:
    """All sizes larger at once, stage and launch as on a GPU, checkpoints included; with a level too few the bits differ."""
    plain, ours = interpreted(False), interpreted(True)
    _all_larger(plain, ours, resumed(plain, name), resumed(ours, name))


@interpreter
@pytest.mark.bars
@pytest.mark.parametrize("name", REQUESTS)
def test_borrowed_passes_of_fresh_trunks_have_the_same_bits(name: str) -> None:
    plain, ours, round_ = interpreted(False, "dummy:tiny"), interpreted(True, "dummy:tiny"), Round((REQUESTS[name],))
    _all_larger(plain, ours, round_, round_)


def _all_larger(plain: Engine, ours: Engine, round_: Round, again: Round) -> None:
    """round_, again: the same request, with each engine's checkpoint."""
    want = plain.run(round_).results[0]
    forward: Any = ours._forward
    shape = wanted = wanted_by(plain, round_)
    for larger in LARGER.values():
        shape = larger(shape)
    assert same(plain, ours, want, borrowed(ours, again, shape))
    less = replace(wanted, local_levels=1) if wanted.local_levels else replace(wanted, trunk_levels=0, trunks=0)
    assert not less.covers(wanted)
    forward._workspace.reserve(less)
    forward.graphs.choose = lambda _: less
    forward._workspace.scanned.zero_()  # what the pass before left there is right
    assert not same(plain, ours, want, ours.run(again).results[0]), "the negative control"


@interpreter
@pytest.mark.bars
@pytest.mark.parametrize("name", REQUESTS)
def test_each_size_may_be_larger_by_itself(name: str) -> None:
    plain, ours, round_ = interpreted(False, "dummy:tiny"), interpreted(True, "dummy:tiny"), Round((REQUESTS[name],))
    want = plain.run(round_).results[0]
    wanted = wanted_by(plain, round_)
    for what, larger in LARGER.items():
        if (shape := larger(wanted)) != wanted:
            assert same(plain, ours, want, borrowed(ours, round_, shape)), what


@interpreter
def test_idle_captures_what_ran_and_a_pass_of_nothing_writes_nothing() -> None:
    ours = interpreted(True, most=64)
    forward: Any = ours._forward
    graphs: Graphs = forward.graphs
    assert not ours.idle(), "nothing ran yet"
    round_ = resumed(ours, "branches on branches")
    want = ours.run(round_).results[0]
    shape = wanted_by(ours, round_)
    assert (graphs.eager, graphs.captured) == (1, 0)
    assert ours.idle()
    assert (graphs.eager, graphs.captured, list(graphs._graphs)) == (1, 1, [shape])
    pools = (ours.memory.k, ours.memory.v, ours.memory.states, ours.memory.conv)
    kept = [t.clone() for pool in pools for t in pool]
    forward._landings.buffer.fill_(torch.nan)
    graphs._compiled.clear()
    larger = replace(shape, local_levels=3)
    graphs._wanted[larger] = 1
    assert ours.idle(), "its kernels first, by a pass of nothing"
    assert graphs.eager == 2
    assert all(torch.equal(a, b) for a, b in zip(kept, (t for pool in pools for t in pool), strict=True))
    assert forward._landings.buffer.isnan().all()
    assert ours.idle()
    assert larger in graphs._graphs
    assert same(ours, ours, want, ours.run(round_).results[0])
    calls = 0
    while ours.idle():
        calls += 1
    assert calls <= 8


@interpreter
def test_idle_takes_no_memory() -> None:
    """A shape that needs more than is held is left alone: moving a buffer would void all graphs."""
    ours = interpreted(True)
    forward: Any = ours._forward
    workspace, graphs = forward._workspace, forward.graphs
    assert workspace.holds(replace(SMALL, rows=64))
    far = replace(SMALL, rows=2 * workspace.rows)
    assert not workspace.holds(far)
    assert not workspace.holds(replace(SMALL, rows=256, spans=MOST_SPANS, segments=4096))
    held = workspace.stream.residual
    graphs._wanted[far] = 1
    ours.idle()
    assert workspace.stream.residual is held
    assert len(graphs) == 0
    assert workspace.reserve(far)
    assert workspace.holds(far)
