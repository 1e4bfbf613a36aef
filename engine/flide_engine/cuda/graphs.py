"""Captured passes by shape. A graph holds addresses and launch sizes alone; what it computes is in the metadata block."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

import torch

from flide_engine.cuda.shape import PassShape

MOST_GRAPHS = 512


class Graphs:
    """At most `most` graphs, those used longest ago dropped first, with one memory pool. Used by one thread.

    A shape is captured when it is first met, unless it may be the first to need some kernel: kernels are compiled and loaded by a
    pass that runs launch by launch. seconds: that captures took.
    """

    def __init__(self, device: torch.device, most: int = MOST_GRAPHS) -> None:
        self._device, self._most = device, most
        self._graphs: OrderedDict[PassShape, torch.cuda.CUDAGraph] = OrderedDict()
        self._compiled: set[tuple[object, ...]] = set()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self.captured = self.replayed = self.eager = 0
        self.seconds = 0.0

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Forget all graphs: an address in them has changed."""
        torch.cuda.current_stream(self._device).synchronize()
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()  # a pool that no graph uses any more cannot be used again

    def run(self, shape: PassShape, enqueue: Callable[[], None]) -> None:
        """Enqueue a pass: as its graph when there is one, else launch by launch. `enqueue` reads what the graph reads."""
        graph = self._graphs.get(shape)
        if graph is None:
            if (kernels := shape.kernels()) not in self._compiled:
                self.eager += 1
                enqueue()
                self._compiled.add(kernels)
                return
            graph = self._graphs[shape] = self._capture(enqueue)
            while len(self._graphs) > self._most:
                # A graph must not go while a replay of it may still run.
                torch.cuda.current_stream(self._device).synchronize()
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(shape)
        graph.replay()
        self.replayed += 1

    def _capture(self, enqueue: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record without running and without a device synchronisation; other threads go on using the GPU."""
        began = time.perf_counter()
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                enqueue()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        self.captured += 1
        self.seconds += time.perf_counter() - began
        return graph
