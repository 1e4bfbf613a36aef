"""The whole CUDA pass in triton's interpreter: the same code as on the GPU, against the reference engine."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from flide_engine.cuda import linear, shape
from flide_engine.cuda.forward import CudaForward
from flide_engine.cuda.metadata import block_size, device_round, fill, layout_of
from flide_engine.cuda.shape import shape_of
from flide_engine.cuda.workspace import columns
from flide_engine.engine import Engine, RoundResult, make_memory
from flide_engine.memory import Checkpoint
from flide_engine.memory.transfer import Exported
from flide_engine.models import LinearLayer, load_model
from flide_engine.plan import RoundPlan
from flide_engine.segments import Kind, Readout, Request, Round, Segment
from flide_engine.selftest import SelfTest

MEMORY = 32 << 20


class Here:
    """Logits that are there already."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def done(self) -> bool:
        return True

    def result(self) -> np.ndarray:
        return self._logits.numpy()


class InterpretedForward(CudaForward):
    """The pass without what only a GPU has: pinned memory, events, library products to check."""

    AT = 5
    """Where the logits go in their buffer."""

    def self_test(self) -> SelfTest:
        return SelfTest(True, ())

    def stage(self, plan: RoundPlan) -> RoundPlan:  # type: ignore[override]
        return plan

    def launch(self, plan: RoundPlan) -> Here:  # type: ignore[override]
        shape = shape_of(plan, self._first_split)
        layout = layout_of(shape)
        block = torch.full((block_size(plan, layout),), -(1 << 30), dtype=torch.int32)
        fill(block.numpy(), plan, layout)
        block[1] = self.AT
        self._workspace.reserve(shape)
        logits = torch.full((self.AT + len(plan.label_ids),), torch.nan)
        with torch.inference_mode():
            self.enqueue(device_round(shape, layout, block), logits)
        assert logits[: self.AT].isnan().all()
        return Here(logits[self.AT :])


def engine(name: str, first_split: int = 4096) -> Engine:
    model = load_model(name, device="cpu", dtype=torch.float32)
    memory = make_memory(model.config, MEMORY, device=torch.device("cpu"), dtype=torch.float32)
    return Engine(model, memory, InterpretedForward(model, memory, 256, first_split=first_split), 256)


def tokens(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, n).astype(np.int32)


def branch(n: int, seed: int, parent: int = 0) -> Segment:
    return Segment(tokens(n, seed), parent, Kind.LOCAL, readouts=(Readout(n - 1, (3, 500, 999)),))


@functools.cache
def _history(name: str, digest: str, m: int) -> Exported:
    reference = Engine.load(name, memory_bytes=MEMORY)
    assert reference.model.digest == digest, "a name may stand for other layers in another test"
    done = reference.run(Round((Request((Segment(tokens(m, 100), saves=(m,)),)),)))
    return reference.export(done.results[0].checkpoints[0, m])


def history(ours: Engine, m: int = 64) -> Checkpoint:
    """A checkpoint of m tokens from the reference engine, which takes no time: a pass behind it has few rows, and a long history."""
    return ours.import_(_history(ours.model.name, ours.model.digest, m))


def largest(a: RoundResult, b: RoundResult) -> float:
    worst = 0.0
    for p, q in zip(a.results, b.results, strict=True):
        for s, t in zip(p.logits, q.logits, strict=True):
            worst = max([worst, *(float(np.abs(u - v).max()) for u, v in zip(s, t, strict=True))])
    return worst


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite runs the pass itself")
@pytest.mark.parametrize(
    ("name", "first_split"),
    [
        ("dummy:small6", 64),
        pytest.param("dummy:tiny", 4096, marks=pytest.mark.bars),
        pytest.param("dummy:tiny6", 64, marks=pytest.mark.bars),
    ],
)
def test_pass_against_reference(name: str, first_split: int) -> None:
    ours, reference = engine(name, first_split), Engine.load(name, memory_bytes=MEMORY)
    candidate = Segment(tokens(2, 5), 0, Kind.LOCAL)
    first = Request((Segment(tokens(70, 0), saves=(64,)), branch(3, 1), candidate, branch(9, 2, parent=2)))
    both = Round((first, Request((Segment(tokens(1, 7)), branch(1, 8)))))
    fresh = [e.run(both) for e in (ours, reference)]
    assert largest(*fresh) < 2e-4
    step = (Segment(tokens(20, 9)), branch(5, 3))
    saved = [f.results[0].checkpoints[0, 64] for f in fresh]
    resumed = [e.run(Round((Request(step, c),))) for e, c in zip((ours, reference), saved, strict=True)]
    assert largest(*resumed) < 2e-4


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite compares bits")
@pytest.mark.parametrize("name", ["dummy:small", pytest.param("dummy:tiny", marks=pytest.mark.bars)])
def test_gate_with_the_first_product_or_apart(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Trunk and branches, a trunk alone, no readout, a trunk of no rows: the same answers, and states, both ways."""
    long = name == "dummy:tiny"
    found: list[list[np.ndarray]] = []
    for apart in (True, False):
        monkeypatch.setattr(shape, "APART_FROM", 0 if apart else 1 << 30)
        one, out = engine(name), []
        layer = next(x for x in one.model.layers if isinstance(x, LinearLayer))
        checked = {tuple(w.shape) for w in one._forward._weights()}  # type: ignore[attr-defined]
        assert {tuple(w.shape) for w in linear.input_matrices(layer)} <= checked
        branches, other = (branch(3, 1), branch(9, 2)), Request((Segment(tokens(1, 7)), branch(1, 8)))
        if long:
            forked = Request((Segment(tokens(70, 0), saves=(64,)), *branches))
        else:
            forked = Request((Segment(tokens(6, 0)), *branches), history(one))
        n = 66 if long else 6
        rounds = [
            Round((forked, other)),
            Round((Request((Segment(tokens(n, 3), readouts=(Readout(n - 1, (1, 2)),)),)),)),
            Round((Request((Segment(tokens(66 if long else 64, 4), saves=(64,)),)),)),
        ]
        for r in rounds:
            for result in one.run(r).results:
                out += [x for s in result.logits for x in s]
                for checkpoint in result.checkpoints.values():
                    out += [t.float().numpy() for t in one.export(checkpoint).tensors.values()]
                    resumed = one.run(Round((Request((Segment(tokens(0, 0)), branch(5, 3)), checkpoint),)))
                    out += [x for s in resumed.results[0].logits for x in s]
        found.append(out)
    assert len(found[0]) == len(found[1]) >= (10 if long else 9)
    for a, b in zip(*found, strict=True):
        assert np.isfinite(a).all()
        assert np.abs(a - b).max(initial=0) < 1e-5  # a CPU's library may sum a narrower product in another order


def test_columns_behind_others_share_nothing() -> None:
    buffer = torch.zeros(5, 12)
    first, second = columns(buffer, 8), columns(buffer, 4, behind=8)
    assert first.is_contiguous()
    assert second.is_contiguous()
    first.fill_(1)
    assert not second.any()
    second.fill_(2)
    assert bool((first == 1).all())
    assert float(buffer.sum()) == 5 * 8 + 2 * 5 * 4
