"""Shards to batches: trunks of one padded length with a fixed number of branches, drawn anew in every pass over the data."""

from __future__ import annotations

import io
import lzma
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flide_engine.segments import GRID
from torch import Tensor

from training.network import Batch

LENGTHS = (512, 1024, 2048, 4096, 8192)

WIDTH = 128
"""Tokens of a branch in training: up to 63 of the trunk and a question. The few that are longer would make all rows wider."""

Ints = npt.NDArray[np.int64]


OPTIONS = 10
"""Columns of a question's label table."""
Rows = npt.NDArray[np.int32]


class Ragged:
    """Rows of different lengths in one flat array; ends[i]: where row i ends in it."""

    def __init__(self, flat: npt.NDArray[np.uint16], ends: Ints) -> None:
        self.flat, self.ends = flat, ends
        self.lengths = np.diff(ends, prepend=0)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> npt.NDArray[np.uint16]:
        return self.flat[self.ends[i] - self.lengths[i] : self.ends[i]]


@dataclass(frozen=True)
class Data:
    """All shards in memory. of[t]: rows of branches (fork, question, right, kind) of trunk t, by fork."""

    trunks: list[npt.NDArray[np.uint16]]
    sources: list[int]
    of: list[Rows]
    questions: Ragged
    labels: npt.NDArray[np.int32]

    @classmethod
    def load(cls, paths: Sequence[Path]) -> Data:
        """Raises ValueError for no shard at all."""
        if not paths:
            raise ValueError("no shards; make them with training.pack")
        trunks: list[npt.NDArray[np.uint16]] = []
        sources: list[int] = []
        of: list[Rows] = []
        questions, ends, labels, asked, told = [], [], [], 0, 0
        with ThreadPoolExecutor(8) as pool:
            for shard in pool.map(_read, paths):
                branches = shard["branches"]
                branches[:, 2] += asked
                own = np.split(shard["trunk_tokens"], shard["trunk_ends"][:-1])
                branches = branches[np.argsort(branches[:, 0], kind="stable")]
                cuts = np.searchsorted(branches[:, 0], np.arange(1, len(own)))
                of += np.split(branches[:, 1:], cuts)
                trunks += own
                sources += shard["trunk_source"].tolist()
                questions.append(shard["question_tokens"])
                ends.append(shard["question_ends"] + told)
                labels.append(shard["question_labels"])
                asked, told = asked + len(ends[-1]), told + len(questions[-1])
        return cls(trunks, sources, of, Ragged(np.concatenate(questions), np.concatenate(ends)), np.concatenate(labels))

    @cached_property
    def rarity(self) -> npt.NDArray[np.float64]:
        """By kind of question: one over the root of how many branches ask it."""
        counts = np.bincount(np.concatenate([rows[:, 3] for rows in self.of]))
        return np.maximum(counts, 1) ** -0.5

    @property
    def tokens(self) -> int:
        return sum(map(len, self.trunks))


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    file = io.BytesIO(lzma.decompress(path.read_bytes())) if path.suffix == ".xz" else path
    with np.load(file, allow_pickle=False) as shard:
        return {name: shard[name] for name in shard.files}


def paths(folders: Sequence[Path], part: str) -> list[Path]:
    """The shards of a part, "train" or "held", in some folders."""
    return sorted(p for folder in folders for pattern in ("npz", "npz.xz") for p in folder.glob(f"{part}-*.{pattern}"))


def bucket(length: int) -> int:
    """The shortest batch length that holds a trunk."""
    return next(n for n in LENGTHS if length <= n)


