"""The mixing of a Gated DeltaNet layer on the GPU."""

from __future__ import annotations

from typing import Any

import torch

from flide_engine.cuda.aside import Aside
from flide_engine.cuda.metadata import DeviceRound
from flide_engine.cuda.products import Products
from flide_engine.cuda.workspace import Workspace, columns
from flide_engine.kernels.conv_gate import conv_gate
from flide_engine.kernels.gdn_branch import gdn_branch
from flide_engine.kernels.gdn_chunks import Chunks
from flide_engine.kernels.gdn_intra import gdn_intra
from flide_engine.kernels.gdn_scan import gated_norm, gdn_scan
from flide_engine.kernels.pause import pause
from flide_engine.memory import Memory
from flide_engine.models import LinearLayer, ModelConfig

PAUSES = 1
"""Empty kernels between the fork and z's product, so that the walk's few programs have their places before the product fills the
GPU."""


def input_matrices(layer: LinearLayer) -> list[torch.Tensor]:
    """What mix_linear may multiply the normed rows by: the two parts that it takes apart, and both in one."""
    return [layer.in_first, layer.in_z, layer.in_all]


def mix_linear(
    config: ModelConfig, layer: LinearLayer, taps: torch.Tensor, at: DeviceRound, chunks: Chunks, memory: Memory, index: int,
    workspace: Workspace, products: Products, aside: Aside, *, apart: bool, early: bool,
) -> torch.Tensor:  # fmt: skip
    """From the normed rows to the input of the output projection, [T, value_width]; states and conv windows of saves on the way.

    taps: layer.conv turned around, [4, C]. index: which linear layer this is. apart: z by a product of its own. early: the GPU has
    programmatic dependent launch. Trunks run first, level by level, since no trunk hangs on a branch; then branches. Both are few
    programs that take long: in a long pass they go aside, and z's product runs beside them.
    """
    rows, s = workspace.stream.cut(at.shape.rows), at.segments
    first = layer.in_first.shape[0]
    matrix = layer.in_first if apart else layer.in_all
    projected = columns(rows.projected, matrix.shape[0])
    products(rows.normed, matrix, projected)
    saves: dict[str, Any] = {"save_ptr": at.save_ptr, "save_pos": at.save_pos, "save_slot": at.save_slot}
    lengths: dict[str, Any] = {"seg_first_row": s.first_row, "seg_len": s.length}
    slots: dict[str, Any] = {"seg_state_in": at.seg_state_in, "seg_state_out": at.seg_state_out}
    tiles = conv_gate(
        projected, taps, layer.A_log, layer.dt_bias, memory.conv[index], chunks=chunks, seg_start=s.start,
        conv_prev=at.conv_prev, out=workspace.tiles(chunks), early=early, **lengths, **saves,
    )  # fmt: skip
    inside = gdn_intra(tiles, chunks, workspace.inside(chunks), early=early)
    states, scanned = memory.states[index], workspace.scanned[: at.shape.rows]

    def walk() -> None:
        shared: dict[str, Any] = {**lengths, **slots}
        branch = at.locals[0] if at.shape.one_branch else None
        for segments in at.trunks:
            gdn_scan(
                tiles, inside, chunks, states, scanned, segments=segments, branch=branch, seg_start=s.start,
                early=early and not apart, **shared, **saves,
            )  # fmt: skip
        for segments in () if branch is not None else at.locals:
            gdn_branch(
                tiles, inside, chunks, states, scanned, segments=segments, early=early and bool(at.trunks), **shared
            )  # fmt: skip

    if apart:
        with aside:
            walk()
        z = columns(rows.projected, config.value_width, behind=first)
        pause(z, PAUSES)
        products(rows.normed, layer.in_z, z)
        aside.join()
    else:  # all on one stream, so that each starts early
        z = projected[:, first:]
        walk()
    mixed = columns(rows.mixed, config.value_width)
    gated_norm(
        scanned, z, layer.gated_norm, mixed.view(scanned.shape), eps=config.rms_eps, row_segment=at.row_segment,
        early=early and not apart,
    )  # fmt: skip
    return mixed
