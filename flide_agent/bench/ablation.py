"""The engine's requests, whole or without one of its ideas, as the paper's ablation takes them away one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from flide_engine.segments import GRID, CheckpointLike, Kind, Readout, Request, Segment

from flide_agent.bench.shapes import Shape

if TYPE_CHECKING:
    from flide_engine.engine import Engine

OPTIONS = 4
HEAD_ROWS = 1024
"""Rows of one product with the vocabulary: logits of more would take gigabytes."""


@dataclass(frozen=True, slots=True)
class Switches:
    """fork: a state's questions share it; else each is a request of its own. flat: requests share a round; else one pass each.
    readout: the last layer and the head for readout rows alone; else for every row, over the whole vocabulary.
    graphs: captured graphs, on a GPU."""

    fork: bool = True
    graphs: bool = True
    flat: bool = True
    readout: bool = True

    @property
    def name(self) -> str:
        off = [name for name in self.__slots__ if not getattr(self, name)]
        return "whole" if not off else " ".join(f"no-{name}" for name in off)


ABLATION = (Switches(), Switches(graphs=False), Switches(flat=False), Switches(readout=False), Switches(fork=False))
"""The slowest last, so that a run that is cut off has all others."""


class Drawn:
    """Requests of random tokens. Everything follows from the number given with each shape."""

    def __init__(self, vocab_size: int, switches: Switches) -> None:
        self._low, self._high = min(1000, vocab_size // 4), min(200_000, vocab_size)
        self._switches = switches

    def request(
        self, shape: Shape, number: int, checkpoint: CheckpointLike | None = None, *, save: bool = True
    ) -> list[Request]:
        """One request, or one for each question. checkpoint: what the state goes on from. save: the state's last grid position."""
        rng = np.random.default_rng(number)
        start = 0 if checkpoint is None else checkpoint.m
        state = self._tokens(rng, shape.state)
        questions = [self._tokens(rng, n) for n in shape.questions]
        end = (start + shape.state) // GRID * GRID
        saves = (end,) if save and end > start else ()
        if self._switches.fork:
            return [Request((self._trunk(state, saves), *map(self._branch, questions)), checkpoint)]
        return [Request((self._trunk(state, ()), self._branch(q)), checkpoint) for q in questions]

    def trunk(self, tokens: int, number: int) -> Request:
        """A history alone, with a checkpoint at its end, a multiple of 64."""
        return Request((Segment(self._tokens(np.random.default_rng(number), tokens), saves=(tokens,)),))

    def _tokens(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.integers(self._low, self._high, n).astype(np.int32)

    def _trunk(self, tokens: np.ndarray, saves: tuple[int, ...]) -> Segment:
        return Segment(tokens, saves=saves, readouts=self._every_row(len(tokens)))

    def _branch(self, tokens: np.ndarray) -> Segment:
        labels = tuple(range(30, 30 + OPTIONS))
        last = Readout(len(tokens) - 1, labels)
        return Segment(tokens, 0, Kind.LOCAL, readouts=(*self._every_row(len(tokens) - 1), last))

    def _every_row(self, rows: int) -> tuple[Readout, ...]:
        return () if self._switches.readout else tuple(Readout(i, (30,)) for i in range(rows))


def answers(logits: Sequence[Sequence[Sequence[np.ndarray]]]) -> list[np.ndarray]:
    """Label logits of every question, whatever way its requests were cut. logits: of each request, by segment and readout."""
    return [segment[-1] for request in logits for segment in request[1:]]


def whole_vocabulary(engine: Engine, rows: int) -> Callable[[], None]:
    """Logits of the whole vocabulary for so many rows, as an engine without selective readout computes them after each pass."""
    head = engine.model.head
    x = torch.randn(min(rows, HEAD_ROWS), head.shape[1], device=head.device, dtype=head.dtype)
    y = torch.empty(len(x), head.shape[0], device=head.device, dtype=head.dtype)

    def launch() -> None:
        with torch.inference_mode():
            for start in range(0, rows, HEAD_ROWS):
                n = min(HEAD_ROWS, rows - start)
                torch.mm(x[:n], head.t(), out=y[:n])

    return launch
