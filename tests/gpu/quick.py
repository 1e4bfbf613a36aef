"""Engines with random weights drawn on the GPU: true shapes in a second, where the values themselves do not matter."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from flide_engine.cuda import CudaForward
from flide_engine.engine import Engine, make_memory
from flide_engine.models import Model
from flide_engine.models.dummy import dummy_config
from flide_engine.models.qwen3_5 import allocate


def quick_model(size: str, dtype: torch.dtype, layers: int = 0) -> Model:
    """Gains of 1, decays from fast to slow, norms near 1: nothing saturates and early tokens matter. layers: the first so many alone."""
    device, config = torch.device("cuda"), dummy_config(size)
    if layers:
        config = replace(config, layers=layers, layer_types=config.layer_types[:layers])
    weights = allocate(config, device, dtype)
    g = torch.Generator(device=device).manual_seed(0)
    for name, t in weights.by_name.items():
        if t.dim() >= 2:
            t.normal_(0, 1 / math.sqrt(t.shape[-1]), generator=g)
        elif name.endswith("A_log"):
            t.uniform_(0, math.log(16), generator=g)
        elif name.endswith("dt_bias"):
            t.uniform_(math.log(1e-4), math.log(1e-1), generator=g)
        else:
            t.normal_(1 if name.endswith("linear_attn.norm.weight") else 0, 0.1, generator=g)
    return Model(
        f"quick:{size}", config, weights.embed, weights.head, weights.norm, weights.layers, "quick", True, device, dtype
    )


def quick_engine(
    size: str, dtype: torch.dtype, memory_bytes: int = 4 << 30, max_stream: int = 4096, graphs: bool = True, layers: int = 0
) -> Engine:
    model = quick_model(size, dtype, layers)
    memory = make_memory(model.config, memory_bytes, device=model.device, dtype=dtype)
    return Engine(model, memory, CudaForward(model, memory, max_stream, graphs=graphs), max_stream)
