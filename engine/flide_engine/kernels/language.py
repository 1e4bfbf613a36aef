"""Triton, or a stand-in that lets the kernels be imported (never run) where it is not installed."""

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    MISSING = ""
except ImportError as error:  # CPU machines: the reference path needs no triton
    MISSING = f"triton cannot be imported ({error}); install flide-agent[gpu]"

    class _NoKernel:
        """A kernel of a machine without triton: it exists, and says so when it is launched."""

        def __init__(self, function: Any) -> None:
            self.fn = function

        def __getitem__(self, grid: Any) -> Any:
            raise RuntimeError(MISSING)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(MISSING)

    class _NoTriton:
        @staticmethod
        def jit(function: Any = None, **options: Any) -> Any:
            return _NoKernel if function is None else _NoKernel(function)

        @staticmethod
        def cdiv(a: int, b: int) -> int:
            return -(-a // b)

        @staticmethod
        def next_power_of_2(n: int) -> int:
            return 1 << max(n - 1, 0).bit_length()

    triton = _NoTriton()
    tl = None
    TensorDescriptor = None

__all__ = ["MISSING", "TensorDescriptor", "tl", "triton"]
