"""Forked answers against float64 and against transformers: probabilities, on random forests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine, RoundResult
from flide_engine.segments import Round
from forests import random_forest, softmax
from oracle import Oracle
from sharp import CALMER, sharp_engine

MODELS = ["dummy:tiny", "dummy:tiny6"]
AGAINST_FLOAT64, AGAINST_TRANSFORMERS, FLOAT64_AGAINST_TRANSFORMERS = 1e-5, 2e-5, 1e-7


def release(result: RoundResult) -> None:
    for r in result.results:
        for c in r.checkpoints.values():
            c.release()


class Difference:
    """Largest differences of label probabilities over forests, between four computations of the same answers."""

    def __init__(self, name: str) -> None:
        self.f32, self.f64 = sharp_engine(name), sharp_engine(name, torch.float64)
        self.o32, self.o64 = Oracle(self.f32.model), Oracle(self.f64.model)
        self.against_float64 = self.against_transformers = self.float64_against_transformers = 0.0
        self.spread: list[float] = []
        self.answers = 0

    def measure(self, seed: int, *, double: bool) -> None:
        forest = random_forest(np.random.default_rng(seed), self.f32.info.vocab_size)
        a, b = (e.run(Round(forest.requests)) for e in (self.f32, self.f64))
        for prompt, labels, (i, j, k) in forest.prompts():
            ours, exact = (softmax(x.results[i].logits[j][k]) for x in (a, b))
            theirs = softmax(self.o32.logits(prompt, labels))
            self.spread.append(float(a.results[i].logits[j][k].std()))
            self.answers += 1
            self.against_float64 = max(self.against_float64, float(abs(ours - exact).max()))
            self.against_transformers = max(self.against_transformers, float(abs(ours - theirs).max()))
            if double:
                theirs = softmax(self.o64.logits(prompt, labels))
                self.float64_against_transformers = max(self.float64_against_transformers, float(abs(exact - theirs).max()))
        release(a)
        release(b)


@pytest.mark.parametrize("name", MODELS)
def test_random_forests_match_float64_and_transformers(name: str) -> None:
    d = Difference(name)
    for seed in range(5):
        d.measure(seed, double=seed < 2)
    assert d.against_float64 <= AGAINST_FLOAT64
    assert d.against_transformers <= AGAINST_TRANSFORMERS
    assert d.float64_against_transformers <= FLOAT64_AGAINST_TRANSFORMERS
    assert 2.5 <= np.mean(d.spread) <= 6, "the answers must be sharp enough for a probability to move"


@pytest.mark.bars
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MODELS)
def test_bar_200_forests(name: str, bar: Callable[..., None]) -> None:
    d = Difference(name)
    for seed in range(1000, 1200):
        d.measure(seed, double=seed < 1020)
    more = {"forests": 200, "answers": d.answers, "mean_logit_std": float(np.mean(d.spread)), "branch_gain": CALMER}
    bar(f"exact_float32_vs_float64[{name}]", d.against_float64, limit=AGAINST_FLOAT64, **more)
    bar(f"exact_float32_vs_transformers[{name}]", d.against_transformers, limit=AGAINST_TRANSFORMERS, **more)
    bar(
        f"exact_float64_vs_transformers[{name}]", d.float64_against_transformers, limit=FLOAT64_AGAINST_TRANSFORMERS, forests=20
    )


def test_a_wrong_decay_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the comparison fails when one layer's decay is off by a thousandth."""
    wrong, exact = sharp_engine("dummy:tiny"), sharp_engine("dummy:tiny", torch.float64)
    layer = wrong.model.layers[0]
    layer.A_log.add_(1e-3)
    forest = random_forest(np.random.default_rng(0), wrong.info.vocab_size)
    a, b = (e.run(Round(forest.requests)) for e in (wrong, exact))
    worst = max(
        abs(softmax(a.results[i].logits[j][k]) - softmax(b.results[i].logits[j][k])).max()
        for _, _, (i, j, k) in forest.prompts()
    )
    release(a)
    release(b)
    assert worst > AGAINST_FLOAT64


def test_answers_depend_on_far_tokens() -> None:
    """Negative control of every bit test: the state carries information, a changed early token changes late answers."""
    e = Engine.load("dummy:tiny", memory_bytes=128 << 20)
    forest = random_forest(np.random.default_rng(3), e.info.vocab_size, requests=1)
    base = e.run(Round(forest.requests))
    forest.requests[0].segments[0].tokens[0] ^= 1
    other = e.run(Round(forest.requests))
    changed = [
        not np.array_equal(base.results[i].logits[j][k], other.results[i].logits[j][k]) for _, _, (i, j, k) in forest.prompts()
    ]
    release(base)
    release(other)
    assert all(changed)
