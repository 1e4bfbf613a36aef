"""Round -> RoundPlan: the stream's order and the int32 metadata that the forward pass reads. numpy only, no torch, no device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from flide_engine.pieces import NO_PAGES, Forest, Piece, table_of
from flide_engine.segments import GRID, TRUNK, Readout, Request, Round

Int32 = npt.NDArray[np.int32]
CONV_TAPS = 3
"""Rows before a token that the width-4 convolution reads."""


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


def plan_round(round_: Round, take: Take) -> PlannedRound:
    """Lay a round of valid requests out as one stream.

    take(pages, slots) gives the indices this pass writes (and may raise, before which nothing has changed). The caller owns one
    reference on each of them: pages of unsaved tokens and scratch slots are free again once the pass has run.
    """
    requests = round_.requests
    forest = Forest(requests)
    pieces = sorted(forest.pieces, key=lambda p: p.level)
    lengths = [len(p.tokens) for p in pieces]
    row = 0
    for index, (p, n) in enumerate(zip(pieces, lengths, strict=True)):
        p.index, p.first_row = index, row
        row += n
    for r, cuts in zip(requests, forest.cuts, strict=True):
        for s, made in zip(r.segments, cuts, strict=True):
            for position in s.saves:
                _piece_of(made, position - 1).saves.setdefault(position, -1)
    saving = [p for p in pieces if p.saves]
    scratch = [p for p in pieces if p.children and p.end not in p.saves]
    trunks = [p for p in pieces if p.kind is TRUNK]
    page_counts = [-(-len(p.tokens) // GRID) for p in trunks]
    pages, slots = take(sum(page_counts), len(scratch) + sum(len(p.saves) for p in saving))
    at = 0
    for p, n in zip(trunks, page_counts, strict=True):
        p.pages = pages[at : at + n]
        at += n
    free = iter(slots.tolist())
    for p in saving:
        for position in sorted(p.saves):
            p.saves[position] = next(free)
        p.out_slot = p.saves.get(p.end, -1)
    for p in scratch:
        p.out_slot = next(free)
    _assert_one_writer(saving, scratch, slots)
    readouts = _Readouts()
    placements = tuple([_place(r, cuts, readouts) for r, cuts in zip(requests, forest.cuts, strict=True)])
    return PlannedRound(_metadata(pieces, lengths, trunks, pages, saving, readouts), placements, pages, slots)


def _assert_one_writer(saving: Sequence[Piece], scratch: Sequence[Piece], slots: Int32) -> None:
    written = [slot for p in saving for slot in p.saves.values()] + [p.out_slot for p in scratch]
    if len(set(written)) != len(written) or set(written) != set(slots.tolist()):
        raise AssertionError("every slot of a round must have exactly one writer")


def _piece_of(pieces: Sequence[Piece], position: int) -> Piece:
    return pieces[0] if len(pieces) == 1 else next(p for p in pieces if p.start <= position < p.end)


@dataclass(slots=True)
class _Readouts:
    """Rows of the stream, labels, and the numbers of those that ask for the sum over the vocabulary."""

    rows: list[int] = field(default_factory=list)
    labels: list[tuple[int, ...]] = field(default_factory=list)
    mass: list[int] = field(default_factory=list)

    def add(self, readout: Readout, row: int) -> int:
        number = len(self.rows)
        self.rows.append(row)
        self.labels.append(readout.labels)
        if readout.mass:
            self.mass.append(number)
        return number


def _place(request: Request, cuts: list[list[Piece]], readouts: _Readouts) -> Placement:
    at: list[tuple[int, ...]] = []
    saves: dict[tuple[int, int], tuple[Piece, int]] = {}
    own = shared = 0
    for j, (s, made) in enumerate(zip(request.segments, cuts, strict=True)):
        if s.readouts:
            start = made[0].start
            at.append(tuple([readouts.add(r, _row_of(made, start + r.row)) for r in s.readouts]))
        else:
            at.append(())
        for position in s.saves:
            piece = _piece_of(made, position - 1)
            saves[j, position] = (piece, piece.saves[position])
        for p in made:
            if p.users == 1:
                own += len(p.tokens)
            else:
                shared += len(p.tokens)
    return Placement(tuple(at), saves, own, shared)


def _row_of(made: Sequence[Piece], position: int) -> int:
    piece = _piece_of(made, position)
    return piece.first_row + position - piece.start


def _conv_prev(piece: Piece) -> list[int]:
    out = []
    path = piece.path()[:-1]
    root = path[0].start if path else piece.start
    for position in range(piece.start - CONV_TAPS, piece.start):
        if position >= root:
            holder = next(p for p in path if p.start <= position < p.end)
            out.append(holder.first_row + position - holder.start)
        elif piece.checkpoint is not None:
            out.append(-2 - (piece.checkpoint.slot * CONV_TAPS + position - piece.checkpoint.m + CONV_TAPS))
        else:
            out.append(-1)
    return out


def _conv_rows(pieces: Sequence[Piece], first_row: Int32, lengths: Int32, parents: Int32) -> Int32:
    """conv_prev of all: the last rows of the parent where it has so many, else what `_conv_prev` finds."""
    last = first_row[parents] + lengths[parents]
    rows = np.stack([last - CONV_TAPS + tap for tap in range(CONV_TAPS)], axis=1).astype(np.int32)
    for i in np.flatnonzero((parents < 0) | (lengths[parents] < CONV_TAPS)).tolist():
        rows[i] = _conv_prev(pieces[i])
    return rows


def _trunk_rows(trunks: Sequence[Piece], pages: Int32, rows: int) -> Int32:
    """kv_dst: [rows]. pages: of all trunks, end to end."""
    kv_dst = np.full(rows, -1, np.int32)
    lengths = np.array([len(p.tokens) for p in trunks], np.int32)
    offsets = _counted(np.zeros(len(trunks), np.int32), lengths)
    first_page = np.cumsum([0, *(-(-lengths // GRID)).tolist()], dtype=np.int32)[:-1]
    page = pages[np.repeat(first_page, lengths) + offsets // GRID]
    kv_dst[np.repeat(np.array([p.first_row for p in trunks], np.int32), lengths) + offsets] = page * GRID + offsets % GRID
    return kv_dst


def _counted(starts: Int32, lengths: Int32) -> Int32:
    """start, start + 1, ... of each run of these lengths, end to end."""
    ends = np.cumsum(lengths, dtype=np.int32)
    return np.arange(ends[-1] if len(ends) else 0, dtype=np.int32) + np.repeat(starts - ends + lengths, lengths)


def _tables(pieces: Sequence[Piece]) -> tuple[list[int], Int32]:
    """(row of each piece's page table, [Q, P])."""
    known: dict[tuple[int, int], int] = {}
    tables: list[Int32] = []
    at = []
    for p in pieces:
        key = (-1, id(p.checkpoint)) if p.trunk is None else (p.trunk.index, 0)
        row = known.get(key)
        if row is None:
            row = known[key] = len(tables)
            tables.append(table_of(p.trunk, p.checkpoint))
        at.append(row)
    page_table = np.zeros((max(1, len(tables)), max([1, *map(len, tables)])), np.int32)
    for row, table in enumerate(tables):
        page_table[row, : len(table)] = table
    return at, page_table


def _history(p: Piece) -> int:
    """Trunk tokens before its own."""
    if p.kind is TRUNK:
        return p.start
    if p.trunk is not None:
        return p.trunk.end
    return 0 if p.checkpoint is None else p.checkpoint.m


def _state_in(p: Piece) -> int:
    if p.parent is not None:
        return p.parent.out_slot
    return -1 if p.checkpoint is None else p.checkpoint.slot


def _metadata(
    pieces: Sequence[Piece],
    own: Sequence[int],
    trunks: Sequence[Piece],
    pages: Int32,
    saving: Sequence[Piece],
    readouts: _Readouts,
) -> RoundPlan:
    i32 = np.int32
    lengths = np.array(own, i32)
    starts, first_row = np.array([p.start for p in pieces], i32), np.array([p.first_row for p in pieces], i32)
    parents = np.array([-1 if p.parent is None else p.parent.index for p in pieces], i32)
    seg_table, page_table = _tables(pieces)
    nested = [p for p in pieces if p.locals]
    seg_locals = np.zeros((len(pieces), max([1, *[len(p.locals) for p in nested]]), 2), i32)
    for p in nested:
        seg_locals[p.index, : len(p.locals)] = [(a.first_row, len(a.tokens)) for a in p.locals]
    counts = np.zeros(len(pieces) + 1, i32)
    for p in saving:
        counts[p.index + 1] = len(p.saves)
    saves = [x for p in saving for x in sorted(p.saves.items())]
    ended = {p.index for p in saving if p.end in p.saves}
    rows = int(lengths.sum())
    return RoundPlan(
        token_ids=np.concatenate([NO_PAGES, *[p.tokens for p in pieces]], dtype=i32),
        positions=_counted(starts, lengths),
        row_segment=np.repeat(np.arange(len(pieces), dtype=i32), lengths),
        kv_dst=_trunk_rows(trunks, pages, rows),
        seg_first_row=first_row,
        seg_len=lengths,
        seg_start=starts,
        seg_parent=parents,
        seg_kind=np.array([p.kind for p in pieces], i32),
        seg_level=np.array([p.level for p in pieces], i32),
        seg_state_in=np.array([_state_in(p) for p in pieces], i32),
        seg_state_out=np.array([-1 if p.index in ended else p.out_slot for p in pieces], i32),
        seg_hist=np.array([_history(p) for p in pieces], i32),
        seg_table=np.array(seg_table, i32),
        seg_locals=seg_locals,
        conv_prev=_conv_rows(pieces, first_row, lengths, parents) if pieces else np.zeros((0, CONV_TAPS), i32),
        save_ptr=np.cumsum(counts, dtype=i32),
        save_pos=np.array([position for position, _ in saves], i32),
        save_slot=np.array([slot for _, slot in saves], i32),
        page_table=page_table,
        readout_row=np.array(readouts.rows, i32),
        label_ptr=np.cumsum([0, *map(len, readouts.labels)], dtype=i32),
        label_ids=np.array([t for labels in readouts.labels for t in labels], i32),
        mass=np.array(readouts.mass, i32),
        levels=1 + max([-1, *[p.level for p in pieces]]),
    )
