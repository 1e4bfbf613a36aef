"""Qwen3.5's text tower for training: a batch of trunks of one length, and branches that fork from them on the grid.

The same function as the engine computes, in plain torch with gradients. A branch that forks at position f starts from the trunk's state at
m = f // GRID * GRID: its tokens are the trunk's [m, f) and then the question, so one trunk pass serves all its branches, at any prefix.
Matrix products run in autocast's dtype; norms, decays, the delta rule and the loss stay in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from flide_engine.models.config import LINEAR, ModelConfig
from flide_engine.models.dummy import fill_random
from flide_engine.models.qwen3_5 import EMBED, NAMES, NORM, allocate
from flide_engine.segments import GRID
from torch import Tensor, nn

L2_EPS = 1e-6


@dataclass(frozen=True)
class Batch:
    """trunk [B, L] int64, padded at the end with anything, L a multiple of GRID; trunk_len [B].

    branch [N, R] int64, R a multiple of GRID; branch_len [N] >= 1; owner [N]: row of the branch's trunk;
    start [N]: its m, a multiple of GRID.
    labels [N, K] token ids, -1 where there are fewer; right [N]; kind [N]: which sort of question.
    """

    trunk: Tensor
    trunk_len: Tensor
    branch: Tensor
    branch_len: Tensor
    owner: Tensor
    start: Tensor
    labels: Tensor
    right: Tensor
    kind: Tensor

    def to(self, device: torch.device | str) -> Batch:
        return Batch(*(getattr(self, name).to(device, non_blocking=True) for name in self.__dataclass_fields__))


class Network(nn.Module):
    """Parameters by checkpoint name, in float32 and the checkpoint's shapes."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        if not config.tied:
            raise ValueError("the default model ties its embeddings")
        self.config = config
        weights = allocate(config, "cpu", torch.float32)
        fill_random(weights, seed)
        self.names = tuple(weights.by_name)
        self.values = nn.ParameterList([nn.Parameter(t.clone()) for t in weights.by_name.values()])
        self._at = {name: i for i, name in enumerate(self.names)}
        self._initial()

    def _initial(self) -> None:
        """A start that trains: plain widths, residual branches scaled down with depth. Decays keep the generator's range of memories."""
        depth = (2 * self.config.layers) ** -0.5
        with torch.no_grad():
            for name, value in self.named():
                if name.endswith(("A_log", "dt_bias")):
                    continue
                if value.dim() == 1:
                    value.fill_(1.0 if name.endswith("linear_attn.norm.weight") else 0.0)
                elif "conv1d" not in name:
                    value.mul_(0.02 / value.std())
                    if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                        value.mul_(depth)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        return list(zip(self.names, self.values, strict=True))

    def weight(self, name: str) -> Tensor:
        found: Tensor = self.values[self._at[name]]
        return found

    def _layer(self, i: int) -> dict[str, Tensor]:
        return {field: self.weight(f"layers.{i}.{name}") for field, name in NAMES[self.config.layer_types[i]].items()}

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(hidden of the trunk [B, L, H], label logits [N, K] float32 with -inf where a branch has no such label)."""
        config = self.config
        embed = self.weight(EMBED)
        x, y = F.embedding(batch.trunk, embed), F.embedding(batch.branch, embed)
        for i, kind in enumerate(config.layer_types):
            w = self._layer(i)
            mix = self._linear if kind == LINEAR else self._full
            dx, dy = mix(w, norm(x, w["input_norm"], config.rms_eps), norm(y, w["input_norm"], config.rms_eps), batch)
            x, y = x + dx, y + dy
            x, y = (z + _mlp(w, norm(z, w["post_norm"], config.rms_eps)) for z in (x, y))
        final = self.weight(NORM)
        rows = torch.arange(len(y), device=y.device)
        read = norm(y[rows, batch.branch_len - 1], final, config.rms_eps).float()
        heads = embed[batch.labels.clamp(min=0)].float()
        with torch.autocast(y.device.type, enabled=False):
            logits = (heads * read[:, None]).sum(-1).masked_fill(batch.labels < 0, -torch.inf)
        return norm(x, final, config.rms_eps), logits

    # Gated DeltaNet.

    def _linear(self, w: dict[str, Tensor], x: Tensor, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        raw, raw_branch = F.linear(x, w["in_qkv"]), F.linear(y, w["in_qkv"])
        taps = batch.start[:, None] + torch.arange(-3, 0, device=x.device)
        before = raw[batch.owner[:, None], taps.clamp(min=0)] * (taps >= 0)[..., None]
        zeros = raw.new_zeros(len(raw), 3, raw.shape[-1])
        out, states = self._delta(w, x, torch.cat([zeros, raw], 1), batch.trunk_len, None)
        first = states[batch.owner, batch.start // GRID]
        out_branch, _ = self._delta(w, y, torch.cat([before, raw_branch], 1), batch.branch_len, first)
        return out, out_branch

    def _delta(
        self, w: dict[str, Tensor], x: Tensor, raw: Tensor, length: Tensor, first: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """x [B, L, H], raw [B, 3 + L, C] with the window first. Returns the mixing's output and states [B, L / GRID + 1, heads, dk, dv]."""
        c, (rows, n) = self.config, x.shape[:2]
        conv = w["conv"].squeeze(1)
        mixed = F.silu(torch.stack([raw[:, j : j + n] * conv[:, j] for j in range(4)]).sum(0))
        q, k, v = mixed.split([c.key_width, c.key_width, c.value_width], -1)
        z, b, a = (F.linear(x, w[name]) for name in ("in_z", "in_b", "in_a"))
        with torch.autocast(x.device.type, enabled=False):
            real = (torch.arange(n, device=x.device) < length[:, None])[..., None]
            q = l2(q.float().view(rows, n, c.gdn_key_heads, c.gdn_key_dim)) * c.gdn_key_dim**-0.5
            k = l2(k.float().view(rows, n, c.gdn_key_heads, c.gdn_key_dim))
            # Rows past the end neither decay nor write, so the last state is the one at the end.
            beta = torch.sigmoid(b.float()) * real
            g = -w["A_log"].float().exp() * F.softplus(a.float() + w["dt_bias"].float()) * real
            out, states = delta_rule(q, k, v.float().view(rows, n, c.gdn_value_heads, c.gdn_value_dim), g, beta, first)
            out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + c.rms_eps) * w["gated_norm"]
            out = out.reshape(rows, n, -1) * F.silu(z.float())
        return F.linear(out.to(z.dtype), w["out"]), states

    # Full attention.

    def _full(self, w: dict[str, Tensor], x: Tensor, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        c = self.config
        n, r = x.shape[1], y.shape[1]
        trunk_at = torch.arange(n, device=x.device)[None]
        q, k, v, gate = self._heads(w, x, trunk_at)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=c.head_dim**-0.5)
        q2, k2, v2, gate2 = self._heads(w, y, batch.start[:, None] + torch.arange(r, device=x.device))
        keys, values = torch.cat([k[batch.owner], k2], 2), torch.cat([v[batch.owner], v2], 2)
        own = torch.ones(r, r, dtype=torch.bool, device=x.device).tril()
        history = trunk_at < batch.start[:, None]
        mask = torch.cat([history[:, None].expand(-1, r, -1), own.expand(len(y), -1, -1)], -1)[:, None]
        out2 = F.scaled_dot_product_attention(q2, keys, values, attn_mask=mask, scale=c.head_dim**-0.5)
        return _gated(out, gate, w), _gated(out2, gate2, w)

    def _heads(self, w: dict[str, Tensor], x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        c, (rows, n) = self.config, x.shape[:2]
        both = F.linear(x, w["q"]).view(rows, n, c.heads, 2, c.head_dim)
        q = norm(both[..., 0, :], w["q_norm"], c.rms_eps)
        k = norm(F.linear(x, w["k"]).view(rows, n, c.kv_heads, c.head_dim), w["k_norm"], c.rms_eps)
        v = F.linear(x, w["v"]).view(rows, n, c.kv_heads, c.head_dim)
        rates = c.rope_theta ** (-torch.arange(c.rotary_dim // 2, dtype=torch.float64, device=x.device) * 2 / c.rotary_dim)
        angles = (positions.double()[..., None] * rates)[:, :, None]
        cos, sin = angles.cos().float(), angles.sin().float()
        share = c.heads // c.kv_heads
        q, k = (rotate(t.float(), cos, sin).to(v.dtype).transpose(1, 2) for t in (q, k))
        return q, k.repeat_interleave(share, 1), v.transpose(1, 2).repeat_interleave(share, 1), both[..., 1, :]


def _gated(out: Tensor, gate: Tensor, w: dict[str, Tensor]) -> Tensor:
    return F.linear((out.transpose(1, 2) * torch.sigmoid(gate)).flatten(2), w["o"])


def _mlp(w: dict[str, Tensor], x: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, w["gate"])) * F.linear(x, w["up"]), w["down"])


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The zero-centred norm of Qwen3.5, computed in float32."""
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * (1.0 + weight)).to(x.dtype)


def l2(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + L2_EPS)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """The chunked gated delta rule over a batch of sequences of one length, a multiple of GRID; the formulas of reference/delta_rule.

    q, k [B, L, key heads, dk] normalised, q scaled; v [B, L, H, dv]; g, beta [B, L, H]; first [B, H, dk, dv] or None for zeros.
    Returns out [B, L, H, dv] and the states before each chunk and after the last [B, L / GRID + 1, H, dk, dv].
    """
    rows, n, heads, dv = v.shape
    share = heads // k.shape[2]

    def chunks(t: Tensor) -> Tensor:  # [B, L, h, ...] -> [B, C, h, GRID, ...]
        return t.view(rows, n // GRID, GRID, *t.shape[2:]).transpose(2, 3)

    q, k, v = chunks(q), chunks(k), chunks(v)
    total = chunks(g).cumsum(-1)
    b = chunks(beta)[..., None]
    upper = torch.ones(GRID, GRID, dtype=torch.bool, device=v.device).triu(1)
    decay = (total[..., None] - total[..., None, :]).masked_fill(upper, -torch.inf).exp()
    lower = (b * (k @ k.mT).repeat_interleave(share, 2) * decay).tril(-1)
    inside = (q @ k.mT).repeat_interleave(share, 2) * decay
    q, k = q.repeat_interleave(share, 2), k.repeat_interleave(share, 2)
    grown = total.exp()[..., None]
    solved = inverse(lower) @ torch.cat([b * v, b * k * grown], -1)
    u, w = solved[..., :dv], solved[..., dv:]
    q_decayed = q * grown
    k_decayed = (k * (total[..., -1:] - total).exp()[..., None]).mT
    last = grown[..., -1:, :]
    # A chunk maps the state before it to last * S + k_decayed @ (u - w @ S): its matrix and what it adds.
    keep = last * torch.eye(k.shape[-1], device=v.device) - k_decayed @ w
    before = scan(keep, k_decayed @ u, first)
    out = q_decayed @ before[:, :-1] + inside @ (u - w @ before[:, :-1])
    return out.transpose(2, 3).reshape(rows, n, heads, dv), before


class _Inverse(torch.autograd.Function):
    """(I + L)^-1 of strictly lower L [..., n, n], n a power of two, by joining the inverses of ever larger diagonal blocks.

    As stable as substitution, and all of it products: a library's batched triangular solve is slow for many small matrices.
    """

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        n = lower.shape[-1]
        row = torch.arange(n, device=lower.device)
        inverse = torch.eye(n, device=lower.device, dtype=lower.dtype).expand_as(lower)
        size = 1
        while size < n:
            below = (row[:, None] // size % 2 == 1) & (row[None] // size + 1 == row[:, None] // size)
            part = lower * below
            inverse = inverse - (part if size == 1 else inverse @ part @ inverse)
            size *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grads[0] @ inverse.mT).tril(-1)


def inverse(lower: Tensor) -> Tensor:
    """(I + lower)^-1 for strictly lower triangular matrices of a size that is a power of two."""
    found: Tensor = _Inverse.apply(lower)
    return found


def scan(keep: Tensor, add: Tensor, first: Tensor | None) -> Tensor:
    """States [B, C + 1, H, dk, dv] of S[c + 1] = keep[c] @ S[c] + add[c] from S[0] = first or zeros.

    keep [B, C, H, dk, dk], add [B, C, H, dk, dv]. By doubling: a few large products for C small ones after each other, which a GPU
    would spend its time waiting for.
    """
    span, chunks = 1, keep.shape[1]
    while span < chunks:
        add = torch.cat([add[:, :span], add[:, span:] + keep[:, span:] @ add[:, :-span]], 1)
        if 2 * span < chunks or first is not None:
            keep = torch.cat([keep[:, :span], keep[:, span:] @ keep[:, :-span]], 1)
        span *= 2
    if first is None:
        return torch.cat([torch.zeros_like(add[:, :1]), add], 1)
    return torch.cat([first[:, None], add + keep @ first[:, None]], 1)


def losses(network: Network, batch: Batch, language: float = 0.2, rows: int = 8192) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, answer loss, language loss). The language loss reads at most `rows` random trunk positions: the head is most of its cost."""
    hidden, logits = network(batch)
    answer = F.cross_entropy(logits, batch.right)
    n = batch.trunk.shape[1]
    real = (torch.arange(1, n, device=hidden.device) < batch.trunk_len[:, None]).flatten().nonzero()[:, 0]
    picked = real[torch.randint(len(real), (min(rows, len(real)),), device=hidden.device)]
    states = hidden[:, :-1].flatten(0, 1)[picked]
    told = F.linear(states, network.weight(EMBED)).float()
    next_token = F.cross_entropy(told, batch.trunk[:, 1:].flatten()[picked])
    return answer + language * next_token, answer, next_token
