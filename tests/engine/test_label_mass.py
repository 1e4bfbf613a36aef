"""The sum over the vocabulary: against transformers' full softmax, and the same bits alone, in a round, in passes, resumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flide_engine import vocabulary
from flide_engine.engine import Engine
from flide_engine.reference.products import rms_norm
from flide_engine.segments import GRID, Kind, LabelMassUnsupported, Readout, Request, Round, Segment
from flide_engine.vocabulary import COLUMNS, log_sum_exp, normed_rows, place_matters
from forests import random_forest, random_request, resumed
from oracle import Oracle
from sharp import sharp_engine


def asking(request: Request) -> Request:
    """The request, each of whose readouts asks for the sum."""
    segments = (replace(s, readouts=tuple(replace(r, mass=True) for r in s.readouts)) for s in request.segments)
    return replace(request, segments=tuple(segments))


def run(engine: Engine, *requests: Request) -> list[torch.Tensor]:
    """The sums of each request's readouts, all in one round."""
    results = engine.run(Round(requests)).results
    for result in results:
        for checkpoint in result.checkpoints.values():
            checkpoint.release()
    return [torch.tensor([x for s in r.sums for x in s], dtype=torch.float64) for r in results]


@pytest.mark.parametrize("name", ["dummy:tiny", "dummy:tiny6"])
def test_label_mass_is_the_labels_share_of_transformers_softmax(name: str) -> None:
    engine = sharp_engine(name)
    oracle, everything = Oracle(engine.model), tuple(range(engine.info.vocab_size))
    worst = worst_mass = 0.0
    masses = []
    for seed in range(3):
        forest = random_forest(np.random.default_rng(seed), engine.info.vocab_size)
        results = engine.run(Round([asking(r) for r in forest.requests])).results
        for prompt, labels, (i, j, k) in forest.prompts():
            full = torch.from_numpy(oracle.logits(prompt, everything)).double()
            total, logits = results[i].sums[j][k], results[i].logits[j][k].astype(np.float64)
            assert total is not None
            worst = max(worst, abs(total - float(full.logsumexp(-1))))
            masses.append(float(full.softmax(-1)[list(labels)].sum()))
            worst_mass = max(worst_mass, abs(float(np.exp(logits - total).sum()) / masses[-1] - 1))
        for result in results:
            for checkpoint in result.checkpoints.values():
                checkpoint.release()
    assert worst <= 1e-4
    assert worst_mass <= 1e-4, "as a share of the mass itself"
    assert max(masses) > 1000 * min(masses), "the masses must differ for that to say anything"


@pytest.mark.parametrize("seed", range(3))
def test_the_same_bits_alone_and_in_a_round(engine: Engine, seed: int) -> None:
    forest = random_forest(np.random.default_rng(40 + seed), engine.info.vocab_size, requests=5)
    requests = [asking(r) for r in forest.requests]
    together, backwards = run(engine, *requests), run(engine, *requests[::-1])[::-1]
    for i, request in enumerate(requests):
        (alone,) = run(engine, request)
        assert len(alone)
        assert torch.equal(alone, together[i])
        assert torch.equal(alone, backwards[i])
        tokens = request.segments[-1].tokens.copy()
        tokens[0] = (tokens[0] + 1) % engine.info.vocab_size
        (other,) = run(
            engine, replace(request, segments=(*request.segments[:-1], replace(request.segments[-1], tokens=tokens)))
        )
        assert not torch.equal(alone, other), "one other token is noticed"


def test_only_who_asks_gets_a_sum_and_nobody_else_s_logits_change(engine: Engine) -> None:
    rng = np.random.default_rng(7)
    plain = random_request(rng, engine.info.vocab_size, depth=2, branches=6, saves=False)
    some = replace(
        plain,
        segments=tuple(
            replace(s, readouts=tuple(replace(r, mass=i % 2 == 1) for r in s.readouts)) for i, s in enumerate(plain.segments)
        ),
    )
    without, mixed = engine.run(Round((plain,))).results[0], engine.run(Round((plain, some))).results[1]
    (whole,) = engine.run(Round((asking(plain),))).results
    assert all(x is None for s in without.sums for x in s)
    for i, (a, b) in enumerate(zip(without.logits, mixed.logits, strict=True)):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        assert mixed.sums[i] == (whole.sums[i] if i % 2 else (None,) * len(a))


