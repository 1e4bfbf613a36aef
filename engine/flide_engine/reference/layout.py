"""A RoundPlan as the index tensors that the reference pass gathers and scatters with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from flide_engine.plan import CONV_TAPS, RoundPlan
from flide_engine.reference.products import padded
from flide_engine.segments import GRID

Tensor = torch.Tensor


def _index(values: object) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.int64))


@dataclass(frozen=True)
class ConvFix:
    """Rows whose k-th predecessor is not the stream row k before them: where they are, and what stands there instead."""

    rows_from_stream: Tensor
    stream_rows: Tensor
    rows_from_slots: Tensor
    slot_taps: Tensor
    rows_of_zeros: Tensor


@dataclass(frozen=True)
class Level:
    """The segments of one level in descending order of their chunk counts.

    chunks: [n] first chunk of each in the chunk table; counts: [n]; state_in, state_out: [n] slots or -1.
    saves[c]: (position in this order, slot) to store after chunk c.
    """

    chunks: list[int]
    counts: list[int]
    state_in: list[int]
    state_out: list[int]
    saves: dict[int, list[tuple[int, int]]]


@dataclass(frozen=True)
class Layout:
    """Everything the pass needs to know of a round. Tp: rows padded to the grid, N: chunks.

    chunk_rows: [N * GRID] stream rows of each chunk, padded rows point at row 0; chunk_pad: [N, GRID] True at padded rows.
    row_of_chunk: [T] where each stream row's output stands in chunk order.
    """

    plan: RoundPlan
    rows: int
    token_ids: Tensor
    positions: npt.NDArray[np.int32]
    chunk_rows: Tensor
    chunk_pad: Tensor
    row_of_chunk: Tensor
    levels: list[Level]
    conv: list[ConvFix]
    conv_save_rows: Tensor
    conv_save_slots: Tensor
    trunk_rows: Tensor
    trunk_pages: Tensor
    trunk_offsets: Tensor
    readout_rows: Tensor


def layout(plan: RoundPlan) -> Layout:
    """Index tensors of a plan."""
    rows = padded(plan.rows)
    first_row, lengths = plan.seg_first_row, plan.seg_len
    counts = -(-lengths // GRID)
    first_chunk = np.concatenate([[0], np.cumsum(counts)])
    n = int(first_chunk[-1])
    chunk_rows = np.zeros((n, GRID), np.int64)
    pad = np.ones((n, GRID), bool)
    for s in range(len(lengths)):
        c, k = int(first_chunk[s]), int(lengths[s])
        chunk_rows[c : c + counts[s]].reshape(-1)[:k] = np.arange(first_row[s], first_row[s] + k)
        pad[c : c + counts[s]].reshape(-1)[:k] = False
    row_of_chunk = np.zeros(plan.rows, np.int64)
    row_of_chunk[chunk_rows[~pad]] = np.flatnonzero(~pad.reshape(-1))
    trunk = np.flatnonzero(plan.kv_dst >= 0)
    save_segment = np.repeat(np.arange(len(lengths)), np.diff(plan.save_ptr))
    save_row = first_row[save_segment] + plan.save_pos - plan.seg_start[save_segment]
    ids = np.zeros(rows, np.int64)
    ids[: plan.rows] = plan.token_ids
    positions = np.zeros(rows, np.int32)
    positions[: plan.rows] = plan.positions
    return Layout(
        plan=plan,
        rows=rows,
        token_ids=_index(ids),
        positions=positions,
        chunk_rows=_index(chunk_rows.reshape(-1)),
        chunk_pad=torch.from_numpy(pad),
        row_of_chunk=_index(row_of_chunk),
        levels=[_level(plan, level, first_chunk, counts) for level in range(plan.levels)],
        conv=[_conv_fix(plan, k) for k in range(1, CONV_TAPS + 1)],
        conv_save_rows=_index(save_row[:, None] + np.arange(-CONV_TAPS, 0)),
        conv_save_slots=_index(plan.save_slot),
        trunk_rows=_index(trunk),
        trunk_pages=_index(plan.kv_dst[trunk] // GRID),
        trunk_offsets=_index(plan.kv_dst[trunk] % GRID),
        readout_rows=_index(plan.readout_row),
    )


def _level(plan: RoundPlan, level: int, first_chunk: npt.NDArray[np.int64], counts: npt.NDArray[np.int32]) -> Level:
    segments = sorted(np.flatnonzero(plan.seg_level == level).tolist(), key=lambda s: -int(counts[s]))
    saves: dict[int, list[tuple[int, int]]] = {}
    for i, s in enumerate(segments):
        for v in range(plan.save_ptr[s], plan.save_ptr[s + 1]):
            chunk = (int(plan.save_pos[v]) - int(plan.seg_start[s])) // GRID - 1
            saves.setdefault(chunk, []).append((i, int(plan.save_slot[v])))
    return Level(
        chunks=[int(first_chunk[s]) for s in segments],
        counts=[int(counts[s]) for s in segments],
        state_in=[int(plan.seg_state_in[s]) for s in segments],
        state_out=[int(plan.seg_state_out[s]) for s in segments],
        saves=saves,
    )


def _conv_fix(plan: RoundPlan, k: int) -> ConvFix:
    rows: list[int] = []
    sources: list[int] = []
    for s in range(len(plan.seg_len)):
        for offset in range(min(k, int(plan.seg_len[s]))):
            rows.append(int(plan.seg_first_row[s]) + offset)
            sources.append(int(plan.conv_prev[s, CONV_TAPS + offset - k]))
    row, source = np.array(rows, np.int64), np.array(sources, np.int64)
    stream, slots, zeros = source >= 0, source <= -2, source == -1
    return ConvFix(
        _index(row[stream]), _index(source[stream]), _index(row[slots]), _index(-2 - source[slots]), _index(row[zeros])
    )
