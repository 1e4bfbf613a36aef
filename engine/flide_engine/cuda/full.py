"""The mixing of a full-attention layer on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flide_engine.cuda.metadata import DeviceRound
from flide_engine.cuda.process import from_hopper
from flide_engine.cuda.products import Products
from flide_engine.cuda.workspace import Workspace, columns
from flide_engine.kernels.attention import fork_attention, merge_spans, readout_config
from flide_engine.kernels.rope_page import norm_rope_key_value, norm_rope_query
from flide_engine.memory import Memory
from flide_engine.models import FullLayer, ModelConfig
from flide_engine.segments import GRID

Tensor = torch.Tensor


@dataclass(frozen=True)
class Tiles:
    """Attention's tile tables of a round: all rows, and readout rows alone."""

    rows: Tensor
    readouts: Tensor
    spans: int


def key_value_rows(layer: FullLayer) -> Tensor:
    """The part of the fused product that every row needs in the last layer."""
    return layer.qkv[layer.q.shape[0] :]


def page_blocks(memory: Memory) -> list[tuple[Any, Any] | None]:
    """Per full layer, the bulk-copy descriptors of its K and V pages; None where the GPU has no bulk copy engine.

    They hold the pools' addresses, which never change.
    """
    if not from_hopper(memory.device):
        return [None] * len(memory.k)
    from triton.tools.tensor_descriptor import TensorDescriptor

    def block(pages: Tensor) -> Any:
        return TensorDescriptor.from_tensor(pages.view(-1, pages.shape[-1]), [GRID, pages.shape[-1]])

    return [(block(k), block(v)) for k, v in zip(memory.k, memory.v, strict=True)]


class FullMixing:
    """One full-attention layer over a round: project writes K/V, attend reads with all rows, or with the readout rows alone."""

    def __init__(
        self, config: ModelConfig, layer: FullLayer, at: DeviceRound, memory: Memory, index: int, workspace: Workspace,
        products: Products, rope: Tensor, blocks: tuple[Any, Any] | None, *, early: bool,
    ) -> None:  # fmt: skip
        """index: which full layer this is. rope: rope_table's. blocks: page_blocks of this layer, None without the copy engine.
        early: the GPU has programmatic dependent launch.
        """
        self._config, self._layer, self._at, self._workspace = config, layer, at, workspace
        self._products, self._rope, self._blocks, self._early = products, rope, blocks, early
        self._k_pages, self._v_pages = memory.k[index], memory.v[index]
        self._rows = workspace.stream.cut(at.shape.rows)
        self._k_local = workspace.k_local[: at.shape.rows]
        self._projected = self._v = self._rows.projected  # project() cuts both to their columns

    def project(self, keys_alone: bool) -> None:
        """Trunk rows' K/V into their pages, local rows' K beside the stream. keys_alone: the last layer projects no queries here."""
        c, layer = self._config, self._layer
        weight = key_value_rows(layer) if keys_alone else layer.qkv
        self._projected = columns(self._rows.projected, weight.shape[0])
        self._products(self._rows.normed, weight, self._projected)
        k, self._v = self._projected[:, -2 * c.kv_heads * c.head_dim :].chunk(2, -1)
        norm_rope_key_value(
            k, self._v, layer.k_norm, self._rope, self._at.positions, self._at.kv_dst, self._k_local, self._k_pages,
            self._v_pages, eps=c.rms_eps, early=self._early,
        )  # fmt: skip

    def attend(self, tiles: Tiles, readouts_alone: bool, first_split: int) -> Tensor:
        """[N, heads * head_dim]: the input of o_proj, of all rows or of the readout rows alone."""
        c, layer, at, size = self._config, self._layer, self._at, self._k_pages.element_size()
        if readouts_alone:
            rows, which = self._workspace.read.cut(at.shape.readouts), at.readout_row
            table, config, tokens = tiles.readouts, readout_config(c.head_dim, size), 1
            torch.index_select(self._rows.normed, 0, which, out=rows.normed)
            projected = self._products(rows.normed, layer.q, columns(rows.projected, layer.q.shape[0]))
        else:
            rows, which, projected = self._rows, None, self._projected
            table, config = tiles.rows, self._workspace.attention(at.shape, bulk=self._blocks is not None)
            tokens = config.tokens(c.heads // c.kv_heads)
        norm_rope_query(
            projected, layer.q_norm, self._rope, at.positions, rows.query, eps=c.rms_eps, rows=which,
            early=self._early and not readouts_alone,
        )  # fmt: skip
        mixed = columns(rows.mixed, c.heads * c.head_dim)
        out, gate = mixed.view(rows.query.shape), projected[:, c.head_dim :]
        partials = self._workspace.partials(tiles.spans, len(rows.query))
        fork_attention(
            rows.query, gate, self._k_local, self._v, self._k_pages, self._v_pages, table, at.segments, out, partials,
            config=config, tokens_a_tile=tokens, scale=c.head_dim**-0.5, first_split=first_split,
            blocks=self._blocks, early=self._early,
        )  # fmt: skip
        if tiles.spans > 1:
            merge_spans(gate, at.row_segment, at.positions, at.segments, partials, out, rows=which, first_split=first_split)
        return mixed
