"""An Engine on a GPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from flide_engine.cuda.forward import CudaForward
from flide_engine.kernels.language import MISSING
from flide_engine.models import load_model

if TYPE_CHECKING:
    from flide_engine.engine import Engine


def load_cuda_engine(
    engine: type[Engine], name: str, device: torch.device, dtype: torch.dtype, memory_bytes: int, max_stream: int, graphs: bool
) -> Engine:
    """Load a model to a GPU and check its products there; prints the products that had to take the slower path.

    Raises ValueError when the machine, triton or the dtype cannot serve, ModelError for the model, and
    torch.cuda.OutOfMemoryError when weights and `memory_bytes` do not fit.
    """
    from flide_engine.engine import make_memory

    if not torch.cuda.is_available():
        raise ValueError("no CUDA device is available; use device='cpu'")
    if MISSING:
        raise ValueError(MISSING)
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"the CUDA engine runs bfloat16 or float32, not {dtype}")
    if torch.cuda.get_device_capability(device) < (8, 0):
        raise ValueError("the CUDA engine needs compute capability 8.0 or newer")
    model = load_model(name, device=device, dtype=dtype)
    memory = make_memory(model.config, memory_bytes, device=device, dtype=dtype)
    made = engine(model, memory, CudaForward(model, memory, max_stream, graphs=graphs), max_stream)
    for shape in made.self_test.slower:
        print(f"product [{shape.out}, {shape.inner}] runs in fixed order: {shape.reason}", file=sys.stderr)
    return made
