"""Gated DeltaNet over the forest: one chunk form for all chunks, then the states level by level on the GRID.

Chunk form of the gated delta rule (Yang et al., Gated Delta Networks, 2025): with G the running sum of g inside a chunk,
A = strictly lower part of beta_i (k_i . k_j) exp(G_i - G_j), [U W] = (I + A)^-1 [beta v, beta k exp(G)], and from a state S
    v' = U - W S,   o = (q exp(G)) S + lower((q k^T) exp(G_i - G_j)) v',   S <- exp(G_last) S + (k exp(G_last - G))^T v'.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from flide_engine.models import LinearLayer, ModelConfig
from flide_engine.reference.layout import Layout, Level
from flide_engine.reference.products import pointwise
from flide_engine.segments import GRID

Tensor = torch.Tensor

L2_EPS = 1e-6


def convolve(x: Tensor, weight: Tensor, window: Tensor, at: Layout) -> Tensor:
    """Causal depthwise convolution of 4 taps over raw rows x [Tp, C], as shifts; weight [C, 4], window [slots, 3, C]. No activation."""
    out = x * weight[:, 3]
    for k, fix in enumerate(at.conv, start=1):
        before = torch.empty_like(x)
        before[k:] = x[:-k]
        before[:k] = 0
        before[fix.rows_from_stream] = x[fix.stream_rows]
        before[fix.rows_from_slots] = window.view(-1, x.shape[1])[fix.slot_taps]
        before[fix.rows_of_zeros] = 0
        out += before.mul_(weight[:, 3 - k])
    return out


def _l2norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + L2_EPS)


class Chunks:
    """What no state has touched yet, for N chunks and H value heads: see the module's formulas.

    u: [N, H, GRID, dv]; w, q_decayed, k_decayed: [N, H, GRID, dk]; inside: [N, H, GRID, GRID]; last: [N, H, 1, 1] = exp(G_last).
    """

    def __init__(self, config: ModelConfig, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> None:
        """q, k: [N, GRID, key heads, dk] normalised, q scaled; v: [N, GRID, H, dv]; g, beta: [N, GRID, H]; zeros at padded rows."""
        n, heads = v.shape[0], config.gdn_value_heads
        share = heads // config.gdn_key_heads
        q, k = q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()
        beta = beta.transpose(1, 2).contiguous().unsqueeze(-1)
        # In float32 the running sum alone would cost a relative error of 1e-6 in decays between distant tokens.
        exact = g.transpose(1, 2).contiguous().double().cumsum(-1)
        total = exact.to(g.dtype)
        difference = (exact.unsqueeze(-1) - exact.unsqueeze(-2)).to(g.dtype)
        upper = torch.ones(GRID, GRID, dtype=torch.bool).triu(1)
        decay = pointwise(torch.exp, difference.masked_fill(upper, -torch.inf))

        def products(a: Tensor) -> Tensor:
            return torch.matmul(a, k.transpose(-1, -2)).repeat_interleave(share, 1)

        lower = (beta * products(k) * decay).tril(-1)
        self.inside = products(q) * decay
        del decay, difference
        q, k = q.repeat_interleave(share, 1), k.repeat_interleave(share, 1)
        grown = pointwise(torch.exp, total).unsqueeze(-1)
        rhs = torch.cat([beta * v.transpose(1, 2), beta * k * grown], -1)
        solved = torch.linalg.solve_triangular(lower, rhs, upper=False, unitriangular=True)
        self.u, self.w = (x.contiguous() for x in solved.split([v.shape[-1], k.shape[-1]], -1))
        self.q_decayed = q * grown
        self.k_decayed = k * pointwise(torch.exp, (exact[..., -1:] - exact).to(g.dtype)).unsqueeze(-1)
        self.last = grown[:, :, -1:, :].reshape(n, heads, 1, 1)


def scan(chunks: Chunks, level: Level, states: Tensor, out: Tensor) -> None:
    """Run the states of one level through their chunks. states: [slots, H, dk, dv], read and written; out: [N, H, GRID, dv]."""
    if not level.chunks:
        return
    zero = torch.zeros_like(states[0])
    state = torch.stack([states[s] if s >= 0 else zero for s in level.state_in])
    for c in range(level.counts[0]):
        active = sum(1 for count in level.counts if count > c)
        at = torch.tensor([first + c for first in level.chunks[:active]])
        s = state[:active]
        v_new = chunks.u[at] - torch.matmul(chunks.w[at], s)
        out[at] = torch.matmul(chunks.q_decayed[at], s) + torch.matmul(chunks.inside[at], v_new)
        state[:active] = chunks.last[at] * s + torch.matmul(chunks.k_decayed[at].transpose(-1, -2), v_new)
        for i, slot in level.saves.get(c, ()):
            states[slot] = state[i]
    for i, slot in enumerate(level.state_out):
        if slot >= 0:
            states[slot] = state[i]


def gated_delta_net(
    config: ModelConfig, layer: LinearLayer, projected: Tensor, window: Tensor, states: Tensor, at: Layout
) -> Tensor:
    """The mixing of one layer, from its fused projection [Tp, qkv | b | a | padding | z] to the input of out_proj [Tp, H * dv].

    window: [slots, 3, C] and states: [slots, H, dk, dv] of this layer, read where segments start and written where they save.
    """
    channels, width, heads = config.conv_channels, config.value_width, config.gdn_value_heads
    raw = projected[:, :channels].contiguous()
    b, a = (x.contiguous() for x in projected[:, channels : channels + 2 * heads].split(heads, -1))
    z = projected[:, layer.in_first.shape[0] :].contiguous()
    window[at.conv_save_slots] = raw[at.conv_save_rows]
    mixed = pointwise(F.silu, convolve(raw, layer.conv, window, at))
    q, k, v = mixed.split([config.key_width, config.key_width, width], -1)
    q = _l2norm(q.reshape(-1, config.gdn_key_heads, config.gdn_key_dim)) * config.gdn_key_dim**-0.5
    k = _l2norm(k.reshape(-1, config.gdn_key_heads, config.gdn_key_dim))
    v = v.reshape(-1, heads, config.gdn_value_dim)
    beta = pointwise(torch.sigmoid, b)
    g = -torch.exp(layer.A_log.to(a.dtype)) * pointwise(F.softplus, a + layer.dt_bias.to(a.dtype))

    def chunked(x: Tensor) -> Tensor:
        picked = x[at.chunk_rows].view(-1, GRID, *x.shape[1:])
        return picked.masked_fill_(at.chunk_pad.view(*at.chunk_pad.shape, *[1] * (x.dim() - 1)), 0)

    chunks = Chunks(config, *(chunked(x) for x in (q, k, v, g, beta)))
    out = torch.empty_like(chunks.u)
    for level in at.levels:
        scan(chunks, level, states, out)
    rows = out.transpose(1, 2).reshape(-1, heads, config.gdn_value_dim)[at.row_of_chunk]
    mixed_rows = rows.new_zeros(at.rows, heads, config.gdn_value_dim)
    mixed_rows[: rows.shape[0]] = rows
    normed = mixed_rows * torch.rsqrt(mixed_rows.pow(2).mean(-1, keepdim=True) + config.rms_eps) * layer.gated_norm
    return (normed.view(at.rows, -1) * pointwise(F.silu, z)).contiguous()
