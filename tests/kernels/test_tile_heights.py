"""Low attention tiles for short passes and high ones for long: the whole pass with both, in the interpreter.

The interpreter multiplies with the CPU's library, which may sum a tile of another height in another order; the GPU suite compares bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flide_engine.cuda import workspace
from flide_engine.cuda.workspace import Workspace
from flide_engine.engine import Engine, RequestResult
from flide_engine.kernels import attention
from flide_engine.kernels.attention import AttentionConfig, attention_config
from flide_engine.models.config import FULL, LINEAR
from flide_engine.models.dummy import SIZES, dummy_config
from flide_engine.segments import Request, Round, Segment
from test_borrow import SMALL
from test_borrowed_pass import REQUESTS, borrowed, interpreted, wanted_by
from test_cuda_pass import MEMORY, branch, history, tokens

ALWAYS = 1 << 30


def two_heights(monkeypatch: pytest.MonkeyPatch, size: str, layers: tuple[str, ...] = (FULL, LINEAR, FULL)) -> list[int]:
    """Give a model of this size both heights, as wide heads in 16-bit types have them, and a full layer that is not its last, whose
    attention therefore has tiles. Returns the heights asked for so far."""
    asked: list[int] = []

    def chosen(head_dim: int, element_size: int, query_rows: int, *, bulk: bool = False) -> AttentionConfig:
        asked.append(32 if query_rows <= attention.SHORT else 64)
        return AttentionConfig(asked[-1], 32, 4, 1)

    monkeypatch.setattr(workspace, "attention_config", chosen)
    monkeypatch.setitem(SIZES, size, replace(SIZES[size], layers=len(layers), layer_types=layers))
    return asked


def apart(ours: Engine, other: Engine, a: RequestResult, b: RequestResult) -> float:
    """The largest difference of logits, and of the states and conv rows of checkpoints."""
    worst = [0.0]
    for s, t in zip(a.logits, b.logits, strict=True):
        worst += [float(np.abs(x - y).max()) for x, y in zip(s, t, strict=True)]
    assert a.checkpoints.keys() == b.checkpoints.keys()
    for at in a.checkpoints:
        x, y = ours.export(a.checkpoints[at]).tensors, other.export(b.checkpoints[at]).tensors
        worst += [float((x[name] - y[name]).abs().max()) for name in x]
    assert np.isfinite(worst).all()
    return max(worst)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU suite compares bits")
@pytest.mark.parametrize("name", ["small", pytest.param("tiny", marks=pytest.mark.bars)])
def test_both_heights_and_a_borrowed_pass_of_the_other(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One height at a time is asked for where it should be, and the answers are those of the reference."""
    if name == "tiny":
        asked = two_heights(monkeypatch, name, (LINEAR, FULL, LINEAR, FULL))
        rounds = dict.fromkeys(("reference", "high", "low", "lender"), Round((REQUESTS["branches on branches"],)))
    else:
        asked, rounds = two_heights(monkeypatch, name), {}
    engines = {"reference": Engine.load(f"dummy:{name}", memory_bytes=MEMORY), "high": interpreted(False, f"dummy:{name}"),
               "low": interpreted(False, f"dummy:{name}"), "lender": interpreted(True, f"dummy:{name}")}  # fmt: skip
    # Segments that are longer than the low tiles, of 16 tokens, and in one case than the high ones, of 32.
    segments = Segment(tokens(34, 2)), branch(20, 3), branch(2, 4, parent=1)
    for which, engine in engines.items():
        rounds.setdefault(which, Round((Request(segments, history(engine)),)))
    high, low, lender = engines["high"], engines["low"], engines["lender"]
    known = engines["reference"].run(rounds["reference"]).results[0]

    monkeypatch.setattr(attention, "SHORT", 0)
    want = high.run(rounds["high"]).results[0]
    assert set(asked) == {64}
    assert apart(high, engines["reference"], want, known) < 2e-4
    asked.clear()
    monkeypatch.setattr(attention, "SHORT", ALWAYS)
    assert apart(high, low, want, low.run(rounds["low"]).results[0]) < 2e-5
    assert set(asked) == {32}

    wanted, heads = wanted_by(high, rounds["high"]), high.model.config.heads
    monkeypatch.setattr(attention, "SHORT", wanted.rows * heads * wanted.spans)
    of: Workspace = lender._forward._workspace  # type: ignore[attr-defined]
    larger = replace(wanted, rows=wanted.rows + 64)
    assert (of.attention(wanted).rows, of.attention(larger).rows) == (32, 64)
    asked.clear()
    got = borrowed(lender, rounds["lender"], larger)
    assert apart(high, lender, want, got) < 2e-5
    assert set(asked) == {64}, "what counts is the shape that runs"


def test_room_for_tables_follows_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is reserved for one height does not count for the other, whose tables are longer: a graph must hold no table that moves."""
    two_heights(monkeypatch, "tiny")
    of = Workspace(dummy_config("tiny"), 64, 256, 64, device=torch.device("cpu"), dtype=torch.float32)
    shape = replace(SMALL, rows=256, spans=64)
    monkeypatch.setattr(attention, "SHORT", 0)
    of.reserve(shape)
    assert of.holds(shape)
    kernels = of.kernels(shape)
    monkeypatch.setattr(attention, "SHORT", ALWAYS)
    assert of.kernels(shape) != kernels
    assert not of.holds(shape)
    assert of.reserve(shape)
    assert not of.reserve(shape)


def test_a_pass_is_short_by_its_own_numbers() -> None:
    """Rows, heads and spans of keys of an 0.8B pass; and models without the choice ask for no kernels of another height."""
    c = dummy_config("0.8b")
    kinds: dict[torch.dtype, Any] = {}
    for dtype in (torch.bfloat16, torch.float32):
        of = Workspace.__new__(Workspace)
        of._config, of._like = c, torch.empty(0, dtype=dtype)
        at = {
            (rows, spans): of.attention(replace(SMALL, rows=rows, spans=spans))
            for rows in (320, 1024, 1056, 1088, 4096)
            for spans in (1, 4)
        }
        kinds[dtype] = {key for key, config in at.items() if config.warps == 4}
        assert len({of.tokens_a_tile(replace(SMALL, rows=rows)) for rows in (64, 8192)}) == (1 + (dtype is torch.bfloat16))
    assert kinds == {torch.bfloat16: {(320, 1), (1024, 1), (1056, 1)}, torch.float32: set()}
    assert attention_config(256, 2, 320 * 8).tokens(4) == 16
