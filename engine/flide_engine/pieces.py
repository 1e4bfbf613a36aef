"""The pieces of a round: its segments, with what requests have in common at their start cut off as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from flide_engine.segments import FROM_CHECKPOINT, GRID, TRUNK, Kind, Request

Int32 = npt.NDArray[np.int32]
NO_PAGES: Int32 = np.zeros(0, np.int32)


class StoredCheckpoint(Protocol):
    """What planning reads of a checkpoint that lives in the pools."""

    m: int
    pages: Int32
    slot: int


class Piece:
    """A run of the stream: a whole segment, or the shared or own part of a trunk.

    trunk: itself or the nearest ancestor that is one, None without one. locals: its local ancestors, root first.
    """

    __slots__ = (
        "checkpoint", "children", "first_row", "index", "kind", "level", "locals", "out_slot", "pages", "parent", "saves", "start",
        "tokens", "trunk", "users",
    )  # fmt: skip

    def __init__(
        self, tokens: Int32, start: int, kind: Kind, parent: Piece | None, checkpoint: StoredCheckpoint | None
    ) -> None:
        self.tokens, self.start, self.kind, self.parent, self.checkpoint = tokens, start, kind, parent, checkpoint
        self.level = self.users = self.children = 0
        self.index = self.first_row = self.out_slot = -1
        self.saves: dict[int, int] = {}
        self.pages = NO_PAGES
        self.trunk: Piece | None = self if kind is TRUNK else None
        self.locals: tuple[Piece, ...] = ()
        if parent is not None:
            self.level = parent.level + 1
            parent.children += 1
            self.locals = parent.locals if parent.kind is TRUNK else (*parent.locals, parent)
            if self.trunk is None:
                self.trunk = parent.trunk

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def path(self) -> list[Piece]:
        """From the root to this piece."""
        out, p = [self], self.parent
        while p is not None:
            out.append(p)
            p = p.parent
        return out[::-1]


def table_of(piece: Piece | None, checkpoint: StoredCheckpoint | None) -> Int32:
    """Pages of the trunk that `piece` is part of or hangs on, from position 0 to that trunk's end."""
    trunk, parts = None if piece is None else piece.trunk, list[Int32]()
    while trunk is not None:
        parts.append(trunk.pages)
        trunk = None if trunk.parent is None else trunk.parent.trunk
    if checkpoint is not None:
        parts.append(checkpoint.pages)
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts[::-1], dtype=np.int32) if parts else NO_PAGES


def common_prefix(a: Int32, b: Int32) -> int:
    """Number of leading tokens that two arrays have in common."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _shared_lengths(requests: Sequence[Request]) -> dict[int, tuple[int, int]]:
    """request index -> (group, tokens of its first root trunk that the group computes once); only requests that share appear.

    Members of a group have the same share key, the same checkpoint and the same first GRID tokens; what they share ends at the last
    multiple of GRID of the common prefix of all members.
    """
    groups: dict[tuple[bytes, int, bytes], list[int]] = {}
    for i, r in enumerate(requests):
        s = r.segments[0]
        if r.share_key and s.kind is TRUNK and s.parent == FROM_CHECKPOINT and len(s) >= GRID:
            groups.setdefault((r.share_key, id(r.checkpoint), s.tokens[:GRID].tobytes()), []).append(i)
    out: dict[int, tuple[int, int]] = {}
    for group, members in enumerate(groups.values()):
        if len(members) > 1:
            first = requests[members[0]].segments[0].tokens
            n = min(common_prefix(first, requests[i].segments[0].tokens) for i in members[1:]) // GRID * GRID
            out.update((i, (group, n)) for i in members)
    return out


class Forest:
    """The pieces of a round, before rows, pages and slots are given out. cuts: the pieces of each segment of each request."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.pieces: list[Piece] = []
        self.cuts: list[list[list[Piece]]] = []
        shared = _shared_lengths(requests)
        heads: dict[int, Piece] = {}
        for i, r in enumerate(requests):
            checkpoint = cast("StoredCheckpoint | None", r.checkpoint)
            ends: list[Piece | None] = []
            cuts: list[list[Piece]] = []
            starts = r.starts()
            for j, s in enumerate(r.segments):
                parent = None if s.parent == FROM_CHECKPOINT else ends[s.parent]
                made: list[Piece] = []
                tokens, start = s.tokens, starts[j]
                if j == 0 and i in shared:
                    group, n = shared[i]
                    if group not in heads:
                        heads[group] = self._add(Piece(tokens[:n], start, s.kind, parent, checkpoint))
                    made.append(heads[group])
                    parent, tokens, start = heads[group], tokens[n:], start + n
                if len(tokens):
                    made.append(self._add(Piece(tokens, start, s.kind, parent, checkpoint)))
                for p in made:
                    p.users += 1
                ends.append(made[-1] if made else parent)
                cuts.append(made)
            self.cuts.append(cuts)

    def _add(self, piece: Piece) -> Piece:
        self.pieces.append(piece)
        return piece
