"""Random requests for tests: trees of segments with readouts, and the plain prompt that each readout stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from flide_engine.segments import FROM_CHECKPOINT, GRID, CheckpointLike, Kind, Readout, Request, Segment, Tokens

LENGTHS = (1, 2, 3, 63, 64, 65, 128)


@dataclass(frozen=True)
class Forest:
    """Requests of one round and, per request, the tokens from position 0 that the request's root goes on from."""

    requests: tuple[Request, ...]
    before: tuple[Tokens, ...]

    def prompts(self) -> list[tuple[Tokens, tuple[int, ...], tuple[int, int, int]]]:
        """(whole prompt up to the readout row, labels, (request, segment, readout)) of every readout."""
        out = []
        for i, (r, before) in enumerate(zip(self.requests, self.before, strict=True)):
            for j, s in enumerate(r.segments):
                for k, readout in enumerate(s.readouts):
                    own = path_tokens(r, j, before)
                    out.append((own[: len(own) - len(s) + readout.row + 1], readout.labels, (i, j, k)))
        return out


def path_tokens(request: Request, segment: int, before: Tokens) -> Tokens:
    """All tokens from position 0 to the end of a segment."""
    parts = []
    while segment != FROM_CHECKPOINT:
        parts.append(request.segments[segment].tokens)
        segment = request.segments[segment].parent
    return np.concatenate([before, *parts[::-1]])


def length(rng: np.random.Generator, most: int = 300) -> int:
    """A length of 1 to `most`, the ones around the grid and the conv window more often."""
    return int(rng.choice(LENGTHS)) if rng.random() < 0.5 else int(rng.integers(1, most + 1))


def random_request(
    rng: np.random.Generator,
    vocab: int,
    *,
    depth: int,
    branches: int,
    start: int = 0,
    checkpoint: CheckpointLike | None = None,
    trunk: Tokens | None = None,
    most: int = 300,
    share_key: bytes = b"",
    saves: bool = True,
) -> Request:
    """A trunk with a tree of `branches` local segments of at most `depth` levels (the trunk is the first), a readout on each."""

    def draw(n: int) -> Tokens:
        return rng.integers(0, vocab, n).astype(np.int32)

    def readouts(n: int) -> tuple[Readout, ...]:
        labels = tuple(rng.choice(vocab, int(rng.integers(2, 12)), replace=False).tolist())
        rows = {n - 1} if rng.random() < 0.8 else {n - 1, int(rng.integers(0, n))}
        return tuple(Readout(row, labels) for row in sorted(rows))

    tokens = draw(length(rng, most)) if trunk is None else trunk
    grid = range(start + GRID, start + len(tokens) + 1, GRID)
    kept = tuple(p for p in grid if saves and rng.random() < 0.5)
    root = Segment(
        tokens, saves=kept, readouts=readouts(len(tokens)) if len(tokens) and (depth == 1 or rng.random() < 0.3) else ()
    )
    segments, levels = [root], [1]
    for _ in range(branches if depth > 1 else 0):
        parents = [i for i, level in enumerate(levels) if level < depth]
        parent = int(rng.choice(parents))
        n = length(rng, most)
        segments.append(Segment(draw(n), parent, Kind.LOCAL, (), readouts(n)))
        levels.append(levels[parent] + 1)
    return Request(tuple(segments), checkpoint, share_key)


def random_forest(rng: np.random.Generator, vocab: int, *, most: int = 300, requests: int | None = None) -> Forest:
    """One to four fresh requests of depth 1 to 4 and up to 12 branches; some share a prefix and a share key."""
    count = int(rng.integers(1, 5)) if requests is None else requests
    common = rng.integers(0, vocab, length(rng, most)).astype(np.int32)
    made = []
    for _ in range(count):
        trunk = None
        if rng.random() < 0.5:
            trunk = np.concatenate([common, rng.integers(0, vocab, length(rng, 100)).astype(np.int32)])
        made.append(
            random_request(
                rng, vocab, depth=int(rng.integers(1, 5)), branches=int(rng.integers(1, 13)), trunk=trunk, most=most,
                share_key=b"tenant" if rng.random() < 0.8 else b"",
            )
        )  # fmt: skip
    return Forest(tuple(made), tuple(np.zeros(0, np.int32) for _ in made))


def resumed(request: Request, checkpoint: CheckpointLike) -> Request:
    """The same request from a checkpoint of its trunk: the trunk loses its first checkpoint.m tokens."""
    m, root = checkpoint.m, request.segments[0]
    tail = replace(
        root,
        tokens=root.tokens[m:],
        saves=tuple(p for p in root.saves if p > m),
        readouts=tuple(replace(r, row=r.row - m) for r in root.readouts if r.row >= m),
    )
    return Request((tail, *request.segments[1:]), checkpoint, request.share_key)


def softmax(logits: Sequence[float] | np.ndarray) -> np.ndarray:
    """Probabilities over labels in float64."""
    x = np.asarray(logits, np.float64)
    e = np.exp(x - x.max())
    return e / e.sum()
