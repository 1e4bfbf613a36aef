"""Round -> RoundPlan: the stream's order and the int32 metadata that the forward pass reads. numpy only, no torch, no device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from flide_engine.segments import FROM_CHECKPOINT, GRID, Kind, Readout, Request, Round

Int32 = npt.NDArray[np.int32]
CONV_TAPS = 3
"""Rows before a token that the width-4 convolution reads."""


class StoredCheckpoint(Protocol):
    """What planning reads of a checkpoint that lives in the pools."""

    m: int
    pages: Int32
    slot: int


@dataclass(eq=False)
class Piece:
    """A run of the stream: a whole segment, or the shared or own part of a trunk."""

    tokens: Int32
    start: int
    kind: Kind
    parent: Piece | None
    checkpoint: StoredCheckpoint | None
    level: int = 0
    users: int = 0
    saves: dict[int, int] = field(default_factory=dict)
    children: int = 0
    index: int = -1
    first_row: int = -1
    pages: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    out_slot: int = -1

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


@dataclass(frozen=True)
class RoundPlan:
    """The metadata of one forward pass: T rows, S segments, V saves, Q page-table rows, R readouts, L labels. All int32.

    Rows of the stream lie by level, then in the order of the requests. `-1` marks absence everywhere.

    token_ids, positions, row_segment, kv_dst: [T]. kv_dst is page * GRID + offset for trunk rows, -1 for local rows.
    seg_first_row, seg_len, seg_start, seg_parent, seg_kind, seg_level: [S].
    seg_state_in: [S] slot a segment starts from, -1 for zeros. seg_state_out: [S] slot its last state goes to, -1 to drop it.
    seg_hist: [S] trunk tokens visible before the segment's own. seg_table: [S] row of page_table.
    seg_locals: [S, D, 2] (first_row, len) of local ancestors from root to leaf, (0, 0) where there is none; own rows are not listed.
    conv_prev: [S, 3] where the rows at positions start - 3 + j are: >= 0 a stream row, -1 zeros, v <= -2 tap (-2 - v) % 3 of conv
    slot (-2 - v) // 3.
    save_ptr: [S + 1], save_pos, save_slot: [V] per segment ascending positions; the state after save_pos tokens goes to save_slot.
    page_table: [Q, P] pages from position 0 on, 0 behind the end.
    readout_row: [R], label_ptr: [R + 1], label_ids: [L].
    mass: [W] the readouts that ask for the sum over the vocabulary, ascending.
    levels: number of levels.
    """

    token_ids: Int32
    positions: Int32
    row_segment: Int32
    kv_dst: Int32
    seg_first_row: Int32
    seg_len: Int32
    seg_start: Int32
    seg_parent: Int32
    seg_kind: Int32
    seg_level: Int32
    seg_state_in: Int32
    seg_state_out: Int32
    seg_hist: Int32
    seg_table: Int32
    seg_locals: Int32
    conv_prev: Int32
    save_ptr: Int32
    save_pos: Int32
    save_slot: Int32
    page_table: Int32
    readout_row: Int32
    label_ptr: Int32
    label_ids: Int32
    mass: Int32
    levels: int

    @property
    def rows(self) -> int:
        return int(self.token_ids.shape[0])

    def arrays(self) -> dict[str, Int32]:
        """Every metadata array that the pass itself reads, by name, in a fixed order."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("mass", "levels")}


@dataclass(frozen=True)
class Placement:
    """Where one request ended up.

    readouts[segment][i]: index into the plan's readouts. saves[(segment, position)]: (piece, slot).
    own, shared: tokens computed for this request alone and together with others.
    """

    readouts: tuple[tuple[int, ...], ...]
    saves: dict[tuple[int, int], tuple[Piece, int]]
    own: int
    shared: int


@dataclass(frozen=True)
class PlannedRound:
    plan: RoundPlan
    placements: tuple[Placement, ...]
    pages: Int32
    slots: Int32


Take = Callable[[int, int], tuple[Int32, Int32]]


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
        if r.share_key and s.kind is Kind.TRUNK and s.parent == FROM_CHECKPOINT and len(s) >= GRID:
            groups.setdefault((r.share_key, id(r.checkpoint), s.tokens[:GRID].tobytes()), []).append(i)
    out: dict[int, tuple[int, int]] = {}
    for group, members in enumerate(groups.values()):
        if len(members) > 1:
            first = requests[members[0]].segments[0].tokens
            n = min(common_prefix(first, requests[i].segments[0].tokens) for i in members[1:]) // GRID * GRID
            out.update((i, (group, n)) for i in members)
    return out


