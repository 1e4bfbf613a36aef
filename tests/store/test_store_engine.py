"""The store under the real engine on the CPU: what comes back from disk is the checkpoint, bit for bit, and so are the answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine
from flide_engine.memory import Checkpoint, PoolFull
from flide_engine.segments import GRID, Kind, Readout, Request, Round, Segment, Tokens

from flide_agent.store import CheckpointStore

KEY = b"k" * 32
Opened = Callable[..., CheckpointStore]


def load(memory_bytes: int = 64 << 20) -> Engine:
    return Engine.load("dummy:tiny", memory_bytes=memory_bytes)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load()


@pytest.fixture
def tokens(engine: Engine) -> Tokens:
    return np.random.default_rng(1).integers(0, engine.info.vocab_size, 900).astype(np.int32)


def ask(
    engine: Engine, tokens: Tokens, m: int, checkpoint: Checkpoint | None, saves: tuple[int, ...]
) -> tuple[np.ndarray, dict]:
    branch = np.arange(20, dtype=np.int32)
    request = Request(
        (
            Segment(tokens[m:], saves=saves),
            Segment(branch, parent=0, kind=Kind.LOCAL, readouts=(Readout(19, tuple(range(8))),)),
        ),
        checkpoint,
        KEY,
    )
    result = engine.run(Round((request,))).results[0]
    return result.logits[1][0], {p: c for (_, p), c in result.checkpoints.items()}


def same(engine: Engine, a: Checkpoint, b: Checkpoint) -> bool:
    x, y = engine.export(a), engine.export(b)
    return x.manifest == y.manifest and all(torch.equal(x.tensors[n], y.tensors[n]) for n in x.tensors)


def test_from_every_tier_with_the_same_bits(engine: Engine, opened: Opened, tokens: Tokens) -> None:
    store = opened(engine)
    cold, made = ask(engine, tokens, 0, None, (128, 512, 832))
    for _, checkpoint in sorted(made.items()):
        store.publish(KEY, tokens, checkpoint.retain(), None)
    for at_most, m in ((900, 832), (600, 512), (200, 128)):
        with store.find(KEY, tokens, at_most) as found:
            assert (found.m, found.tier) == (m, "device")
            assert found.checkpoint is made[m]
    assert store.flush(20)
    store.close()
    # once as one process leaves it to the next
    store = opened(engine)
    for at_most, m in ((200, 128), (900, 832), (600, 512)):
        with store.find(KEY, tokens, at_most) as found:
            assert (found.m, found.tier) == (m, "disk")
            assert same(engine, found.checkpoint, made[m])
            warm, new = ask(engine, tokens, m, found.checkpoint, ())
            assert np.array_equal(warm, cold)
            assert not new
    # negative control: a state changed by one bit is neither the same nor does it give the same answer
    exported = engine.export(made[832])
    exported.tensors["state"].view(torch.int32).view(-1)[7] ^= 1 << 22
    broken = engine.import_(exported, None)
    assert not same(engine, broken, made[832])
    assert not np.array_equal(ask(engine, tokens, 832, broken, ())[0], cold)
    for checkpoint in (*made.values(), broken):
        checkpoint.release()
    store.close()
    assert engine.memory.free() == (engine.info.pages, engine.info.slots)


def test_steps_over_a_restart_and_under_pressure(opened: Opened, tmp_path: Path, tokens: Tokens) -> None:
    """40 steps of four histories, with memory for a few checkpoints and a restart in the middle: each answer equals a cold one."""
    cold = load()
    engine = load(memory_bytes=2 << 20)
    store = opened(engine)
    histories = [np.concatenate([tokens[:200], np.roll(tokens, s)[: 600 + s]]).astype(np.int32) for s in range(4)]
    reused = 0
    for step in range(40):
        if step == 20:
            store.flush(20)
            store.close()
            assert engine.memory.free() == (engine.info.pages, engine.info.slots)
            engine = load(memory_bytes=2 << 20)
            store = opened(engine)
        trunk = histories[step % 4][: 130 + 15 * step]
        found = store.find(KEY, trunk, len(trunk))
        m, checkpoint = (0, None) if found is None else (found.m, found.checkpoint)
        last = len(trunk) // GRID * GRID
        saves = tuple(p for p in sorted({128, last}) if p > m)
        got = None
        while got is None:
            try:
                got, made = ask(engine, trunk, m, checkpoint, saves)
            except PoolFull as full:
                if not store.relieve(full):
                    raise
        for _, new in sorted(made.items()):
            store.publish(KEY, trunk, new, f"session {step % 4}")
        if found is not None:
            found.release()
        reused += m
        want, dropped = ask(cold, trunk, 0, None, ())
        assert np.array_equal(got, want)
        assert not dropped
    assert reused > 40 * 128
    assert store.stats().evicted_device > 0
    assert store.stats().hits_disk > 0
    assert store.stats().corrupt == 0
