"""The forward pass on CUDA: Triton kernels and library products over metadata that lives on the GPU.

Reading order: `process` (settings that must stand before CUDA starts), `capacity` (row counts in use), `products` (x @ w.T with
one order of sums, and its self-test), `shape` (the sizes a pass is launched with), `metadata` (a plan as one int32 block on the
device), `workspace` (activations), `linear` and `full` (the two mixings), `forward` (the pass), `graphs` (captured passes by
shape), `load` (an Engine on a GPU). Nothing here is imported on a machine without a GPU.
"""

from flide_engine.cuda.process import prepare_process

prepare_process()

from flide_engine.cuda.forward import CudaForward  # noqa: E402 - the process must be prepared before torch starts CUDA
from flide_engine.cuda.load import load_cuda_engine  # noqa: E402

__all__ = ["CudaForward", "load_cuda_engine"]
