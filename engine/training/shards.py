"""Shards to batches: trunks of one padded length with a fixed number of branches, drawn anew in every pass over the data."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from flide_engine.segments import GRID

from training.network import Batch

LENGTHS = (512, 1024, 2048, 4096, 8192)

WIDTH = 128
"""Tokens of a branch in training: up to 63 of the trunk and a question. The few that are longer would make all rows wider."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """All shards in memory. of[t]: rows of branches (fork, question, right, kind) of trunk t, by fork."""

    trunks: list[npt.NDArray[np.uint16]]
    sources: list[int]
    of: list[Ints]
    questions: list[npt.NDArray[np.uint16]]
    labels: npt.NDArray[np.int32]

    @classmethod
    def load(cls, paths: Sequence[Path]) -> Data:
        """Raises ValueError for no shard at all."""
        if not paths:
            raise ValueError("no shards; make them with training.pack")
        trunks: list[npt.NDArray[np.uint16]] = []
        sources: list[int] = []
        of: list[Ints] = []
        questions: list[npt.NDArray[np.uint16]] = []
        labels = []
        for path in paths:
            with np.load(path, allow_pickle=False) as shard:
                branches = shard["branches"].astype(np.int64)
                branches[:, 2] += len(questions)
                own = np.split(shard["trunk_tokens"], shard["trunk_ends"][:-1])
                rows = np.argsort(branches[:, 0], kind="stable")
                cuts = np.searchsorted(branches[rows, 0], np.arange(1, len(own)))
                of += [b[:, 1:] for b in np.split(branches[rows], cuts)]
                trunks += own
                sources += shard["trunk_source"].tolist()
                questions += np.split(shard["question_tokens"], shard["question_ends"][:-1])
                labels.append(shard["question_labels"])
        return cls(trunks, sources, of, questions, np.concatenate(labels))

    @cached_property
    def lengths(self) -> Ints:
        """Tokens of each question."""
        return np.array([len(q) for q in self.questions], np.int64)

    @cached_property
    def rarity(self) -> npt.NDArray[np.float64]:
        """By kind of question: one over the root of how many branches ask it."""
        counts = np.bincount(np.concatenate(self.of)[:, 3])
        return np.maximum(counts, 1) ** -0.5

    @property
    def tokens(self) -> int:
        return sum(map(len, self.trunks))


def bucket(length: int) -> int:
    """The shortest batch length that holds a trunk."""
    return next(n for n in LENGTHS if length <= n)


def per_trunk(length: int) -> int:
    """Branches that a trunk of a batch of this length has."""
    return min(32, max(4, length // 128))


def batch(data: Data, chosen: Sequence[int], length: int, rng: np.random.Generator) -> Batch:
    """The trunks `chosen` with per_trunk(length) branches each, drawn with replacement where there are fewer."""
    n = per_trunk(length)
    own = [_narrow(data, data.of[t]) for t in chosen]
    drawn = [b[_some(data, b, n, rng) if len(b) >= n else rng.integers(0, len(b), n)] for b in own]
    return rows(data, chosen, drawn, length)


def _some(data: Data, branches: Ints, n: int, rng: np.random.Generator) -> Ints:
    """Indices of n branches without replacement, rare kinds of questions more often (by the largest of weighted exponentials)."""
    order = np.log(data.rarity[branches[:, 3]]) + rng.gumbel(size=len(branches))
    return np.argsort(-order, kind="stable")[:n]


def _narrow(data: Data, branches: Ints) -> Ints:
    """The branches that fit WIDTH; all of a trunk where none does."""
    fit = branches[branches[:, 0] % GRID + data.lengths[branches[:, 1]] <= WIDTH]
    return fit if len(fit) else branches


def rows(data: Data, chosen: Sequence[int], branches: Sequence[Ints], length: int) -> Batch:
    """The trunks `chosen`, cut at `length`, each with its rows of `branches` (fork, question, right, kind), as wide as the longest."""
    total = sum(map(len, branches))
    longest = max(fork % GRID + len(data.questions[question]) for some in branches for fork, question, _, _ in some.tolist())
    width = -(-longest // GRID) * GRID
    trunk = np.zeros((len(chosen), length), np.int64)
    branch = np.zeros((total, width), np.int64)
    out = np.zeros((total, 5), np.int64)  # branch_len, owner, start, right, kind
    labels = np.zeros((total, data.labels.shape[1]), np.int64)
    j = 0
    for i, (t, some) in enumerate(zip(chosen, branches, strict=True)):
        tokens = data.trunks[t]
        trunk[i, : min(length, len(tokens))] = tokens[:length]
        for fork, question, right, kind in some.tolist():
            start = fork // GRID * GRID
            own = np.concatenate([tokens[start:fork], data.questions[question]])
            branch[j, : len(own)] = own
            out[j] = len(own), i, start, right, kind
            labels[j] = data.labels[question]
            j += 1
    lengths = torch.tensor([min(length, len(data.trunks[t])) for t in chosen])
    branch_len, owner, start_at, right_at, kind_at = (torch.from_numpy(column.copy()) for column in out.T)
    return Batch(
        torch.from_numpy(trunk),
        lengths,
        torch.from_numpy(branch),
        branch_len,
        owner,
        start_at,
        torch.from_numpy(labels),
        right_at,
        kind_at,
    )


class Batches:
    """An endless, seeded stream of batches of about `tokens` trunk tokens each; `longest` may be raised while it runs."""

    def __init__(self, data: Data, tokens: int, seed: int) -> None:
        self.data, self.tokens = data, tokens
        self._rng = np.random.default_rng(seed)
        self.by_length: dict[int, Ints] = {}
        for n in LENGTHS:
            found = np.array([t for t, trunk in enumerate(data.trunks) if bucket(len(trunk)) == n], np.int64)
            if len(found):
                self.by_length[n] = found

    def next(self, longest: int) -> Batch:
        """A batch of one length at most `longest` (or the shortest there is), lengths drawn by how many tokens they hold."""
        lengths = [n for n in self.by_length if n <= longest] or [min(self.by_length)]
        weight = np.array([len(self.by_length[n]) * n for n in lengths], np.float64)
        length = lengths[int(self._rng.choice(len(lengths), p=weight / weight.sum()))]
        count = max(1, self.tokens // length)
        pool = self.by_length[length]
        chosen = self._rng.choice(pool, count, replace=len(pool) < count)
        return batch(self.data, chosen.tolist(), length, self._rng)


def ahead(batches: Batches, longest: list[int], stop: threading.Event, pinned: bool) -> Iterator[Batch]:
    """Batches made by a thread while the device computes. longest[0] is read for each of them."""
    waiting: queue.Queue[Batch] = queue.Queue(4)

    def work() -> None:
        while not stop.is_set():
            made = batches.next(longest[0])
            if pinned:
                made = Batch(*(getattr(made, name).pin_memory() for name in made.__dataclass_fields__))
            while not stop.is_set():
                try:
                    waiting.put(made, timeout=0.5)
                    break
                except queue.Full:
                    continue

    threading.Thread(target=work, daemon=True).start()
    while not stop.is_set():
        yield waiting.get()


def few(data: Data, of_each: int) -> Data:
    """The first trunks of each batch length, `of_each` at most."""
    chosen = [t for n in LENGTHS for t in [t for t, trunk in enumerate(data.trunks) if bucket(len(trunk)) == n][:of_each]]
    picked = ([some[t] for t in chosen] for some in (data.trunks, data.sources, data.of))
    return Data(*picked, data.questions, data.labels)  # type: ignore[arg-type]


def in_order(data: Data, tokens: int) -> Iterator[tuple[Batch, list[int]]]:
    """Every trunk once, with the sources of the branches: what figures are taken from."""
    rng = np.random.default_rng(0)
    for n in LENGTHS:
        mine = [t for t, trunk in enumerate(data.trunks) if bucket(len(trunk)) == n]
        count = max(1, tokens // n)
        for at in range(0, len(mine), count):
            some = mine[at : at + count]
            made = batch(data, some, n, rng)
            yield made, [data.sources[some[i]] for i in made.owner.tolist()]
