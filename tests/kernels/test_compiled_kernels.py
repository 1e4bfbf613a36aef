"""`PassShape.kernels`: passes for which it is equal launch the same compiled kernels, so that a capture never meets one to compile."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from flide_engine.cuda.capacity import capacities
from flide_engine.cuda.forward import NOTHING, CudaForward
from flide_engine.cuda.metadata import block_size, device_round, fill, layout_of
from flide_engine.cuda.products import Products
from flide_engine.cuda.shape import PassShape, power_of_four
from flide_engine.engine import make_memory
from flide_engine.kernels import attention
from flide_engine.kernels.attention import SHORT
from flide_engine.models import load_model
from test_tile_heights import two_heights

LIMIT, SHAPES = 8192, 600


class Launches:
    """Instead of running kernels: what Triton compiles each for, by its rules (a size is 1, a multiple of 16, or neither; a pointer is
    aligned to 16 bytes or not), and torch's own choice by the number of indices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from triton.runtime.interpreter import InterpretedFunction

        self.seen: set[tuple[object, ...]] = set()
        monkeypatch.setattr(InterpretedFunction, "run", lambda kernel, *args, **kwargs: self.launch(kernel, args, kwargs))
        select = torch.index_select

        def counted(source: torch.Tensor, dim: int, index: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            self.seen.add(("index_select", len(index) > 16))
            return select(source, dim, index, **kwargs)

        monkeypatch.setattr(torch, "index_select", counted)

    def launch(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = inspect.signature(kernel.fn).parameters
        free = kernel.kwargs["do_not_specialize"] or ()
        given = dict(zip(parameters, args, strict=False)) | kwargs
        del given["grid"], given["warmup"]
        for name, value in given.items():
            if name not in parameters or "constexpr" in str(parameters[name].annotation):
                continue
            if isinstance(value, torch.Tensor):
                given[name] = value.dtype, value.data_ptr() % 16 == 0
            elif isinstance(value, int):
                given[name] = "any" if name in free else 1 if value == 1 else 16 if value % 16 == 0 else 2
            elif isinstance(value, float):
                given[name] = "float"
            elif value is not None:
                given[name] = "descriptor", tuple(value.block_shape), value.base.dtype
        self.seen.add((kernel.fn.__name__, *given.items()))


class NoProducts(Products):
    """What a pass does beside its products."""

    def __call__(self, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out


def random_shape(rng: np.random.Generator) -> PassShape:
    rows, segments = int(rng.choice(capacities(LIMIT))), int(rng.choice([4, 8, 16, 32, 64]))
    trunk_levels, local_levels = int(rng.integers(0, 3)), int(rng.integers(0, 4))
    return PassShape(
        rows=rows,
        readouts=min(rows, power_of_four(1, max(16, segments)) * int(rng.choice([1, 4]))) if rng.random() < 0.8 else 0,
        segments=segments,
        trunks=0 if not trunk_levels else int(rng.choice([1, segments])),
        trunk_levels=trunk_levels,
        local_levels=local_levels,
        depth=int(rng.choice([1, 2, 4])),
        spans=int(rng.choice([1, 2, 4])),
        most_labels=int(rng.choice([16, 64])),
        locals=0 if not local_levels else int(rng.choice([1, segments])),
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted on machines without a GPU")
@pytest.mark.parametrize("short", [0, SHORT], ids=["one tile height", "two"])
@pytest.mark.parametrize("name", ["dummy:tiny", "dummy:tiny6"])
def test_equal_kernels_are_the_same_compilations(name: str, short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SHORT", short)
    two_heights(monkeypatch, name.removeprefix("dummy:"))
    model = load_model(name, device="cpu", dtype=torch.float32)
    memory = make_memory(model.config, 32 << 20, device=torch.device("cpu"), dtype=torch.float32)
    forward: Any = CudaForward(model, memory, LIMIT)
    forward._products = NoProducts()
    forward._early = bool(short)  # nothing is run, so that no GPU is needed
    launches, rng = Launches(monkeypatch), np.random.default_rng(0)
    found: dict[tuple[object, ...], tuple[PassShape, set[tuple[object, ...]]]] = {}
    compared, all_, heights = 0, set(), set()
    block = torch.zeros(1 << 20, dtype=torch.int32)
    for _ in range(SHAPES):
        shape = random_shape(rng)
        layout = layout_of(shape)
        assert block_size(NOTHING, layout) <= len(block)
        fill(block.numpy(), NOTHING, layout)
        forward._workspace.reserve(shape)
        launches.seen = set()
        with torch.inference_mode():
            forward.enqueue(device_round(shape, layout, block), torch.zeros(16))
        all_ |= launches.seen
        heights |= {dict(k[1:])["ROWS"] for k in launches.seen if k[0] == "_fork_attention" and dict(k[1:])["TOKENS"] > 1}
        first, kernels = found.setdefault(forward._workspace.kernels(shape), (shape, launches.seen))
        assert kernels == launches.seen, f"{first} and {shape}: {kernels ^ launches.seen}"
        compared += first is not shape
    assert compared > 100
    assert heights == ({32, 64} if short else {64})
    print(f"{name}: {len(found)} kinds of {SHAPES} shapes, {compared} compared, {len(all_)} compilations")
