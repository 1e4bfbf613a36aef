"""Process-wide settings that fix the order of sums in library products, which must stand before CUDA starts; what a device has."""

from __future__ import annotations

import os
import warnings

import torch

VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}
"""Workspaces too small for split-K: a product then sums each element's K terms in one order, whatever the number of rows."""


def from_hopper(device: torch.device) -> bool:
    """Whether a device has what came with compute capability 9.0: the bulk copy engine, programmatic dependent launch."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def prepare_process() -> None:
    """Take split-K, reduced-precision reductions and TF32 out of this process's products.

    Warns when CUDA has started with other settings: the self-test then decides product by product, and may choose slower ones.
    """
    late = [f"{name}={value}" for name, value in VARIABLES.items() if os.environ.get(name) != value]
    if late and torch.cuda.is_initialized():
        warnings.warn(
            f"CUDA started before flide_engine.cuda was imported; for the fastest stable products set {' '.join(late)} "
            "in the environment",
            RuntimeWarning,
            stacklevel=3,
        )
    os.environ.update(VARIABLES)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