class _Forest:
    """The pieces of a round, before rows, pages and slots are given out."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.pieces: list[Piece] = []
        self.ends: list[list[Piece | None]] = []
        self.cuts: list[list[list[Piece]]] = []
        shared = _shared_lengths(requests)
        heads: dict[int, Piece] = {}
        for i, r in enumerate(requests):
            checkpoint = cast("StoredCheckpoint | None", r.checkpoint)
            ends: list[Piece | None] = []
            cuts: list[list[Piece]] = []
            for j, (s, start) in enumerate(zip(r.segments, r.starts(), strict=True)):
                parent = None if s.parent == FROM_CHECKPOINT else ends[s.parent]
                made: list[Piece] = []
                tokens = s.tokens
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
            self.ends.append(ends)
            self.cuts.append(cuts)

    def _add(self, piece: Piece) -> Piece:
        if piece.parent is not None:
            piece.level = piece.parent.level + 1
            piece.parent.children += 1
        self.pieces.append(piece)
        return piece


def plan_round(round_: Round, take: Take) -> PlannedRound:
    """Lay a round of valid requests out as one stream.

    take(pages, slots) gives the indices this pass writes (and may raise, before which nothing has changed). The caller owns one
    reference on each of them: pages of unsaved tokens and scratch slots are free again once the pass has run.
    """
    requests = round_.requests
    forest = _Forest(requests)
    pieces = sorted(forest.pieces, key=lambda p: p.level)
    row = 0
    for index, p in enumerate(pieces):
        p.index, p.first_row = index, row
        row += len(p.tokens)
    for i, r in enumerate(requests):
        for j, s in enumerate(r.segments):
            for position in s.saves:
                _piece_of(forest.cuts[i][j], position - 1).saves.setdefault(position, -1)
    scratch = [p for p in pieces if p.children and p.end not in p.saves]
    trunks = [p for p in pieces if p.kind is Kind.TRUNK]
    page_counts = [-(-len(p.tokens) // GRID) for p in trunks]
    save_count = sum(len(p.saves) for p in pieces)
    pages, slots = take(sum(page_counts), len(scratch) + save_count)
    for p, end, n in zip(trunks, np.cumsum(page_counts), page_counts, strict=True):
        p.pages = pages[end - n : end]
    free = iter(slots.tolist())
    for p in pieces:
        for position in sorted(p.saves):
            p.saves[position] = next(free)
        p.out_slot = p.saves.get(p.end, -1)
    for p in scratch:
        p.out_slot = next(free)
    _assert_one_writer(pieces, slots)
    readouts: list[tuple[int, Readout]] = []
    placements = tuple(_place(r, forest.cuts[i], readouts) for i, r in enumerate(requests))
    return PlannedRound(_metadata(pieces, row, readouts), placements, pages, slots)


def _assert_one_writer(pieces: Sequence[Piece], slots: Int32) -> None:
    written = [slot for p in pieces for slot in p.saves.values()]
    written += [p.out_slot for p in pieces if p.out_slot >= 0 and p.end not in p.saves]
    if len(set(written)) != len(written) or set(written) != set(slots.tolist()):
        raise AssertionError("every slot of a round must have exactly one writer")


def _piece_of(pieces: Sequence[Piece], position: int) -> Piece:
    return next(p for p in pieces if p.start <= position < p.end)


def _place(request: Request, cuts: list[list[Piece]], readouts: list[tuple[int, Readout]]) -> Placement:
    at: list[tuple[int, ...]] = []
    saves: dict[tuple[int, int], tuple[Piece, int]] = {}
    own = shared = 0
    for j, (s, start, made) in enumerate(zip(request.segments, request.starts(), cuts, strict=True)):
        at.append(tuple(range(len(readouts), len(readouts) + len(s.readouts))))
        readouts.extend(_row_of(r, start, made) for r in s.readouts)
        for position in s.saves:
            piece = _piece_of(made, position - 1)
            saves[j, position] = (piece, piece.saves[position])
        own += sum(len(p.tokens) for p in made if p.users == 1)
        shared += sum(len(p.tokens) for p in made if p.users > 1)
    return Placement(tuple(at), saves, own, shared)


def _row_of(readout: Readout, start: int, made: Sequence[Piece]) -> tuple[int, Readout]:
    piece = _piece_of(made, start + readout.row)
    return piece.first_row + start + readout.row - piece.start, readout


def table_of(piece: Piece | None, checkpoint: StoredCheckpoint | None) -> Int32:
    """Pages of the trunk that `piece` is part of or hangs on, from position 0 to that trunk's end."""
    parts = [] if checkpoint is None else [checkpoint.pages]
    if piece is not None:
        parts += [p.pages for p in piece.path() if p.kind is Kind.TRUNK]
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32)


