"""Pages, slots and handles: nothing leaks, nothing is freed twice, and a full pool refuses before it takes anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine
from flide_engine.memory import PoolFull, TransferError
from flide_engine.segments import Kind, Readout, Request, RequestError, Round, Segment
from forests import random_forest
from sharp import sharp_engine


def request(rng: np.random.Generator, n: int, saves: tuple[int, ...] = ()) -> Request:
    trunk = Segment(rng.integers(0, 1000, n).astype(np.int32), saves=saves)
    return Request((trunk, Segment(np.arange(9, dtype=np.int32), 0, Kind.LOCAL, (), (Readout(8, (1, 2)),))))


def test_handles_share_pages_and_give_them_back(engine: Engine) -> None:
    pages, slots = engine.memory.free()
    result = engine.run(Round((request(np.random.default_rng(0), 300, (64, 256)),))).results[0]
    a, b = result.checkpoints[0, 64], result.checkpoints[0, 256]
    assert engine.memory.free() == (pages - 4, slots - 2)
    assert a.pages.tolist() == b.pages[:1].tolist()
    assert (a.page_bytes, b.page_bytes) == (engine.memory.page_bytes, 4 * engine.memory.page_bytes)
    b.retain()
    b.release()
    b.release()
    assert engine.memory.free() == (pages - 1, slots - 1)
    with pytest.raises(RuntimeError, match="already freed"):
        b.retain()
    with pytest.raises(RuntimeError, match="more often"):
        b.release()
    a.release()


def test_a_dropped_handle_is_freed(engine: Engine) -> None:
    result = engine.run(Round((request(np.random.default_rng(0), 300, (64, 256)),)))
    del result  # the no_leak fixture checks that nothing is left


def test_a_full_pool_refuses_and_takes_nothing() -> None:
    engine = sharp_engine("dummy:tiny", memory_bytes=2 << 20)
    before = engine.memory.free()
    rng = np.random.default_rng(1)
    huge = request(rng, 64 * (engine.memory.pages + 3))
    with pytest.raises(PoolFull) as full:
        engine.run(Round((request(rng, 100, (64,)), huge)))
    assert full.value.pages > 0
    assert engine.memory.free() == before
    held = [engine.run(Round((request(rng, 64, (64,)),))).results[0].checkpoints[0, 64] for _ in range(engine.memory.slots)]
    with pytest.raises(PoolFull) as full:
        engine.run(Round((request(rng, 64, (64,)),)))
    assert (full.value.pages, full.value.slots) == (0, 1)
    held.pop().release()
    engine.run(Round((request(rng, 64, (64,)),)))
    for c in held:
        c.release()
    assert engine.memory.free() == before


@pytest.mark.parametrize("failing", ["launch", "result"])
def test_a_failing_pass_gives_everything_back(engine: Engine, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    forward = engine._forward
    launch = forward.launch

    class Broken:
        def result(self) -> np.ndarray:
            raise OSError("the device is gone")

    def broken(plan: object) -> object:
        if failing == "launch":
            raise OSError("the device is gone")
        launch(plan)  # type: ignore[arg-type]
        return Broken()

    monkeypatch.setattr(forward, "launch", broken)
    forest = random_forest(np.random.default_rng(2), engine.info.vocab_size)
    before = engine.memory.free()
    with pytest.raises(OSError, match="gone"):
        engine.run(Round(forest.requests))
    assert engine.memory.free() == before


def test_a_bad_request_takes_nothing(engine: Engine) -> None:
    good = request(np.random.default_rng(3), 100, (64,))
    bad = Request((Segment(np.array([-1], np.int32)),))
    with pytest.raises(RequestError):
        engine.run(Round((good, bad)))


def test_recycled_memory_does_not_show(engine: Engine) -> None:
    """Pages and slots that other requests have filled give the same bits as fresh ones."""
    rng = np.random.default_rng(4)
    r = request(rng, 200, (64, 128))
    first = engine.run(Round((r,))).results[0].logits[1][0]
    for _ in range(3):
        engine.run(Round((request(rng, 3000, (64,)), request(rng, 700))))
    engine.memory._free_pages.reverse()
    again = engine.run(Round((r,))).results[0].logits[1][0]
    assert torch.equal(torch.from_numpy(first), torch.from_numpy(again))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout_version": 99}, "layout_version"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"m": 100}, "valid m"),
        ({"since": 64}, "parent ends"),
        ({"shapes": {}}, "shapes"),
    ],
)
def test_import_refuses_what_does_not_fit(engine: Engine, change: dict[str, object], message: str) -> None:
    result = engine.run(Round((request(np.random.default_rng(5), 200, (128,)),))).results[0]
    exported = engine.export(result.checkpoints[0, 128])
    with pytest.raises(TransferError, match=message):
        engine.import_(replace(exported, manifest={**exported.manifest, **change}))
    cut = {**exported.tensors, "k": exported.tensors["k"][:, :1]}
    with pytest.raises(TransferError, match="tensor 'k'"):
        engine.import_(replace(exported, tensors=cut))
    for c in result.checkpoints.values():
        c.release()
