"""Activations of a pass, allocated once for the largest stream and cut to each round's capacity."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch

from flide_engine.cuda.shape import PassShape, power_of_two
from flide_engine.kernels.attention import AttentionConfig, Partials, attention_config
from flide_engine.kernels.gdn_chunks import Chunks, chunk_capacity, empty_chunks, empty_tiles
from flide_engine.kernels.gdn_chunks import Tiles as DeltaTiles
from flide_engine.kernels.gdn_intra import IntraOut, empty_intra
from flide_engine.models import ModelConfig

Tensor = torch.Tensor
SEGMENTS_AT_START = 128
SCRATCH_AT_START = 4096


class TileTables(NamedTuple):
    """What `kernels.tiles` fills: the tables of all rows and of readout rows, and the scratch of the first."""

    tiles: Tensor
    unordered: Tensor
    weights: Tensor
    pointers: Tensor
    readouts: Tensor


@dataclass(frozen=True)
class Rows:
    """Buffers with one entry a row. N: rows of the stream, or of the readouts behind the last mixing."""

    residual: Tensor  # [N, hidden]
    normed: Tensor  # [N, hidden]
    delta: Tensor  # [N, hidden]: what the last product adds to the residual stream
    mixed: Tensor  # [N, widest mixing output]
    query: Tensor  # [N, heads, head_dim]
    projected: Tensor  # [N, widest fused projection]; the parts of a linear layer's lie one behind the other, see columns
    gate_up: Tensor  # [N, 2 * mlp]
    acted: Tensor  # [N, mlp]

    def cut(self, rows: int) -> Rows:
        return Rows(*(getattr(self, name)[:rows] for name in self.__dataclass_fields__))


class Workspace:
    """Everything is zero at first and only ever holds what a pass wrote, so padding rows stay finite."""

    def __init__(
        self, config: ModelConfig, in_all: int, rows: int, readouts: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """in_all: rows of the widest LinearLayer.in_all. rows, readouts: capacities at first."""
        self._config, self._like = config, torch.empty(0, device=device, dtype=dtype)
        self._width = max(in_all, (2 * config.heads + 2 * config.kv_heads) * config.head_dim)
        self._scratch: dict[str, Tensor] = {}
        self._reserved: set[tuple[PassShape, int]] = set()
        self.rows = self.readouts = 0
        self._by_row(rows)
        self._by_readout(readouts)
        self._by_chunk(chunk_capacity(rows, SEGMENTS_AT_START), SEGMENTS_AT_START)

    def reserve(self, shape: PassShape) -> bool:
        """Make room for a shape. True when a buffer moved: graphs that hold its old address are void."""
        if (key := (shape, self.tokens_a_tile(shape))) in self._reserved:
            return False
        before = self._scratch.copy()
        grown = shape.rows > self.rows or shape.readouts > self.readouts
        if shape.rows > self.rows:
            self._by_row(shape.rows)
        if shape.readouts > self.readouts:
            self._by_readout(shape.readouts)
        held = self._chunks
        if shape.chunks > held.table.shape[0] or shape.segments > held.first.shape[0]:
            self._by_chunk(max(shape.chunks, held.table.shape[0]), max(shape.segments, held.first.shape[0]))
            grown = True
        self.tables(shape)
        self.partials(shape.spans, shape.rows)
        self._reserved.add(key)  # last: what ran out of memory half-way is tried again
        return grown or any(self._scratch[name] is not t for name, t in before.items())

    def holds(self, shape: PassShape) -> bool:
        """Whether `reserve` would move nothing: tried on a copy that stands on no device."""
        if (shape, self.tokens_a_tile(shape)) in self._reserved:
            return True
        trial = copy.copy(self)
        trial._like, trial._scratch, trial._reserved = self._like.to("meta"), self._scratch.copy(), set()
        return not trial.reserve(shape)

    def _zeros(self, *shape: int) -> Tensor:
        return self._like.new_zeros(shape)

    def _by_row(self, rows: int) -> None:
        c = self._config
        self.rows, self.stream = rows, self._rows(rows, self._width)
        self.k_local = self._zeros(rows, c.kv_heads, c.head_dim)
        self.scanned = self._like.new_zeros((rows, c.gdn_value_heads, c.gdn_value_dim), dtype=torch.float32)

    def _by_readout(self, readouts: int) -> None:
        self.readouts, self.read = readouts, self._rows(readouts, 2 * self._config.heads * self._config.head_dim)

    def _rows(self, n: int, projected: int) -> Rows:
        c = self._config
        mixed = max(c.value_width, c.heads * c.head_dim)
        return Rows(
            residual=self._zeros(n, c.hidden),
            normed=self._zeros(n, c.hidden),
            delta=self._zeros(n, c.hidden),
            mixed=self._zeros(n, mixed),
            query=self._zeros(n, c.heads, c.head_dim),
            projected=self._zeros(n, projected),
            gate_up=self._zeros(n, 2 * c.mlp),
            acted=self._zeros(n, c.mlp),
        )

    def _by_chunk(self, capacity: int, segments: int) -> None:
        c, dtype, device = self._config, self._like.dtype, self._like.device
        self._chunks = empty_chunks(capacity, segments, device)
        self._tiles = empty_tiles(capacity, c.gdn_key_heads, c.gdn_value_heads, c.gdn_key_dim, c.gdn_value_dim, dtype, device)
        self._inside = empty_intra(capacity, c.gdn_value_heads, dtype, device)
        for buffer in (*self._tiles, *self._inside):
            buffer.zero_()

    def chunks(self, shape: PassShape) -> Chunks:
        """Delta-rule chunk tables of a shape, to be filled."""
        return Chunks(self._chunks.table[: shape.chunks], self._chunks.first[: shape.segments])

    def tiles(self, chunks: Chunks) -> DeltaTiles:
        return DeltaTiles(*(t[: chunks.table.shape[0]] for t in self._tiles))

    def inside(self, chunks: Chunks) -> IntraOut:
        return IntraOut(*(t[: chunks.table.shape[0]] for t in self._inside))

    def attention(self, shape: PassShape, *, bulk: bool = False) -> AttentionConfig:
        """How fork attention over all rows of a pass is launched. bulk: attention_config's."""
        c = self._config
        return attention_config(c.head_dim, self._like.itemsize, shape.rows * c.heads * shape.spans, bulk=bulk)

    def tokens_a_tile(self, shape: PassShape) -> int:
        """Query tokens of a pass's attention tiles."""
        return self.attention(shape).tokens(self._config.heads // self._config.kv_heads)

    def kernels(self, shape: PassShape) -> tuple[object, ...]:
        """What decides which compiled kernels a pass of this model needs."""
        return shape.kernels(self.tokens_a_tile(shape))

    def tables(self, shape: PassShape) -> TileTables:
        """Attention's tile tables of a shape, to be filled."""
        n = shape.tiles(self.tokens_a_tile(shape))
        ints = torch.int32
        return TileTables(
            tiles=self._held("tiles", (n, 4), ints),
            unordered=self._held("unordered", (n, 4), ints),
            weights=self._held("weights", (n,), ints),
            pointers=self._held("pointers", (shape.segments + 1,), ints),
            readouts=self._held("readout tiles", (shape.readouts * shape.spans, 4), ints),
        )

    def partials(self, spans: int, rows: int) -> Partials:
        """Scratch for histories of several spans; empty (and never touched) when there is one span."""
        c = self._config
        n = spans * rows if spans > 1 else 0
        acc = self._held("partials", (n, c.heads, c.head_dim), torch.float32)
        return Partials(acc, *(self._held(f"partial {k}", (n, c.heads), torch.float32) for k in ("maximum", "sum")))

    def _held(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Named scratch of at least this shape, kept for the next round and doubled when it is too small."""
        size = 1
        for n in shape:
            size *= n
        held = self._scratch.get(name)
        if held is None or held.numel() < size:
            held = self._scratch[name] = self._like.new_zeros(power_of_two(size, SCRATCH_AT_START), dtype=dtype)
        return held[:size].view(shape)


def columns(buffer: Tensor, width: int, behind: int = 0) -> Tensor:
    """The front of a row buffer [N, W] as a contiguous [N, width], or what comes behind a front of `behind` columns; the two share
    nothing, and both fit where behind + width <= W."""
    rows = buffer.shape[0]
    return buffer.view(-1)[rows * behind : rows * (behind + width)].view(rows, width)
