"""Captured passes by shape. A graph holds addresses and launch sizes alone; what it computes is in the metadata block.

No pass waits for a capture while the graph of a larger shape can be lent to it (`shape.lender`): the shape that it wanted is
captured when nothing runs or waits.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Protocol

import torch

from flide_engine.cuda.shape import PassShape, lender, missing_ahead

MOST_GRAPHS = 512
MOST_WANTED = 256
"""Shapes remembered as wanted."""
LEAST_PADDING = 64
"""Rows that count for a borrowed pass at least: it may pay in launches and table entries instead."""
ENOUGH_PADDING = 4_096
"""Rows of padding after which a shape is captured though a pass waits: 11 ms of 0.8B, 50 of 4B, and a capture takes 25 to 45. Without
this an engine that is never idle would pad for ever."""


class Replayed(Protocol):
    def replay(self) -> None:
        """Enqueue the pass."""
        ...


class Recorder(Protocol):
    """What captures on a device."""

    def capture(self, enqueue: Callable[[], None]) -> Replayed:
        """Record what `enqueue` enqueues, without running it."""
        ...

    def settle(self) -> None:
        """Wait for what was enqueued: a graph must not go while a replay of it may still run."""
        ...

    def renew(self) -> None:
        """All graphs are gone."""
        ...


class Graphs:
    """At most `most` graphs, those used longest ago dropped first. Used by one thread.

    A shape without a graph borrows one (`choose`); where there is none to borrow it is captured, unless it may be the first to need
    some kernel: kernels are compiled and loaded by a pass that runs launch by launch. limit: row capacity of the longest pass.
    kernels: what decides which compiled kernels a pass of a shape needs.
    captured, eager: captures and passes launch by launch. replayed: passes run as graphs, of which `borrowed` in a larger shape than
    their own. seconds: that captures took.
    """

    def __init__(
        self,
        recorder: Recorder,
        limit: int,
        most: int = MOST_GRAPHS,
        kernels: Callable[[PassShape], tuple[object, ...]] = PassShape.kernels,
    ) -> None:
        self._recorder, self._limit, self._most, self._kernels = recorder, limit, most, kernels
        self._graphs: OrderedDict[PassShape, Replayed] = OrderedDict()
        self._compiled: set[tuple[object, ...]] = set()
        self._wanted: Counter[PassShape] = Counter()  # rows of padding that passes paid for want of a graph
        self._guess: PassShape | None = None
        self._latest: PassShape | None = None
        self.captured = self.replayed = self.eager = self.borrowed = 0
        self.seconds = 0.0

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Forget all graphs and what was wanted: an address in them has changed."""
        self._recorder.settle()
        self._graphs.clear()
        self._wanted.clear()
        self._guess = self._latest = None
        self._recorder.renew()

    def choose(self, wanted: PassShape) -> PassShape:
        """The shape to stage a pass in: one whose graph it borrows where it has none of its own, else the one it wants."""
        if wanted in self._graphs or self._wanted[wanted] >= ENOUGH_PADDING:
            return wanted
        return lender(wanted, self._graphs, self._limit) or wanted

    def run(self, shape: PassShape, enqueue: Callable[[], None], wanted: PassShape) -> None:
        """Enqueue a pass staged in `shape`, as its graph when there is one. `enqueue` reads what the graph reads.

        wanted: its own shape; remembered when this is another.
        """
        self._latest = wanted
        if shape != wanted:
            self.borrowed += 1
            self._want(wanted, shape.rows - wanted.rows)
        if shape not in self._graphs:
            if not self.compiled(shape):
                self.eager += 1
                enqueue()
                self._compiled.add(self._kernels(shape))
                self._want(shape, 0)
                return
            self.capture(shape, enqueue)
        self._graphs.move_to_end(shape)
        self._graphs[shape].replay()
        self.replayed += 1

    def compiled(self, shape: PassShape) -> bool:
        """Whether all kernels of a shape are compiled and loaded."""
        return self._kernels(shape) in self._compiled

    def next_wanted(self) -> PassShape | None:
        """The shape that cost passes most and has no graph yet, which is forgotten with this; None when there is none."""
        while self._wanted:
            (shape, _) = max(self._wanted.items(), key=lambda x: x[1])
            del self._wanted[shape]
            if shape not in self._graphs:
                return shape
        return None

    def next_guess(self, fits: Callable[[PassShape], bool]) -> PassShape | None:
        """A shape that passes like the latest may borrow soon; None when there is none, no room for guesses, or the last one could not
        be captured.

        fits: whether a shape needs no memory that is not held yet.
        """
        failed = self._guess is not None and self._guess not in self._graphs
        if self._latest is None or failed or 2 * len(self) >= self._most:
            return None

        def usable(shape: PassShape) -> bool:
            return self.compiled(shape) and fits(shape)

        guess = missing_ahead(self._latest, self._graphs, self._limit, usable)
        self._guess = guess or self._guess
        return guess

    def capture(self, shape: PassShape, enqueue: Callable[[], None]) -> None:
        """Record the pass of a shape whose kernels are compiled, without running it."""
        began = time.perf_counter()
        graph = self._recorder.capture(enqueue)
        self.captured += 1
        self.seconds += time.perf_counter() - began
        while len(self._graphs) >= self._most:
            self._recorder.settle()
            self._graphs.popitem(last=False)
        self._graphs[shape] = graph
        self._wanted.pop(shape, None)

    def _want(self, shape: PassShape, padding: int) -> None:
        self._wanted[shape] += max(padding, LEAST_PADDING)
        if len(self._wanted) > MOST_WANTED:
            del self._wanted[min(self._wanted, key=self._wanted.__getitem__)]


class CudaRecorder:
    """Captures on a stream and into a memory pool of its own, without a device synchronisation; other threads go on using the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, enqueue: Callable[[], None]) -> torch.cuda.CUDAGraph:
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
        return graph

    def settle(self) -> None:
        torch.cuda.current_stream(self._device).synchronize()

    def renew(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()  # a pool that no graph uses any more cannot be used again
