"""Batches made by processes of their own, in shared memory, while the device computes."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import ForkProcess
from multiprocessing.sharedctypes import RawArray, RawValue
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.shards import LENGTHS, Batches

SLOTS = 3
"""Batches that each process makes ahead."""


class Feed:
    """An endless stream of flat int32 batches; the order of batches follows from the seed, whatever the number of processes.

    Enter it before the device is used: the processes are forked and share the data. They begin at `begin`, with the tokens a batch that
    the batches have by then. `longest` may be raised while it runs. With no process, batches are made when they are asked for.
    """

    def __init__(self, batches: Batches, processes: int, rank: int = 0) -> None:
        self.batches, self.rank, self.processes = batches, rank, processes
        self.longest = RawValue("i", LENGTHS[0])
        self._size = max(batches.shape(n).numbers for n in batches.by_length)
        context = multiprocessing.get_context("fork")
        shared: Any = RawArray("i", max(1, processes) * SLOTS * (self._size + 1))
        self._slots = np.frombuffer(shared, np.int32).reshape(max(1, processes), SLOTS, self._size + 1)
        self._free = [context.Semaphore(SLOTS) for _ in range(processes)]
        self._full = [context.Semaphore(0) for _ in range(processes)]
        self._workers: list[ForkProcess] = [
            context.Process(target=self._work, args=(w,), daemon=True) for w in range(processes)
        ]
        self._begun = context.Event()
        self._tokens = RawValue("i", batches.tokens)
        self._taken = 0
        self._ended: set[int] = set()

    def __enter__(self) -> Feed:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._workers:
            worker.kill()  # what this process does on SIGTERM, they would do too
            worker.join()

    def begin(self) -> None:
        self._tokens.value = self.batches.tokens
        self._begun.set()

    def _work(self, w: int) -> None:
        torch.set_num_threads(1)
        os.nice(5)
        parent = os.getppid()
        while not self._begun.wait(5):
            if os.getppid() != parent:
                return
        self.batches.tokens = self._tokens.value
        i, slot = w, 0
        while True:
            while not self._free[w].acquire(timeout=5):
                if os.getppid() != parent:
                    return
            self._make(i, self._slots[w, slot])
            self._full[w].release()
            i, slot = i + self.processes, (slot + 1) % SLOTS

    def _make(self, i: int, slot: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        length = self.batches.length(i, self.longest.value)
        slot[0] = length
        self.batches.fill(torch.from_numpy(slot[1:]), i, length, self.rank)

    def next(self, out: Tensor) -> int:
        """Copy the next batch into a flat int32 tensor in host memory; returns its length. What a dead process owes is made here."""
        i, self._taken = self._taken, self._taken + 1
        if not self.processes:
            self._make(i, self._slots[0, 0])
            return self._copy(self._slots[0, 0], out)
        w, slot = i % self.processes, i // self.processes % SLOTS
        if not self._comes(w):
            self._make(i, self._slots[w, slot])
            return self._copy(self._slots[w, slot], out)
        length = self._copy(self._slots[w, slot], out)
        self._free[w].release()
        return length

    def _comes(self, w: int) -> bool:
        """Wait for a batch of a process; False when it has ended."""
        while w not in self._ended:
            if self._full[w].acquire(timeout=1.0):
                return True
            if not self._workers[w].is_alive() and not self._full[w].acquire(block=False):
                print(
                    f"a process that makes batches has ended ({self._workers[w].exitcode}); its batches are made here",
                    flush=True,
                )
                self._ended.add(w)
        return False

    def _copy(self, slot: np.ndarray[Any, np.dtype[np.int32]], out: Tensor) -> int:
        length = int(slot[0])
        n = self.batches.shape(length).numbers
        out[:n].copy_(torch.from_numpy(slot[1 : n + 1]))
        return length
