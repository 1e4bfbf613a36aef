"""Gated DeltaNet over a planned round, twice: token by token in float64, and by the kernels.

The float64 form follows Yang et al., Gated Delta Networks (2024), and the Qwen3.5 layer around it: convolution of width 4 and SiLU,
l2 norm of q and k, S <- e^g S + beta k (v - k^T e^g S)^T, o = S^T q / sqrt(key_dim), gated norm. It reads the same round metadata
as the kernels and nothing of their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from flide_engine.kernels.conv_gate import conv_gate
from flide_engine.kernels.gdn_branch import gdn_branch
from flide_engine.kernels.gdn_chunks import Chunks, Tiles, chunk_capacity, empty_chunks, empty_tiles, fill_chunks
from flide_engine.kernels.gdn_intra import IntraOut, empty_intra, gdn_intra
from flide_engine.kernels.gdn_scan import gated_norm, gdn_scan
from flide_engine.plan import RoundPlan, plan_round
from flide_engine.segments import Kind, Request, Round, Segment

EPS = 1e-6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PADDING = 5
"""Rows of NaN behind the stream in every test: nothing may read them."""


@dataclass
class Layer:
    """Weights of one linear layer's core. conv [C, 4], a_log and dt_bias [nv] float32, norm [dv]."""

    nk: int
    nv: int
    dk: int
    dv: int
    conv: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor

    @property
    def channels(self) -> int:
        return 2 * self.nk * self.dk + self.nv * self.dv

    @property
    def width(self) -> int:
        return self.first + self.nv * self.dv

    @property
    def first(self) -> int:
        """Columns before z."""
        return -(-(self.channels + 2 * self.nv) // 64) * 64

    def z(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, self.first :]


def make_layer(
    seed: int, *, nk: int = 1, ratio: int = 2, dk: int = 16, dv: int = 16, dtype=torch.float32, device=DEVICE
) -> Layer:
    rng = torch.Generator().manual_seed(seed)
    nv = nk * ratio
    channels = 2 * nk * dk + nv * dv
    conv = torch.randn(channels, 4, generator=rng) * 0.4
    a_log = torch.log(torch.rand(nv, generator=rng) * 8 + 0.05)
    dt_bias = torch.randn(nv, generator=rng) - 2
    norm = 1 + 0.2 * torch.randn(dv, generator=rng)
    return Layer(nk, nv, dk, dv, conv.to(device, dtype), a_log.to(device), dt_bias.to(device), norm.to(device, dtype))


@dataclass
class StoredState:
    """A checkpoint of m tokens in state slot and conv slot `slot`."""

    m: int
    slot: int
    pages: np.ndarray


def plan_of(requests: Sequence[Request], first_slot: int = 0) -> RoundPlan:
    def take(pages: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(pages, dtype=np.int32), np.arange(first_slot, first_slot + slots, dtype=np.int32)

    return plan_round(Round(tuple(requests)), take).plan


def segment(n: int, *, parent: int = -1, local: bool = False, saves: tuple[int, ...] = ()) -> Segment:
    return Segment(np.arange(n, dtype=np.int32), parent, Kind.LOCAL if local else Kind.TRUNK, saves)


def stored(m: int, slot: int) -> StoredState:
    return StoredState(m, slot, np.arange(-(-m // 64), dtype=np.int32))


def make_rows(layer: Layer, rows: int, seed: int, dtype=torch.float32, device=DEVICE) -> torch.Tensor:
    x = torch.randn(rows, layer.width, generator=torch.Generator().manual_seed(seed))
    return x.to(device, dtype)


@dataclass
class Pools:
    """One layer's slots: states [slots, nv, dk, dv] float32, conv [slots, 3, C]. Slots that nothing wrote hold NaN."""

    states: torch.Tensor
    conv: torch.Tensor


def make_pools(layer: Layer, slots: int, dtype=torch.float32, device=DEVICE) -> Pools:
    nan = float("nan")
    return Pools(
        torch.full((slots, layer.nv, layer.dk, layer.dv), nan, device=device),
        torch.full((slots, 3, layer.channels), nan, dtype=dtype, device=device),
    )


# The kernels.


@dataclass
class Ran:
    """out, o: [T, nv, dv] gated output of all rows, and their raw readout."""

    out: torch.Tensor
    o: torch.Tensor
    tiles: Tiles
    intra: IntraOut
    chunks: Chunks


def metadata(plan: RoundPlan, device=DEVICE) -> SimpleNamespace:
    return SimpleNamespace(**{name: torch.from_numpy(a).to(device) for name, a in plan.arrays().items()})


def level_lists(plan: RoundPlan, device=DEVICE) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Per level the trunk segments and the local ones, each with one unused entry."""
    out = []
    for level in range(plan.levels):
        picks = [np.flatnonzero((plan.seg_level == level) & (plan.seg_kind == kind)) for kind in (Kind.TRUNK, Kind.LOCAL)]
        a, b = (torch.tensor([*p.tolist(), -1], dtype=torch.int32, device=device) for p in picks)
        out.append((a, b))
    return out


def run_tiles(layer: Layer, x: torch.Tensor, plan: RoundPlan, pools: Pools) -> tuple[Tiles, Chunks]:
    m = metadata(plan, x.device)
    capacity = chunk_capacity(plan.rows, len(plan.seg_len)) + 1
    chunks = fill_chunks(m.seg_len, empty_chunks(capacity, len(plan.seg_len), x.device))
    tiles = empty_tiles(capacity, layer.nk, layer.nv, layer.dk, layer.dv, x.dtype, x.device)
    for t in tiles:
        t.fill_(float("nan"))
    padded = torch.cat([x, torch.full((PADDING, x.shape[1]), float("nan"), dtype=x.dtype, device=x.device)])
    conv_gate(
        padded, layer.conv.t().contiguous(), layer.a_log, layer.dt_bias, pools.conv,
        chunks=chunks, seg_first_row=m.seg_first_row, seg_len=m.seg_len, seg_start=m.seg_start, conv_prev=m.conv_prev,
        save_ptr=m.save_ptr, save_pos=m.save_pos, save_slot=m.save_slot, out=tiles,
    )  # fmt: skip
    return tiles, chunks


def run(layer: Layer, x: torch.Tensor, plan: RoundPlan, pools: Pools) -> Ran:
    """One layer over the round by the kernels; writes the pools' slots."""
    tiles, chunks = run_tiles(layer, x, plan, pools)
    return run_core(layer, x, plan, pools, tiles, chunks)


def run_core(layer: Layer, x: torch.Tensor, plan: RoundPlan, pools: Pools, tiles: Tiles, chunks: Chunks) -> Ran:
    m = metadata(plan, x.device)
    intra = empty_intra(tiles.k.shape[0], layer.nv, x.dtype, x.device)
    for t in intra:
        t.fill_(float("nan"))
    gdn_intra(tiles, chunks, intra)
    o = torch.full((plan.rows, layer.nv, layer.dv), float("nan"), device=x.device)
    for trunks, locals_ in level_lists(plan, x.device):
        gdn_scan(
            tiles, intra, chunks, pools.states, o,
            segments=trunks, seg_first_row=m.seg_first_row, seg_len=m.seg_len, seg_start=m.seg_start,
            seg_state_in=m.seg_state_in, seg_state_out=m.seg_state_out,
            save_ptr=m.save_ptr, save_pos=m.save_pos, save_slot=m.save_slot,
        )  # fmt: skip
        gdn_branch(
            tiles, intra, chunks, pools.states, o, segments=locals_, seg_first_row=m.seg_first_row, seg_len=m.seg_len,
            seg_state_in=m.seg_state_in, seg_state_out=m.seg_state_out,
        )  # fmt: skip
    out = torch.empty(o.shape, dtype=x.dtype, device=x.device)
    gated_norm(o, layer.z(x), layer.norm, out, eps=EPS, row_segment=m.row_segment)
    return Ran(out, o, tiles, intra, chunks)


# The same in float64, token by token.


@dataclass
class Expected:
    """All float64. q, k: [T, nk, dk]; v, o, out: [T, nv, dv]; g, beta: [T, nv]; states: slot -> [nv, dk, dv]; windows: slot -> [3, C]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    o: torch.Tensor
    out: torch.Tensor
    states: dict[int, torch.Tensor]
    windows: dict[int, torch.Tensor]


def delta_rule(q, k, v, g, beta, state, keep: Sequence[int] = ()):
    """q, k: [n, nv, dk], v: [n, nv, dv], g, beta: [n, nv], state: [nv, dk, dv] -> (o [n, nv, dv], last state, {rows: state after them})."""
    outs, kept = [], {}
    for t in range(q.shape[0]):
        state = torch.exp(g[t])[:, None, None] * state
        delta = beta[t][:, None] * (v[t] - torch.einsum("hk,hkv->hv", k[t], state))
        state = state + torch.einsum("hk,hv->hkv", k[t], delta)
        outs.append(torch.einsum("hk,hkv->hv", q[t] * q.shape[2] ** -0.5, state))
        if t + 1 in keep:
            kept[t + 1] = state
    return (torch.stack(outs) if outs else v.new_zeros(0, *v.shape[1:])), state, kept


def gates(layer: Layer, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    at = layer.channels
    b, a = x[:, at : at + layer.nv].double(), x[:, at + layer.nv : at + 2 * layer.nv].double()
    g = -torch.exp(layer.a_log.double()) * torch.nn.functional.softplus(a + layer.dt_bias.double())
    return g, torch.sigmoid(b)


def convolve(layer: Layer, x: torch.Tensor, plan: RoundPlan, pools: Pools) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    raw = x[:, : layer.channels].double()
    y = torch.zeros_like(raw)
    for s in range(len(plan.seg_len)):
        first, n = int(plan.seg_first_row[s]), int(plan.seg_len[s])
        before = []
        for source in plan.conv_prev[s].tolist():
            if source >= 0:
                before.append(raw[source])
            elif source == -1:
                before.append(torch.zeros_like(raw[0]))
            else:
                before.append(pools.conv[(-2 - source) // 3, (-2 - source) % 3].double())
        rows = torch.cat([torch.stack(before), raw[first : first + n]])
        for j in range(4):
            y[first : first + n] += rows[j : j + n] * layer.conv[:, j].double()
    y = torch.nn.functional.silu(y)
    kd = layer.nk * layer.dk
    q, k, v = y[:, :kd].view(-1, layer.nk, layer.dk), y[:, kd : 2 * kd].view(-1, layer.nk, layer.dk), y[:, 2 * kd :]
    q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    return q, k, v.view(-1, layer.nv, layer.dv)


def expect(layer: Layer, x: torch.Tensor, plan: RoundPlan, pools: Pools, tiles: tuple | None = None) -> Expected:
    """The round in float64, from x, or from (q, k, v, g, beta) of the same shapes as Expected's."""
    q, k, v, g, beta = tiles or (*convolve(layer, x, plan, pools), *gates(layer, x))
    repeated = [t.repeat_interleave(layer.nv // layer.nk, 1) for t in (q, k)]
    o = torch.zeros_like(v)
    states: dict[int, torch.Tensor] = {}
    windows: dict[int, torch.Tensor] = {}
    for s in range(len(plan.seg_len)):
        first, n, start = int(plan.seg_first_row[s]), int(plan.seg_len[s]), int(plan.seg_start[s])
        rows = slice(first, first + n)
        slot = int(plan.seg_state_in[s])
        state = v.new_zeros(layer.nv, layer.dk, layer.dv)
        if slot >= 0:
            state = states[slot] if slot in states else pools.states[slot].double()
        saves = range(plan.save_ptr[s], plan.save_ptr[s + 1])
        keep = {int(plan.save_pos[i]) - start: int(plan.save_slot[i]) for i in saves}
        o[rows], state, kept = delta_rule(*(t[rows] for t in (*repeated, v, g, beta)), state, list(keep))
        for at, target in keep.items():
            states[target] = kept[at]
            windows[target] = x[first + at - 3 : first + at, : layer.channels].double()
        if plan.seg_state_out[s] >= 0:
            states[int(plan.seg_state_out[s])] = state
    z = layer.z(x).double().view(-1, layer.nv, layer.dv)
    out = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + EPS) * layer.norm.double() * torch.nn.functional.silu(z)
    return Expected(q, k, v, g, beta, o, out, states, windows)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """||a - b|| / ||b|| in float64; infinite when a has a value that is not finite."""
    a, b = a.double(), b.double()
    if not bool(torch.isfinite(a).all()):
        return float("inf")
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def by_row(tile: torch.Tensor, plan: RoundPlan, chunks: Chunks) -> torch.Tensor:
    """[C, heads, 64, ...] by chunk -> [T, heads, ...] by stream row."""
    parts = []
    for s in range(len(plan.seg_len)):
        first, n = int(chunks.first[s]), int(plan.seg_len[s])
        rows = tile[first : first + -(-n // 64)].transpose(1, 2).flatten(0, 1)
        parts.append(rows[:n])
    return torch.cat(parts)
