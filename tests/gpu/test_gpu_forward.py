"""How near the GPU's answers are to the truth, beside transformers with the same weights on the same GPU."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine
from flide_engine.segments import Kind, Readout, Request, Round, Segment
from forests import softmax

NAME = os.environ.get("FLIDE_GPU_EXACT", "dummy:0.8b")
LABELS = 4


def ask(engine: Engine, history: np.ndarray, questions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[Q, L] float64 logits of questions [Q, n] after one history."""
    branches = [
        Segment(q.astype(np.int32), 0, Kind.LOCAL, readouts=(Readout(len(q) - 1, tuple(map(int, x))),))
        for q, x in zip(questions, labels, strict=True)
    ]
    result = engine.run(Round((Request((Segment(history.astype(np.int32)), *branches)),))).results[0]
    return np.array([s[0] for s in result.logits[1:]], np.float64)


def probabilities(logits: np.ndarray) -> np.ndarray:
    return np.stack([softmax(x) for x in logits])


def load(dtype: torch.dtype) -> Engine:
    return Engine.load(NAME, device="cuda", dtype=dtype, memory_bytes=4 << 30, max_stream=16384)


@pytest.fixture(scope="module")
def float32() -> Engine:
    return load(torch.float32)


def test_float32_against_float64(float32: Engine, bar: object) -> None:
    """Ten requests: the largest error of a label probability is at most twice that of transformers' own float32 pass."""
    from flide_engine.models import load_model
    from transformers_oracle import GpuOracle

    rng = np.random.default_rng(0)
    vocab = float32.info.vocab_size
    lengths = [5, 63, 64, 65, 130, 200, 257, 300, 400, 640]
    cases = [(rng.integers(0, vocab, n), rng.integers(0, vocab, (4, 30)), rng.integers(0, vocab, (4, LABELS))) for n in lengths]
    ours = [probabilities(ask(float32, *case)) for case in cases]

    def oracle(dtype: torch.dtype) -> list[np.ndarray]:
        theirs = GpuOracle(load_model(NAME, device="cuda", dtype=dtype))
        return [probabilities(theirs.batch(np.concatenate([np.tile(h, (len(q), 1)), q], 1), labels)) for h, q, labels in cases]

    truth, theirs = oracle(torch.float64), oracle(torch.float32)
    error, limit = (max(float(np.abs(a - b).max()) for a, b in zip(x, truth, strict=True)) for x in (ours, theirs))
    print(f"\nfloat32: ours {error:.3g}, transformers {limit:.3g} from float64")
    bar("gpu float32 largest probability error over transformers' own", error / limit, limit=2.0, ours=error, theirs=limit)  # type: ignore[operator]


@pytest.mark.parametrize("length", [300, 3000, 12000])
def test_bfloat16_against_float32(float32: Engine, bar: object, length: int) -> None:
    """200 questions: mean total variation, P99 and flips from float32 are at most 1.1 x those of transformers' bfloat16 pass."""
    from flide_engine.models import load_model
    from transformers_oracle import GpuOracle

    count, each, size = 200, 10, 40
    rng = np.random.default_rng(length)
    vocab = float32.info.vocab_size
    histories = rng.integers(0, vocab, (count // each, length))
    questions = rng.integers(0, vocab, (count // each, each, size))
    labels = rng.integers(0, vocab, (count // each, each, LABELS))
    truth = np.concatenate([ask(float32, *x) for x in zip(histories, questions, labels, strict=True)])
    engine = load(torch.bfloat16)
    ours = np.concatenate([ask(engine, *x) for x in zip(histories, questions, labels, strict=True)])
    del engine
    oracle = GpuOracle(load_model(NAME, device="cuda", dtype=torch.bfloat16))
    theirs = np.concatenate(
        [
            oracle.batch(np.concatenate([np.tile(h, (each, 1)), q], 1), x)
            for h, q, x in zip(histories, questions, labels, strict=True)
        ]
    )
    del oracle
    torch.cuda.empty_cache()
    want, rows = probabilities(truth), {}
    for name, logits in (("ours", ours), ("transformers", theirs)):
        change = np.abs(probabilities(logits) - want)
        yes = probabilities(logits[:, :2])[:, 0] >= 0.5
        flips = int((yes != (probabilities(truth[:, :2])[:, 0] >= 0.5)).sum())
        rows[name] = (100 * float(change.sum(1).mean() / 2), 100 * float(np.quantile(change.max(1), 0.99)), 100 * flips / count)
    spread = float(truth.std())
    print(f"\nbfloat16, {length} tokens, {count} questions, logit spread {spread:.2f}: TV / P99 / Flip in percent {rows}")
    a, b = rows["ours"], rows["transformers"]
    bar(f"gpu bfloat16 mean TV over transformers', {length} tokens", a[0] / b[0], limit=1.1, ours=a, theirs=b)  # type: ignore[operator]
    bar(f"gpu bfloat16 P99 over transformers', {length} tokens", a[1] / b[1], limit=1.1)  # type: ignore[operator]
    bar(f"gpu bfloat16 flips over transformers', {length} tokens", a[2] - 1.1 * b[2], limit=0.0)  # type: ignore[operator]
