"""Equal bits: alone and together, forked, resumed and fresh, split in passes, exported and imported. torch.equal, no tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine, RequestResult
from flide_engine.memory import Checkpoint
from flide_engine.segments import GRID, Kind, Readout, Request, Round, Segment
from forests import path_tokens, random_forest, random_request, resumed

LABELS = tuple(range(20, 31))


def release(*results: RequestResult) -> None:
    for r in results:
        for c in r.checkpoints.values():
            c.release()


def bits(result: RequestResult, skip: int = 0) -> torch.Tensor:
    """All logits of the segments from `skip` on, as one tensor."""
    return torch.from_numpy(np.concatenate([x for s in result.logits[skip:] for x in s] or [np.zeros(0, np.float32)]))


def state(engine: Engine, c: Checkpoint) -> list[torch.Tensor]:
    return list(engine.export(c).tensors.values())


def same_state(engine: Engine, a: Checkpoint, b: Checkpoint) -> bool:
    return all(torch.equal(x, y) for x, y in zip(state(engine, a), state(engine, b), strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_alone_equals_together(engine: Engine, seed: int) -> None:
    forest = random_forest(np.random.default_rng(seed), engine.info.vocab_size, requests=5)
    together = engine.run(Round(forest.requests)).results
    backwards = engine.run(Round(forest.requests[::-1])).results[::-1]
    for i, r in enumerate(forest.requests):
        alone = engine.run(Round((r,))).results[0]
        assert torch.equal(bits(alone), bits(together[i]))
        assert torch.equal(bits(alone), bits(backwards[i]))
        assert alone.checkpoints.keys() == together[i].checkpoints.keys()
        for at, c in alone.checkpoints.items():
            assert same_state(engine, c, together[i].checkpoints[at])
        release(alone)
    release(*together, *backwards)


@pytest.mark.parametrize("seed", range(3))
def test_forked_equals_isolated(engine: Engine, seed: int) -> None:
    """A branch has the bits of the same trunk with that branch alone."""
    rng = np.random.default_rng(100 + seed)
    request = random_request(rng, engine.info.vocab_size, depth=4, branches=8)
    whole = engine.run(Round((request,))).results[0]
    for j in range(1, len(request.segments)):
        chain, at = [], j
        while at >= 0:
            chain.append(at)
            at = request.segments[at].parent
        chain = chain[::-1]
        bare = [replace(request.segments[s], parent=i - 1, saves=(), readouts=()) for i, s in enumerate(chain[:-1])]
        alone = Request((*bare, replace(request.segments[j], parent=len(chain) - 2)))
        got = engine.run(Round((alone,))).results[0]
        assert torch.equal(bits(got), bits(whole, j)[: len(bits(got))])
    release(whole)


@pytest.mark.parametrize("seed", range(3))
def test_resumed_equals_fresh_at_every_grid_position(engine: Engine, seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    n = int(rng.choice([191, 192, 193, 260, 320]))
    trunk = rng.integers(0, engine.info.vocab_size, n).astype(np.int32)
    request = random_request(rng, engine.info.vocab_size, depth=3, branches=5, trunk=trunk)
    everywhere = tuple(range(GRID, n + 1, GRID))
    request = Request((replace(request.segments[0], saves=everywhere), *request.segments[1:]))
    other = random_request(rng, engine.info.vocab_size, depth=2, branches=3)
    fresh = engine.run(Round((request,))).results[0]
    for m in everywhere:
        again = resumed(request, fresh.checkpoints[0, m])
        alone = engine.run(Round((again,))).results[0]
        beside, neighbour = engine.run(Round((other, again))).results[::-1]
        for got in (alone, beside):
            assert torch.equal(bits(got, 1), bits(fresh, 1))
            for p in everywhere:
                if p > m:
                    assert same_state(engine, got.checkpoints[0, p], fresh.checkpoints[0, p])
        release(alone, beside, neighbour)
    release(fresh)


@pytest.mark.bars
def test_bar_resumed_equals_fresh(engine: Engine, bar: Callable[..., None]) -> None:
    """At every grid position, alone and beside other requests, streams of 2 to 20 rows included; swapped checkpoints as control."""
    differ = made = swapped = controls = 0
    for seed in range(40):
        rng = np.random.default_rng(3000 + seed)
        n = int(rng.choice([63, 64, 65, 128, 191, 192, 193, 260, 320, 449])) if seed < 21 else 128 + (seed - 20) // 2
        trunk = rng.integers(0, engine.info.vocab_size, n).astype(np.int32)
        if seed < 21:
            request = random_request(rng, engine.info.vocab_size, depth=4, branches=6, trunk=trunk)
        else:
            rows = seed - 19 - (n - 128)
            branch = rng.integers(0, engine.info.vocab_size, rows).astype(np.int32)
            request = Request((Segment(trunk), Segment(branch, 0, Kind.LOCAL, (), (Readout(rows - 1, LABELS),))))
        everywhere = tuple(range(GRID, n + 1, GRID))
        request = Request((replace(request.segments[0], saves=everywhere), *request.segments[1:]))
        other = random_request(rng, engine.info.vocab_size, depth=2, branches=3)
        other = Request(
            (replace(other.segments[0], tokens=trunk[::-1].copy(), saves=everywhere, readouts=()), *other.segments[1:])
        )
        fresh, foreign = engine.run(Round((request, other))).results
        for m in everywhere:
            again = resumed(request, fresh.checkpoints[0, m])
            alone = engine.run(Round((again,))).results[0]
            beside, neighbour = engine.run(Round((other, again))).results[::-1]
            control = engine.run(Round((resumed(request, foreign.checkpoints[0, m]),))).results[0]
            for got in (alone, beside):
                made += 1
                differ += not torch.equal(bits(got, 1), bits(fresh, 1))
            controls += 1
            swapped += not torch.equal(bits(control, 1), bits(fresh, 1))
            release(alone, beside, neighbour, control)
        release(fresh, foreign)
    bar(f"resumed_that_differ_from_fresh[{engine.info.model}]", differ, limit=0, comparisons=made)
    bar(f"swapped_checkpoints_noticed[{engine.info.model}]", swapped / controls, at_least=1.0, controls=controls)


@pytest.mark.parametrize("rows", range(2, 21))
def test_short_streams_resume(engine: Engine, rows: int) -> None:
    """Streams of 2 to 20 rows: a tail and one branch behind a checkpoint, against the fresh run."""
    rng = np.random.default_rng(rows)
    vocab = engine.info.vocab_size
    tail = rows // 2
    trunk = rng.integers(0, vocab, 128 + tail).astype(np.int32)
    branch = Segment(
        rng.integers(0, vocab, rows - tail).astype(np.int32), 0, Kind.LOCAL, (), (Readout(rows - tail - 1, LABELS),)
    )
    request = Request((Segment(trunk, saves=(64, 128)), branch))
    fresh = engine.run(Round((request,))).results[0]
    again = resumed(request, fresh.checkpoints[0, 128])
    got = engine.run(Round((again,))).results[0]
    assert got.computed_tokens == rows
    assert torch.equal(bits(got), bits(fresh))
    release(fresh, got)


def test_swapped_checkpoints_are_seen(engine: Engine) -> None:
    """Negative control: resuming from another history's checkpoint changes the bits."""
    rng = np.random.default_rng(5)
    vocab = engine.info.vocab_size
    made = []
    for _ in range(2):
        trunk = rng.integers(0, vocab, 200).astype(np.int32)
        branch = Segment(np.arange(30, dtype=np.int32), 0, Kind.LOCAL, (), (Readout(29, LABELS),))
        made.append(Request((Segment(trunk, saves=(64,)), branch)))
    fresh = engine.run(Round(made)).results
    swapped = [resumed(made[i], fresh[1 - i].checkpoints[0, 64]) for i in range(2)]
    got = engine.run(Round(swapped)).results
    assert not torch.equal(bits(got[0]), bits(fresh[0]))
    assert not torch.equal(bits(got[1]), bits(fresh[1]))
    release(*fresh, *got)


