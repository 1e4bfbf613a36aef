"""An engine that computes nothing: real pools and handles, logits of zero, at once. What is left is the service's own time."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
from flide_engine.engine import EngineInfo, RequestResult, RoundResult
from flide_engine.memory import LAYOUT_VERSION, Checkpoint, Exported, Memory, MemoryShape, export_checkpoint, import_checkpoint
from flide_engine.segments import GRID, Request, Round
from flide_engine.selftest import SelfTest

SHAPE = MemoryShape(
    full_layers=1, kv_heads=1, head_dim=1, linear_layers=1, value_heads=1, key_dim=1, value_dim=1, conv_channels=1, conv_taps=3
)
NO_SLOTS = np.zeros(0, np.int32)


class NullEngine:
    """ran: when the last round came in, of time.perf_counter."""

    def __init__(self, vocab_size: int, pages: int = 1 << 17, slots: int = 1 << 14) -> None:
        self.memory = Memory(SHAPE, pages, slots, device=torch.device("cpu"), dtype=torch.float32, state_dtype=torch.float32)
        self.self_test = SelfTest(True, ())
        self.info = EngineInfo(
            model="null", weights_digest="00" * 32, dtype="float32", device="cpu", layout_version=LAYOUT_VERSION,
            numerics="null", vocab_size=vocab_size, max_context=1 << 20, max_stream=1 << 20, untrained=True,
            kv_bytes_per_token=8, state_bytes=self.memory.slot_bytes, pages=pages, slots=slots,
        )  # fmt: skip
        self.ran = 0.0

    def run(self, round: Round) -> RoundResult:
        self.ran = started = time.perf_counter()
        results = tuple(self._answer(r) for r in round.requests)
        tokens = sum(r.tokens() for r in round.requests)
        return RoundResult(results, tokens, 1, time.perf_counter() - started)

    def _answer(self, request: Request) -> RequestResult:
        logits = tuple(tuple(np.zeros(len(r.labels), np.float32) for r in s.readouts) for s in request.segments)
        return RequestResult(logits, self._saves(request), request.tokens(), 0)

    def _saves(self, request: Request) -> dict[tuple[int, int], Checkpoint]:
        saves, start = request.segments[0].saves, request.start
        if not saves:
            return {}
        before = NO_SLOTS if request.checkpoint is None else request.checkpoint.pages  # type: ignore[attr-defined]
        new, slots = self.memory.take((saves[-1] - start) // GRID, len(saves))
        out = {}
        for position, slot in zip(saves, slots, strict=True):
            pages = np.concatenate([before, new[: (position - start) // GRID]])
            self.memory.retain(pages, NO_SLOTS)
            out[0, position] = Checkpoint(self.memory, position, pages, int(slot))
        self.memory.release(new, NO_SLOTS)
        return out

    def export(self, checkpoint: Checkpoint, since: int = 0) -> Exported:
        return export_checkpoint(checkpoint, since)

    def import_(self, exported: Exported, parent: Checkpoint | None = None) -> Checkpoint:
        return import_checkpoint(self.memory, exported, parent)


def open_null(settings: object) -> object:
    """A service around a null engine, with the embedded model's tokenizer."""
    from datetime import date

    from flide_agent import default_model
    from flide_agent.decide import Served
    from flide_agent.local import Service
    from flide_agent.prompts import Prompts
    from flide_agent.settings import Settings

    assert isinstance(settings, Settings)
    prompts = Prompts.load(default_model.DIRECTORY)
    engine = NullEngine(prompts.vocab_size)
    return Service.around(settings, engine, prompts, Served("null", True, engine.info.max_context, date(2026, 1, 1)))  # type: ignore[arg-type]


def main() -> None:
    """`python null_engine.py STORE [FRONT_ENDS]`: a server on a free port."""
    from flide_agent.api.server import serve
    from flide_agent.settings import Settings

    fronts = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    serve(Settings(store=Path(sys.argv[1]), port=0, max_queue=4096, front_ends=fronts), open_null)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