def _conv_prev(piece: Piece) -> list[int]:
    out = []
    path = piece.path()[:-1]
    root = path[0].start if path else piece.start
    for position in range(piece.start - CONV_TAPS, piece.start):
        if position >= root:
            holder = _piece_of(path, position)
            out.append(holder.first_row + position - holder.start)
        elif piece.checkpoint is not None:
            out.append(-2 - (piece.checkpoint.slot * CONV_TAPS + position - piece.checkpoint.m + CONV_TAPS))
        else:
            out.append(-1)
    return out


def _metadata(pieces: Sequence[Piece], rows: int, readouts: Sequence[tuple[int, Readout]]) -> RoundPlan:
    i32 = np.int32
    lengths = np.array([len(p.tokens) for p in pieces], i32)
    kv_dst = np.full(rows, -1, i32)
    tables: dict[tuple[int, ...], int] = {}
    rows_of_table: list[Int32] = []
    seg_table, seg_hist, state_in, local_ranges = [], [], [], []
    for p in pieces:
        trunk = p
        while trunk.kind is Kind.LOCAL and trunk.parent is not None:
            trunk = trunk.parent
        on_trunk = trunk.kind is Kind.TRUNK
        key = (trunk.index,) if on_trunk else (-1, id(p.checkpoint))
        if key not in tables:
            tables[key] = len(rows_of_table)
            rows_of_table.append(table_of(trunk if on_trunk else None, p.checkpoint))
        seg_table.append(tables[key])
        base = 0 if p.checkpoint is None else p.checkpoint.m
        seg_hist.append(p.start if p.kind is Kind.TRUNK else trunk.end if on_trunk else base)
        state_in.append(p.parent.out_slot if p.parent is not None else -1 if p.checkpoint is None else p.checkpoint.slot)
        local_ranges.append([(a.first_row, len(a.tokens)) for a in p.path()[:-1] if a.kind is Kind.LOCAL])
        if p.kind is Kind.TRUNK:
            offsets = np.arange(len(p.tokens), dtype=i32)
            kv_dst[p.first_row : p.first_row + len(offsets)] = p.pages[offsets // GRID] * GRID + offsets % GRID
    depth = max([1, *map(len, local_ranges)])
    seg_locals = np.zeros((len(pieces), depth, 2), i32)
    for i, ranges in enumerate(local_ranges):
        if ranges:
            seg_locals[i, : len(ranges)] = ranges
    page_table = np.zeros((max(1, len(rows_of_table)), max([1, *map(len, rows_of_table)])), i32)
    for i, table in enumerate(rows_of_table):
        page_table[i, : len(table)] = table
    saves = [sorted(p.saves.items()) for p in pieces]
    flat = [x for per in saves for x in per]
    return RoundPlan(
        token_ids=np.concatenate([np.zeros(0, i32), *[p.tokens for p in pieces]]).astype(i32),
        positions=np.concatenate([np.zeros(0, i32), *[np.arange(p.start, p.end, dtype=i32) for p in pieces]]),
        row_segment=np.repeat(np.arange(len(pieces), dtype=i32), lengths),
        kv_dst=kv_dst,
        seg_first_row=np.array([p.first_row for p in pieces], i32),
        seg_len=lengths,
        seg_start=np.array([p.start for p in pieces], i32),
        seg_parent=np.array([-1 if p.parent is None else p.parent.index for p in pieces], i32),
        seg_kind=np.array([p.kind for p in pieces], i32),
        seg_level=np.array([p.level for p in pieces], i32),
        seg_state_in=np.array(state_in, i32),
        seg_state_out=np.array([-1 if p.end in p.saves else p.out_slot for p in pieces], i32),
        seg_hist=np.array(seg_hist, i32),
        seg_table=np.array(seg_table, i32),
        seg_locals=seg_locals,
        conv_prev=np.array([_conv_prev(p) for p in pieces], i32).reshape(len(pieces), CONV_TAPS),
        save_ptr=np.cumsum([0, *map(len, saves)]).astype(i32),
        save_pos=np.array([position for position, _ in flat], i32),
        save_slot=np.array([slot for _, slot in flat], i32),
        page_table=page_table,
        readout_row=np.array([row for row, _ in readouts], i32),
        label_ptr=np.cumsum([0, *[len(r.labels) for _, r in readouts]]).astype(i32),
        label_ids=np.array([t for _, r in readouts for t in r.labels], i32),
        mass=np.array([i for i, (_, r) in enumerate(readouts) if r.mass], i32),
        levels=1 + max([-1, *[p.level for p in pieces]]),
    )