def test_empty_tail_forks_from_the_checkpoint(engine: Engine) -> None:
    rng = np.random.default_rng(6)
    trunk = rng.integers(0, engine.info.vocab_size, 128).astype(np.int32)
    branch = Segment(np.arange(2, dtype=np.int32), 0, Kind.LOCAL, (), (Readout(1, LABELS),))
    fresh = engine.run(Round((Request((Segment(trunk, saves=(128,)), branch)),))).results[0]
    got = engine.run(Round((Request((Segment(trunk[128:]), branch), fresh.checkpoints[0, 128]),))).results[0]
    assert got.computed_tokens == 2
    assert torch.equal(bits(got), bits(fresh))
    release(fresh, got)


def test_a_shared_prefix_is_computed_once_and_only_for_one_key(engine: Engine) -> None:
    rng = np.random.default_rng(7)
    vocab = engine.info.vocab_size
    common = rng.integers(0, vocab, 150).astype(np.int32)

    def request(key: bytes, n: int) -> Request:
        trunk = np.concatenate([common, rng.integers(0, vocab, n).astype(np.int32)])
        branch = Segment(np.arange(5, dtype=np.int32), 0, Kind.LOCAL, (), (Readout(4, LABELS),))
        return Request((Segment(trunk, saves=(64, 128)), branch), share_key=key)

    requests = [request(b"a", 40), request(b"a", 90), request(b"b", 10), request(b"", 11)]
    got = engine.run(Round(requests))
    assert [r.shared_tokens for r in got.results] == [128, 128, 0, 0]
    assert got.tokens == sum(r.tokens() for r in requests) - 128
    for r, g in zip(requests, got.results, strict=True):
        alone = engine.run(Round((r,))).results[0]
        assert torch.equal(bits(alone), bits(g))
        for at, c in alone.checkpoints.items():
            assert same_state(engine, c, g.checkpoints[at])
        release(alone)
    release(*got.results)