def test_the_same_bits_in_passes_and_resumed() -> None:
    whole, cut = sharp_engine("dummy:tiny"), sharp_engine("dummy:tiny", max_stream=128)
    rng = np.random.default_rng(3)
    trunk = rng.integers(0, whole.info.vocab_size, 400).astype(np.int32)
    branches = [Segment(trunk[i : i + 40], 0, Kind.LOCAL, (), (Readout(39, (1, 2), True),)) for i in range(4)]
    rows = tuple(Readout(r, (3, 4), True) for r in (10, 130, 399))
    request = Request((Segment(trunk, saves=(128,), readouts=rows), *branches))
    (fresh,) = whole.run(Round((request,))).results
    assert torch.equal(run(cut, request)[0], run(whole, request)[0])
    (again,) = run(whole, resumed(request, fresh.checkpoints[0, 128]))
    assert torch.equal(again, torch.tensor([x for s in fresh.sums for x in s][1:], dtype=torch.float64))
    fresh.checkpoints[0, 128].release()


@pytest.mark.parametrize(("vocab", "softcap"), [(3 * COLUMNS + 77, None), (COLUMNS, 5.0), (100, None)])
def test_every_place_in_every_number_of_rows_has_the_same_bits(vocab: int, softcap: float | None) -> None:
    generator = torch.Generator().manual_seed(1)
    head, rows = torch.randn(vocab, 96, generator=generator), torch.randn(200, 96, generator=generator)
    alone_ = place_matters(head)
    want = log_sum_exp(rows, head, softcap=softcap, alone=alone_)
    logits = rows.double() @ head.double().T
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    assert torch.allclose(want.double(), logits.logsumexp(-1), atol=2e-5, rtol=0)
    lonely = log_sum_exp(rows, head, softcap=softcap, alone=True)
    for first, count in ((0, 1), (5, 1), (63, 2), (10, 64), (17, 130), (199, 1)):
        part = rows[first : first + count]
        assert torch.equal(log_sum_exp(part, head, softcap=softcap, alone=alone_), want[first : first + count])
        assert torch.equal(log_sum_exp(part, head, softcap=softcap, alone=True), lonely[first : first + count])
    assert not torch.equal(log_sum_exp(rows.nextafter(rows + 1), head, softcap=softcap, alone=alone_), want)
    assert log_sum_exp(rows[:0], head).shape == (0,)


def test_a_narrower_head_is_widened_before_the_product() -> None:
    generator = torch.Generator().manual_seed(2)
    head, rows = torch.randn(500, 64, generator=generator).bfloat16(), torch.randn(3, 64, generator=generator)
    want = (rows.double() @ head.double().T).logsumexp(-1)
    assert torch.allclose(log_sum_exp(rows, head).double(), want, atol=1e-5, rtol=0)
    residual, delta = torch.randn(2, 70, 64, generator=generator).bfloat16().unbind()
    weight, at = torch.randn(64, generator=generator).bfloat16(), torch.arange(0, 70)
    normed = normed_rows(residual, delta, weight, at, eps=1e-6)
    assert torch.equal(normed, rms_norm((residual.float() + delta.float()).bfloat16().float(), weight.float(), 1e-6))
    assert torch.equal(normed_rows(residual, delta, weight, at[65:66], eps=1e-6), normed[65:66])
    assert normed_rows(residual, delta, weight, at[:0], eps=1e-6).shape == (0, 64)


def test_where_a_place_matters_each_row_gets_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sharp_engine("dummy:tiny")
    blocks: list[int] = []
    monkeypatch.setattr("flide_engine.reference.cpu.place_matters", lambda head: True)
    monkeypatch.setattr(vocabulary, "_block", lambda rows, block=vocabulary._block: (blocks.append(len(rows)), block(rows))[1])
    branches = [Segment(np.arange(n, n + 5, dtype=np.int32), 0, Kind.LOCAL, (), (Readout(4, (1, 2), True),)) for n in range(3)]
    request = Request((Segment(np.arange(GRID, dtype=np.int32)), *branches))
    (together,) = run(engine, request)
    assert blocks == [1, 1, 1]
    (one,) = run(engine, Request((request.segments[0], branches[2])))
    assert torch.equal(one, together[2:])


def test_an_engine_without_it_refuses_before_it_takes_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sharp_engine("dummy:tiny")
    engine.info = replace(engine.info, label_mass=False)
    before = engine.memory.free()
    request = Request((Segment(np.arange(9, dtype=np.int32), readouts=(Readout(8, (1,), True),)),))
    with pytest.raises(LabelMassUnsupported, match="does not sum over the vocabulary"):
        engine.run(Round((request,)))
    assert engine.memory.free() == before
