"""The logical trees: Segment, Request, Round. No torch here, and nothing about where anything lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

GRID = 64
"""Delta-rule chunks, K/V pages, key tiles and checkpoints sit at absolute multiples of this many tokens."""

FROM_CHECKPOINT = -1
"""A segment's parent when it starts the request: the request's checkpoint, or position 0 when there is none."""

Tokens = npt.NDArray[np.int32]


class Kind(IntEnum):
    """Where a segment's keys and values live: trunks write pages, locals (branches, candidates) stay in the stream."""

    TRUNK = 0
    LOCAL = 1


TRUNK, LOCAL = Kind
"""By name: reading a member off its class takes Python 3.11 half a microsecond, which adds up over branches."""


class RequestError(ValueError):
    """A request that no engine can run as written. The message names the segment and the rule it breaks."""


class LabelMassUnsupported(RequestError):
    """This engine has no sum over the vocabulary; `EngineInfo.label_mass` says so beforehand."""


class CheckpointLike(Protocol):
    """What a request needs to know of a checkpoint: how many trunk tokens it stands for."""

    @property
    def m(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Readout:
    """Read the logits of `labels` (token ids) at token `row` of the segment (0 is its first token).

    mass: also the log of the sum of exp over the logits of the whole vocabulary, a product with the whole output head.
    """

    row: int
    labels: tuple[int, ...]
    mass: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens with one parent.

    tokens: int32 [n], n >= 0. Position goes on from the parent's end.
    parent: index of an earlier segment of the same request, or FROM_CHECKPOINT.
    kind: TRUNK or LOCAL. A trunk's parent is a trunk or FROM_CHECKPOINT, and a trunk starts on the grid.
    saves: absolute positions, ascending multiples of GRID in (start, start + n], at which a checkpoint is taken. Trunks only.
    readouts: rows whose label logits come back.
    """

    tokens: Tokens
    parent: int = FROM_CHECKPOINT
    kind: Kind = Kind.TRUNK
    saves: tuple[int, ...] = ()
    readouts: tuple[Readout, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Request:
    """A tree of segments, parents before children.

    checkpoint: what root segments go on from; None starts at position 0.
    share_key: requests of one round with equal, non-empty keys may compute a common prefix once; others never share.
    """

    segments: tuple[Segment, ...]
    checkpoint: CheckpointLike | None = None
    share_key: bytes = b""
    _valid: list[tuple[int, int | None]] = field(default_factory=list, init=False, repr=False, compare=False)
    """(vocab_size, max_context) that it was found valid for: whoever takes it in checks, and the engine checks again."""

    @property
    def start(self) -> int:
        """Position of the first token of a root segment."""
        return 0 if self.checkpoint is None else self.checkpoint.m

    def starts(self) -> list[int]:
        """Absolute position of each segment's first token."""
        out: list[int] = []
        start, segments = self.start, self.segments
        for s in segments:
            out.append(start if s.parent == FROM_CHECKPOINT else out[s.parent] + len(segments[s.parent].tokens))
        return out

    def tokens(self) -> int:
        """Tokens over all segments."""
        return sum([len(s.tokens) for s in self.segments])

    def validate(self, vocab_size: int, max_context: int | None = None) -> None:
        """Raise RequestError unless every rule of Segment holds and every token and label is below vocab_size."""
        if (vocab_size, max_context) in self._valid:
            return
        if not self.segments:
            raise RequestError("a request needs at least one segment")
        if self.start % GRID:
            raise RequestError(f"the checkpoint ends at {self.start}, which is no multiple of {GRID}")
        for i, (s, start) in enumerate(zip(self.segments, self._checked_starts(), strict=True)):
            n = len(s)
            if s.tokens.dtype != np.int32 or s.tokens.ndim != 1:
                raise RequestError(f"segment {i}: tokens must be a one-dimensional int32 array")
            if max_context is not None and start + n > max_context:
                raise RequestError(f"segment {i} ends at {start + n} tokens, beyond the model's context of {max_context}")
            if s.kind is TRUNK:
                if start % GRID:
                    raise RequestError(f"segment {i}: a trunk must start on a multiple of {GRID}, not at {start}")
                if s.parent != FROM_CHECKPOINT and self.segments[s.parent].kind is not TRUNK:
                    raise RequestError(f"segment {i}: a trunk cannot grow from a branch")
            elif s.saves:
                raise RequestError(f"segment {i}: a branch takes no checkpoint")
            if s.saves and (
                list(s.saves) != sorted(set(s.saves)) or any(p % GRID or not start < p <= start + n for p in s.saves)
            ):
                raise RequestError(f"segment {i}: saves must be ascending multiples of {GRID} in ({start}, {start + n}]")
            for r in s.readouts:
                if not 0 <= r.row < n:
                    raise RequestError(f"segment {i}: readout row {r.row} outside its {n} tokens")
                if not r.labels or min(r.labels) < 0 or max(r.labels) >= vocab_size:
                    raise RequestError(f"segment {i}: a readout needs labels, each in 0..{vocab_size - 1}")
        self._check_tokens(vocab_size)
        self._valid.append((vocab_size, max_context))

    def _check_tokens(self, vocab_size: int) -> None:
        """All at once; which segment is at fault is found when one is."""

        def beyond(tokens: Tokens) -> bool:
            return (
                bool(len(tokens)) and int(tokens.view(np.uint32).max()) >= vocab_size
            )  # a negative id is a huge one, unsigned

        if beyond(np.concatenate([s.tokens for s in self.segments])):
            i = next(i for i, s in enumerate(self.segments) if beyond(np.ascontiguousarray(s.tokens)))
            raise RequestError(f"segment {i}: token ids must lie in 0..{vocab_size - 1}")

    def _checked_starts(self) -> list[int]:
        for i, s in enumerate(self.segments):
            if not FROM_CHECKPOINT <= s.parent < i:
                raise RequestError(f"segment {i}: parent {s.parent} is not an earlier segment")
        return self.starts()


@dataclass(frozen=True, slots=True)
class Round:
    """The requests that one forward pass answers together. Their order never changes an answer."""

    requests: Sequence[Request] = field(default_factory=tuple)
