"""ForkAttention in plain torch: a query tile reads its trunk's pages, then the local ranges from root to leaf, then itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flide_engine.memory import Memory
from flide_engine.models import FullLayer, ModelConfig
from flide_engine.reference.layout import Layout
from flide_engine.reference.products import pointwise, rms_norm
from flide_engine.segments import GRID, Kind

Tensor = torch.Tensor

READOUT_TILE = 16
"""Rows of a query tile that holds one readout row: the fewest rows with a fixed order of sums in a matrix product."""


class Rotary:
    """cos and sin by absolute position, computed once in float64 in blocks of BLOCK positions, kept in the model's dtype."""

    BLOCK = 4096

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        pairs = config.rotary_dim // 2
        self._rates = config.rope_theta ** (-torch.arange(pairs, dtype=torch.float64) * 2 / config.rotary_dim)
        self._dtype = dtype
        self._cos = torch.empty(0, pairs, dtype=dtype)
        self._sin = torch.empty(0, pairs, dtype=dtype)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions: [T] int64. Returns cos, sin [T, 1, rotary_dim / 2]."""
        while len(self._cos) <= int(positions.max()):
            angles = torch.arange(len(self._cos), len(self._cos) + self.BLOCK, dtype=torch.float64)[:, None] * self._rates
            self._cos = torch.cat([self._cos, angles.cos().to(self._dtype)])
            self._sin = torch.cat([self._sin, angles.sin().to(self._dtype)])
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


@dataclass(frozen=True)
class Keys:
    """Keys and values that one segment's queries see before their own: [kv heads, n, d], n a multiple of GRID, and what is masked."""

    k: Tensor
    v: Tensor
    masked: Tensor | None

    @classmethod
    def join(cls, parts: list[tuple[Tensor, Tensor]]) -> Keys:
        """Rows [n, kv heads, d] of each part, padded with zero rows to the grid and masked there."""
        ks, vs, masks = [], [], []
        for k, v in parts:
            n = k.shape[0]
            pad = -n % GRID
            ks.append(torch.cat([k, k.new_zeros(pad, *k.shape[1:])]))
            vs.append(torch.cat([v, v.new_zeros(pad, *v.shape[1:])]))
            masks.append(torch.arange(n + pad) >= n)
        masked = torch.cat(masks)
        k, v = (torch.cat(x).transpose(0, 1).contiguous() for x in (ks, vs))
        return cls(k, v, masked)