@pytest.mark.parametrize("max_stream", [64, 192, 500])
def test_passes_change_nothing(engine: Engine, max_stream: int) -> None:
    forest = random_forest(np.random.default_rng(11), engine.info.vocab_size, requests=3)
    whole = engine.run(Round(forest.requests))
    small = Engine(engine.model, engine.memory, engine._forward, max_stream)
    split = small.run(Round(forest.requests))
    assert split.passes > whole.passes
    for a, b in zip(whole.results, split.results, strict=True):
        assert torch.equal(bits(a), bits(b))
        assert a.checkpoints.keys() == b.checkpoints.keys()
        for at, c in a.checkpoints.items():
            assert same_state(engine, c, b.checkpoints[at])
    release(*whole.results, *split.results)


def test_readouts_on_a_trunk_that_is_split(engine: Engine) -> None:
    rng = np.random.default_rng(12)
    trunk = rng.integers(0, engine.info.vocab_size, 300).astype(np.int32)
    rows = (0, 63, 64, 127, 128, 191, 255, 256, 299)
    request = Request((Segment(trunk, saves=(128,), readouts=tuple(Readout(r, LABELS) for r in rows)),))
    whole = engine.run(Round((request,))).results[0]
    small = Engine(engine.model, engine.memory, engine._forward, 128)
    split = small.run(Round((request,))).results[0]
    assert torch.equal(bits(whole), bits(split))
    assert split.checkpoints.keys() == {(0, 128)}
    release(whole, split)


@pytest.mark.parametrize("since", [0, 128])
def test_export_and_import(engine: Engine, since: int) -> None:
    rng = np.random.default_rng(13)
    trunk = rng.integers(0, engine.info.vocab_size, 300).astype(np.int32)
    branch = Segment(np.arange(40, dtype=np.int32), 0, Kind.LOCAL, (), (Readout(39, LABELS),))
    request = Request((Segment(trunk, saves=(128, 256)), branch))
    fresh = engine.run(Round((request,))).results[0]
    parent = fresh.checkpoints[0, 128] if since else None
    exported = engine.export(fresh.checkpoints[0, 256], since)
    back = engine.import_(exported, parent)
    assert back.m == 256
    assert same_state(engine, back, fresh.checkpoints[0, 256])
    got = engine.run(Round((resumed(request, back),))).results[0]
    assert torch.equal(bits(got), bits(fresh))
    back.release()
    release(fresh, got)


def test_the_number_of_threads_changes_nothing(engine: Engine) -> None:
    forest = random_forest(np.random.default_rng(14), engine.info.vocab_size, requests=4)
    before = torch.get_num_threads()
    seen = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results = engine.run(Round(forest.requests)).results
            seen.append(torch.cat([bits(r) for r in results]))
            release(*results)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_path_tokens_is_the_whole_prompt(engine: Engine) -> None:
    """The test support itself: the prompt of a branch, computed as one trunk, gives the branch's answer up to rounding."""
    rng = np.random.default_rng(15)
    request = random_request(rng, engine.info.vocab_size, depth=3, branches=4, saves=False)
    got = engine.run(Round((request,))).results[0]
    for j, s in enumerate(request.segments):
        tokens = path_tokens(request, j, np.zeros(0, np.int32))
        for k, r in enumerate(s.readouts):
            whole = Segment(tokens, readouts=(Readout(len(tokens) - len(s) + r.row, r.labels),))
            one = engine.run(Round((Request((whole,)),))).results[0]
            np.testing.assert_allclose(one.logits[0][0], got.logits[j][k], atol=2e-4)
