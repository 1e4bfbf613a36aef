"""An engine whose device does nothing: the real planning, staging and collecting, passes that only take time, logits of zero.

What `null_engine` leaves out is here: rounds are planned, written to a metadata block as for a GPU, and overlap as they do there.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from flide_engine.cuda.metadata import Layout, block_size, fill, layout_of
from flide_engine.cuda.shape import PassShape, shape_of
from flide_engine.engine import Engine
from flide_engine.kernels.tiles import FIRST_SPLIT
from flide_engine.memory import Memory
from flide_engine.models import Model
from flide_engine.plan import RoundPlan
from flide_engine.selftest import SelfTest
from null_engine import SHAPE

PASS, ROW = 1.8e-3, 2.6e-6
"""Seconds of a pass and of each of its rows: about those of 0.8B on an H200."""
PAGES, SLOTS = 16384, 2000
"""As many as 0.8B has in 48 GiB."""
MAX_STREAM = 16384


@dataclass(frozen=True)
class Staged:
    plan: RoundPlan
    shape: PassShape
    layout: Layout


class Landing:
    """Logits that are there at a time of time.perf_counter."""

    def __init__(self, at: float, labels: int) -> None:
        self._at, self._labels = at, labels

    def done(self) -> bool:
        return time.perf_counter() >= self._at

    def result(self) -> np.ndarray:
        time.sleep(max(0.0, self._at - time.perf_counter()))
        return np.zeros(self._labels, np.float32)


class IdleForward:
    """seconds: of a pass of so many rows are `base + each * rows`; one pass after the other."""

    numerics, label_mass = "idle", False

    def __init__(self, base: float, each: float) -> None:
        self._base, self._each, self._free = base, each, 0.0
        self._block = np.zeros(0, np.int32)

    def self_test(self) -> SelfTest:
        return SelfTest(True, ())

    def stage(self, plan: RoundPlan) -> Staged:
        shape = shape_of(plan, FIRST_SPLIT)
        layout = layout_of(shape)
        if (size := block_size(plan, layout)) > len(self._block):
            self._block = np.zeros(2 * size, np.int32)
        fill(self._block[:size], plan, layout)
        return Staged(plan, shape, layout)

    def drop(self, staged: Staged) -> None:
        pass

    def idle(self) -> bool:
        return False

    def launch(self, staged: Staged) -> Landing:
        self._free = max(self._free, time.perf_counter()) + self._base + self._each * staged.plan.rows
        return Landing(self._free, len(staged.plan.label_ids))


def idle_engine(vocab_size: int, base: float = PASS, each: float = ROW, slots: int = SLOTS) -> Engine:
    memory = Memory(SHAPE, PAGES, slots, device=torch.device("cpu"), dtype=torch.float32, state_dtype=torch.float32)
    config = SimpleNamespace(vocab_size=vocab_size, max_context=1 << 18)
    model = SimpleNamespace(name="idle", digest="00" * 32, config=config, untrained=True)
    engine = Engine(cast(Model, model), memory, IdleForward(base, each), MAX_STREAM)
    engine.info = dataclasses.replace(engine.info, device="cuda:0", asynchronous=True)
    return engine


def open_idle(settings: Any) -> Any:
    """A service around an idle engine, with the embedded model's tokenizer."""
    from datetime import date

    from flide_agent import default_model
    from flide_agent.decide import Served
    from flide_agent.local import Service
    from flide_agent.prompts import Prompts

    prompts = Prompts.load(default_model.DIRECTORY)
    engine = idle_engine(prompts.vocab_size)
    return Service.around(settings, engine, prompts, Served("idle", True, engine.info.max_context, date(2026, 1, 1)))


def tell_threads(*_: object) -> None:
    """A line of JSON on stdout: names of threads by their number at the operating system."""
    names = {t.native_id: t.name for t in threading.enumerate()}
    print("threads " + json.dumps(names), flush=True)


def main() -> None:
    """`python idle_engine.py STORE FRONT_ENDS`: a server on a free port. SIGUSR1: it tells its threads."""
    from flide_agent.api.server import serve
    from flide_agent.settings import Settings

    signal.signal(signal.SIGUSR1, tell_threads)
    settings = Settings(
        store=Path(sys.argv[1]), port=0, front_ends=int(sys.argv[2]), host_bytes=0, max_queue=4096, max_queue_tokens=1 << 26,
        max_wait_seconds=0.0, log_format="text",
    )  # fmt: skip
    serve(settings, open_idle)


if __name__ == "__main__":
    main()