class Attention:
    """One full-attention layer over a round: project, rotate, write pages, and read with any set of query rows."""

    def __init__(
        self, config: ModelConfig, layer: FullLayer, rotary: Rotary, memory: Memory, index: int, at: Layout, projected: Tensor
    ) -> None:
        """projected: [Tp, q and gate per head | k | v]. Writes this layer's K/V of all trunk rows into their pages."""
        self._config, self._at, self._memory, self._index = config, at, memory, index
        heads, kv, d = config.heads, config.kv_heads, config.head_dim
        both, k, v = projected.split([2 * heads * d, kv * d, kv * d], -1)
        q, gate = both.reshape(-1, heads, 2, d).unbind(2)
        self._gate = gate.contiguous()
        cos, sin = rotary(torch.from_numpy(at.positions).long())
        self._q = _rotate(rms_norm(q, layer.q_norm, config.rms_eps), cos, sin) * d**-0.5
        self._k = _rotate(rms_norm(k.reshape(-1, kv, d), layer.k_norm, config.rms_eps), cos, sin)
        self._v = v.reshape(-1, kv, d)
        memory.k[index][at.trunk_pages, :, at.trunk_offsets] = self._k[at.trunk_rows]
        memory.v[index][at.trunk_pages, :, at.trunk_offsets] = self._v[at.trunk_rows]

    def all_rows(self) -> Tensor:
        """Every row attends. Returns [Tp, heads * d], gated."""
        out = self._q.new_zeros(self._q.shape)
        plan = self._at.plan
        trunks: dict[int, Keys] = {}
        for s in range(len(plan.seg_len)):
            first, n = int(plan.seg_first_row[s]), int(plan.seg_len[s])
            trunk, local = self._keys(s, trunks)
            for offset in range(0, n, GRID):
                rows = min(GRID, n - offset)
                tile = self._q[first + offset : first + offset + rows]
                out[first + offset : first + offset + rows] = self._tile(s, offset, tile, GRID, trunk, local)
        return self._gated(out, self._gate)

    def readout_rows(self) -> Tensor:
        """Only the readout rows attend, each in a tile of its own. Returns [R, heads * d] padded to the grid, gated."""
        at, plan = self._at, self._at.plan
        n = len(plan.readout_row)
        rows = max(GRID, -(-n // GRID) * GRID)
        out, gate = (self._q.new_zeros(rows, *self._q.shape[1:]) for _ in range(2))
        gate[:n] = self._gate[at.readout_rows]
        trunks: dict[int, Keys] = {}
        keys: dict[int, tuple[Keys | None, Keys | None]] = {}
        for i, row in enumerate(plan.readout_row.tolist()):
            s = int(plan.row_segment[row])
            if s not in keys:
                keys[s] = self._keys(s, trunks)
            offset = row - int(plan.seg_first_row[s])
            out[i] = self._tile(s, offset, self._q[row : row + 1], READOUT_TILE, *keys[s])[0]
        return self._gated(out, gate)

    def _gated(self, out: Tensor, gate: Tensor) -> Tensor:
        return (out * pointwise(torch.sigmoid, gate)).view(out.shape[0], -1)

    def _keys(self, s: int, trunks: dict[int, Keys]) -> tuple[Keys | None, Keys | None]:
        """(trunk part, local part with the segment's own rows last) of segment s."""
        plan = self._at.plan
        trunk_segment = plan.seg_kind[s] == Kind.TRUNK
        hist = int(plan.seg_hist[s])
        length = int(plan.seg_start[s] + plan.seg_len[s]) if trunk_segment else hist
        trunk = None
        if length:
            table = int(plan.seg_table[s])
            if table not in trunks:
                trunks[table] = self._gather(table)
            trunk = trunks[table]
            pages = -(-length // GRID) * GRID
            masked = None if trunk_segment or hist == pages else torch.arange(pages) >= hist
            trunk = Keys(trunk.k[:, :pages], trunk.v[:, :pages], masked)
        if trunk_segment:
            return trunk, None
        ranges = [(int(a), int(n)) for a, n in plan.seg_locals[s] if n] + [(int(plan.seg_first_row[s]), int(plan.seg_len[s]))]
        return trunk, Keys.join([(self._k[a : a + n], self._v[a : a + n]) for a, n in ranges])

    def _gather(self, table: int) -> Keys:
        pages = torch.from_numpy(self._at.plan.page_table[table]).long()
        k, v = (pool[self._index][pages].transpose(0, 1).flatten(1, 2) for pool in (self._memory.k, self._memory.v))
        return Keys(k, v, None)

    def _tile(self, s: int, offset: int, q: Tensor, rows: int, trunk: Keys | None, local: Keys | None) -> Tensor:
        """q: [n, heads, d], consecutive rows from `offset` of segment s, in a tile of `rows` rows. Returns [n, heads, d]."""
        n, (heads, d) = q.shape[0], q.shape[1:]
        kv = self._config.kv_heads
        tile = q.new_zeros(kv, heads // kv, rows, d)
        tile[:, :, :n] = q.view(n, kv, heads // kv, d).permute(1, 2, 0, 3)
        tile = tile.view(kv, -1, d)
        reach = (offset // GRID + 1) * GRID
        scores, values = [], []
        for keys, causal_end in self._parts(s, trunk, local, reach):
            part = torch.matmul(tile, keys.k.transpose(-1, -2)).view(kv, heads // kv, rows, -1)
            if keys.masked is not None:
                part.masked_fill_(keys.masked, -torch.inf)
            if causal_end:
                row = torch.arange(rows)[:, None] + offset % GRID
                part[..., -GRID:].masked_fill_(torch.arange(GRID) > row, -torch.inf)
            scores.append(part)
            values.append(keys.v)
        p = torch.softmax(torch.cat(scores, -1), -1).view(kv, -1, sum(v.shape[1] for v in values))
        at, out = 0, torch.zeros_like(tile)
        for v in values:
            out += torch.matmul(p[..., at : at + v.shape[1]], v)
            at += v.shape[1]
        return out.view(kv, heads // kv, rows, d)[:, :, :n].permute(2, 0, 1, 3).reshape(n, heads, d)

    def _parts(self, s: int, trunk: Keys | None, local: Keys | None, reach: int) -> list[tuple[Keys, bool]]:
        """The key parts of a tile that reaches `reach` rows into segment s, and whether the part's last GRID keys are causal."""
        if local is None:
            if trunk is None:
                raise AssertionError("a trunk tile has keys")
            end = int(self._at.plan.seg_start[s]) + reach
            return [(Keys(trunk.k[:, :end], trunk.v[:, :end], None), True)]
        own = -(-int(self._at.plan.seg_len[s]) // GRID) * GRID
        end = local.k.shape[1] - own + reach
        masked = None if local.masked is None else local.masked[:end]
        parts = [(Keys(local.k[:, :end], local.v[:, :end], masked), True)]
        return [(trunk, False), *parts] if trunk is not None else parts
