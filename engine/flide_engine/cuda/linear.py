"""The mixing of a Gated DeltaNet layer on the GPU."""

from __future__ import annotations

from typing import Any

import torch

from flide_engine.cuda.metadata import DeviceRound
from flide_engine.cuda.products import Products
from flide_engine.cuda.workspace import Workspace, columns
from flide_engine.kernels.conv_gate import conv_gate
from flide_engine.kernels.gdn_chunks import Chunks
from flide_engine.kernels.gdn_intra import gdn_intra
from flide_engine.kernels.gdn_output import gdn_output
from flide_engine.kernels.gdn_scan import gdn_scan
from flide_engine.memory import Memory
from flide_engine.models import LinearLayer, ModelConfig


def mix_linear(
    config: ModelConfig, layer: LinearLayer, taps: torch.Tensor, at: DeviceRound, chunks: Chunks, memory: Memory, index: int,
    workspace: Workspace, products: Products,
) -> torch.Tensor:  # fmt: skip
    """From the normed rows to the input of the output projection, [T, value_width]; states and conv windows of saves on the way.

    taps: layer.conv turned around, [4, C]. index: which linear layer this is. Trunks run first, level by level, since no trunk hangs
    on a branch; then branches; then the outputs of all.
    """
    rows, s = workspace.stream.cut(at.shape.rows), at.segments
    projected = columns(rows.projected, layer.in_all.shape[0])
    products(rows.normed, layer.in_all, projected)
    saves: dict[str, Any] = {"save_ptr": at.save_ptr, "save_pos": at.save_pos, "save_slot": at.save_slot}
    tiles = conv_gate(
        projected, taps, layer.A_log, layer.dt_bias, memory.conv[index], chunks=chunks, seg_first_row=s.first_row,
        seg_len=s.length, seg_start=s.start, conv_prev=at.conv_prev, out=workspace.tiles(chunks), **saves,
    )  # fmt: skip
    inside, before = gdn_intra(tiles, chunks, workspace.inside(chunks)), workspace.before
    for levels, short in ((at.trunks, False), (at.locals, True)):
        for segments in levels:
            gdn_scan(
                tiles, inside, chunks, memory.states[index], before, segments=segments, seg_len=s.length, seg_start=s.start,
                seg_state_in=at.seg_state_in, seg_state_out=at.seg_state_out, short=short, **saves,
            )  # fmt: skip
    z = projected[:, config.conv_channels : config.conv_channels + config.value_width]
    mixed = columns(rows.mixed, config.value_width)
    gdn_output(
        tiles, inside, chunks, before, z, layer.gated_norm, mixed.view(-1, config.gdn_value_heads, config.gdn_value_dim),
        eps=config.rms_eps, seg_first_row=s.first_row, seg_len=s.length,
    )  # fmt: skip
    return mixed