def per_trunk(length: int) -> int:
    """Branches that a trunk of a batch of this length has."""
    return min(32, max(4, length // 128))


@dataclass(frozen=True)
class Shape:
    """The sizes of a batch: rows trunks of `length`, `branches` branches of `width`, `told` positions of the language loss."""

    rows: int
    length: int
    branches: int
    width: int = WIDTH
    told: int = 0

    @classmethod
    def of(cls, tokens: int, length: int, told: int, width: int = WIDTH) -> Shape:
        """Of a training batch of about `tokens` trunk tokens; narrower branches are more."""
        count = max(1, tokens // length)
        return cls(count, length, count * per_trunk(length) * (WIDTH // width), width, min(told, count * 64))

    def sizes(self) -> list[tuple[int, ...]]:
        """Shapes of Batch's fields, in order."""
        n = (self.branches,)
        return [(self.rows, self.length), (self.rows,), (*n, self.width), n, n, n, (*n, OPTIONS), n, n, (self.told,)]

    @property
    def numbers(self) -> int:
        return sum(math.prod(size) for size in self.sizes())

    def split(self, flat: Tensor) -> Batch:
        """Views of one flat tensor of at least `numbers` elements."""
        parts, at = [], 0
        for size in self.sizes():
            n = math.prod(size)
            parts.append(flat[at : at + n].view(size))
            at += n
        return Batch(*parts)


def fill(
    batch: Batch, data: Data, chosen: Sequence[int], branches: Sequence[Rows], rng: np.random.Generator | None = None
) -> None:
    """Write the trunks `chosen`, each with its rows of `branches`, into the tensors of a batch whose sizes fit. rng: for `told`."""
    trunk, branch, labels = (getattr(batch, name).numpy() for name in ("trunk", "branch", "labels"))
    out = [getattr(batch, name).numpy() for name in ("branch_len", "owner", "start", "right", "kind")]
    length = trunk.shape[1]
    trunk[:], branch[:] = 0, 0
    lengths = [min(length, len(data.trunks[t])) for t in chosen]
    batch.trunk_len.copy_(torch.tensor(lengths))
    j = 0
    for i, (t, some) in enumerate(zip(chosen, branches, strict=True)):
        tokens = data.trunks[t]
        trunk[i, : lengths[i]] = tokens[:length]
        labels[j : j + len(some)] = data.labels[some[:, 1]]
        for fork, question, right, kind in some.tolist():
            start, asked = fork // GRID * GRID, data.questions[question]
            own = fork - start + len(asked)
            branch[j, : fork - start] = tokens[start:fork]
            branch[j, fork - start : own] = asked
            for column, value in zip(out, (own, i, start, right, kind), strict=True):
                column[j] = value
            j += 1
    if batch.told.numel():
        assert rng is not None
        # Positions with a next token, rows weighted by their lengths.
        many = np.array(lengths, np.int64) - 1
        at = np.sort(rng.integers(0, many.sum(), batch.told.numel()))
        ends = np.cumsum(many)
        row = np.searchsorted(ends, at, side="right")
        batch.told.copy_(torch.from_numpy(row * length + at - (ends - many)[row]))


def draw(data: Data, chosen: Sequence[int], length: int, rng: np.random.Generator, width: int = WIDTH) -> list[Rows]:
    """per_trunk(length) branches of each trunk, more where they are narrower, with replacement where there are fewer."""
    n = per_trunk(length) * (WIDTH // width)
    own = [_narrow(data, data.of[t], width) for t in chosen]
    return [b[_some(data, b, n, rng) if len(b) >= n else rng.integers(0, len(b), n)] for b in own]


def _some(data: Data, branches: Rows, n: int, rng: np.random.Generator) -> Ints:
    """Indices of n branches without replacement, rare kinds of questions more often (by the largest of weighted exponentials)."""
    order = np.log(data.rarity[branches[:, 3]]) + rng.gumbel(size=len(branches))
    return np.argsort(-order, kind="stable")[:n]


def _narrow(data: Data, branches: Rows, width: int) -> Rows:
    """The branches that fit a width; all of a trunk where none does."""
    fit = branches[branches[:, 0] % GRID + data.questions.lengths[branches[:, 1]] <= width]
    return fit if len(fit) else branches


def rows(data: Data, chosen: Sequence[int], branches: Sequence[Rows], length: int) -> Batch:
    """A batch for evaluation: the trunks `chosen`, cut at `length`, each with its rows of `branches`, as wide as the longest."""
    longest = max(int((some[:, 0] % GRID + data.questions.lengths[some[:, 1]]).max()) for some in branches)
    shape = Shape(len(chosen), length, sum(map(len, branches)), -(-longest // GRID) * GRID)
    made = shape.split(torch.zeros(shape.numbers, dtype=torch.int64))
    fill(made, data, chosen, branches)
    return made


class Batches:
    """Seeded batches of about `tokens` trunk tokens each, batch i the same however many are made before it.

    told: positions of the language loss in each; width: of branches. Trunks none of whose branches fits are left out.
    """

    def __init__(self, data: Data, tokens: int, seed: int, told: int = 8192, width: int = WIDTH) -> None:
        self.data, self.tokens, self.seed, self.told, self.width = data, tokens, seed, told, width
        fits = [bool((b[:, 0] % GRID + data.questions.lengths[b[:, 1]] <= width).any()) for b in data.of]
        by = np.array([bucket(len(trunk)) for trunk in data.trunks])
        found = {n: np.flatnonzero((by == n) & np.array(fits)) for n in LENGTHS}
        self.by_length: dict[int, Ints] = {n: some for n, some in found.items() if len(some)}
        _ = data.rarity  # made once, before processes share the data

    def shape(self, length: int) -> Shape:
        return Shape.of(self.tokens, length, self.told, self.width)

    def length(self, i: int, longest: int) -> int:
        """The length of batch i, at most `longest` (or the shortest there is), drawn by how many tokens each length holds."""
        lengths = [n for n in self.by_length if n <= longest] or [min(self.by_length)]
        weight = np.array([len(self.by_length[n]) * n for n in lengths], np.float64)
        return lengths[int(np.random.default_rng((self.seed, i)).choice(len(lengths), p=weight / weight.sum()))]

    def fill(self, flat: Tensor, i: int, length: int, rank: int = 0) -> None:
        """Write batch i of a process into a flat int32 tensor."""
        rng = np.random.default_rng((self.seed, i, rank))
        shape, pool = self.shape(length), self.by_length[length]
        chosen = rng.choice(pool, shape.rows, replace=len(pool) < shape.rows).tolist()
        fill(shape.split(flat), self.data, chosen, draw(self.data, chosen, length, rng, self.width), rng)

    def make(self, i: int, longest: int) -> Batch:
        """Batch i in int64."""
        length = self.length(i, longest)
        shape = self.shape(length)
        flat = torch.empty(shape.numbers, dtype=torch.int32)
        self.fill(flat, i, length)
        return shape.split(flat.long())


def few(data: Data, of_each: int) -> Data:
    """Trunks of each batch length, `of_each` at most, spread over all there are."""
    chosen: list[int] = []
    for n in LENGTHS:
        mine = [t for t, trunk in enumerate(data.trunks) if bucket(len(trunk)) == n]
        chosen += [mine[i * len(mine) // of_each] for i in range(of_each)] if len(mine) > of_each else mine
    picked = ([some[t] for t in chosen] for some in (data.trunks, data.sources, data.of))
    return Data(*picked, data.questions, data.labels)  # type: ignore[arg-type, call-arg]


def in_order(data: Data, tokens: int) -> Iterator[tuple[Batch, list[int]]]:
    """Every trunk once, with the sources of the branches: what figures are taken from."""
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        mine = [t for t, trunk in enumerate(data.trunks) if bucket(len(trunk)) == n]
        count = max(1, tokens // n)
        for at in range(0, len(mine), count):
            some = mine[at : at + count]
            made = rows(data, some, draw(data, some, n, rng), n)
            yield made, [data.sources[some[i]] for i in made.owner.tolist()]
