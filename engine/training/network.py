"""Qwen3.5's text tower for training: a batch of trunks of one length, and branches that fork from them on the grid.

The same function as the engine computes, in plain torch with gradients. A branch that forks at position f starts from the trunk's state at
m = f // GRID * GRID: its tokens are the trunk's [m, f) and then the question, so one trunk pass serves all its branches, at any prefix.
Matrix products run in autocast's dtype; norms, decays, the delta rule and the loss stay in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from flide_engine.models.config import LINEAR, ModelConfig
from flide_engine.models.dummy import fill_random
from flide_engine.models.qwen3_5 import EMBED, NAMES, NORM, allocate
from flide_engine.segments import GRID
from torch import Tensor, nn

from training.delta import delta_rule
from training.pieces import PLAIN


@dataclass(frozen=True)
class Batch:
    """trunk [B, L] int64, padded at the end with anything, L a multiple of GRID; trunk_len [B].

    branch [N, R] int64, R a multiple of GRID; branch_len [N] >= 1; owner [N]: row of the branch's trunk;
    start [N]: its m, a multiple of GRID.
    labels [N, K] token ids, -1 where there are fewer; right [N]; kind [N]: which sort of question.
    told [P]: positions of the flat trunk whose next token the language loss asks for; empty in evaluation.
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
    told: Tensor

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
        self.pieces = PLAIN
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
        """(normed hidden rows of the trunk at `told` [P, H], label logits [N, K] float32 with -inf where a branch has no such label)."""
        config = self.config
        embed = self.weight(EMBED)
        x, y = F.embedding(batch.trunk, embed), F.embedding(batch.branch, embed)
        places = self._places(batch, _product_dtype(x))
        for i, kind in enumerate(config.layer_types):
            w = self._layer(i)
            mix = self._linear if kind == LINEAR else self._full
            dx, dy = mix(w, self._norm(x, w["input_norm"]), self._norm(y, w["input_norm"]), batch, places)
            x, y = x + dx, y + dy
            up = torch.cat([w["gate"], w["up"]])
            x, y = (z + F.linear(self.pieces.swiglu(F.linear(self._norm(z, w["post_norm"]), up)), w["down"]) for z in (x, y))
        final = self.weight(NORM)
        rows = torch.arange(len(y), device=y.device) * y.shape[1] + batch.branch_len - 1
        read = self._norm(y.flatten(0, 1).index_select(0, rows), final).float()
        heads = F.embedding(batch.labels.clamp(min=0), embed).float()
        logits = (heads * read[:, None]).sum(-1).masked_fill(batch.labels < 0, -torch.inf)
        return self._norm(x.flatten(0, 1).index_select(0, batch.told), final), logits

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.pieces.norm(x, weight, self.config.rms_eps, _product_dtype(x))

    def _places(self, batch: Batch, dtype: torch.dtype) -> Places:
        c, device = self.config, batch.trunk.device
        n, r = batch.trunk.shape[1], batch.branch.shape[1]
        trunk_at = torch.arange(n, device=device)[None]
        branch_at = torch.arange(r, device=device)[None]
        taps = batch.start[:, None] + torch.arange(-3, 0, device=device)
        rates = c.rope_theta ** (-torch.arange(c.rotary_dim // 2, dtype=torch.float64, device=device) * 2 / c.rotary_dim)
        angles = torch.arange(n + r, dtype=torch.float64, device=device)[:, None] * rates
        rope = torch.stack([angles.cos(), angles.sin()]).float()
        at = (batch.start[:, None] + branch_at).flatten()
        own = rope.index_select(1, at).view(2, *batch.branch.shape, 1, -1)
        heads = batch.owner[:, None] * c.gdn_value_heads + torch.arange(c.gdn_value_heads, device=device)
        history = (trunk_at < batch.start[:, None])[:, None].expand(-1, r, -1)
        mask = torch.cat([history, torch.ones(r, r, dtype=torch.bool, device=device).tril().expand(len(at) // r, -1, -1)], -1)
        return Places(
            (trunk_at < batch.trunk_len[:, None])[..., None],
            (branch_at < batch.branch_len[:, None])[..., None],
            (batch.owner[:, None] * n + taps.clamp(min=0)).flatten(),
            (taps >= 0)[..., None],
            (heads * (n // GRID + 1) + (batch.start // GRID)[:, None]).flatten(),
            rope[:, None, :n, None],
            own,
            torch.zeros((), dtype=dtype, device=device).masked_fill(~mask[:, None], -torch.inf),
        )

    # Gated DeltaNet.

    def _linear(self, w: dict[str, Tensor], x: Tensor, y: Tensor, batch: Batch, places: Places) -> tuple[Tensor, Tensor]:
        c = self.config
        conv = 2 * c.key_width + c.value_width
        all_in = torch.cat([w["in_qkv"], w["in_a"], w["in_b"], w["in_z"]])
        widths = [conv + 2 * c.gdn_value_heads, c.value_width]
        raw, z = F.linear(x, all_in).split(widths, -1)
        raw_branch, z_branch = F.linear(y, all_in).split(widths, -1)
        before = raw.flatten(0, 1).index_select(0, places.taps)[:, :conv].view(len(y), 3, conv) * places.tapped
        zeros = raw.new_zeros(len(raw), 3, conv)
        out, states = self._delta(w, zeros, raw, z, places.real, None)
        first = states.flatten(0, 2).index_select(0, places.state).view(len(y), c.gdn_value_heads, *states.shape[3:])
        out_branch, _ = self._delta(w, before, raw_branch, z_branch, places.real_branch, first)
        return out, out_branch

    def _delta(
        self, w: dict[str, Tensor], before: Tensor, raw: Tensor, z: Tensor, real: Tensor, first: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The mixing's output and the states [B, heads, L / GRID + 1, dk, dv]."""
        c, do = self.config, self.pieces
        sizes = (c.gdn_key_heads, c.gdn_key_dim, c.gdn_value_heads, c.gdn_value_dim)
        with torch.autocast(raw.device.type, enabled=False):
            q, k, v, g, beta = do.mixed(before, raw, w["conv"].squeeze(1), w["A_log"], w["dt_bias"], real, sizes)
            out, states = delta_rule(q, k, v, g, beta, first, do)
            mixed = do.finished(out, z, w["gated_norm"], c.rms_eps)
        return F.linear(mixed, w["out"]), states

    # Full attention.

    def _full(self, w: dict[str, Tensor], x: Tensor, y: Tensor, batch: Batch, places: Places) -> tuple[Tensor, Tensor]:
        c, do = self.config, self.pieces
        q, k, v, gate = self._heads(w, x, places.rope)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=c.head_dim**-0.5)
        q2, k2, v2, gate2 = self._heads(w, y, places.rope_branch)
        keys, values = (torch.cat([a.index_select(0, batch.owner), b], 2) for a, b in ((k, k2), (v, v2)))
        out2 = F.scaled_dot_product_attention(q2, keys, values, attn_mask=places.mask, scale=c.head_dim**-0.5)
        return F.linear(do.opened(out, gate), w["o"]), F.linear(do.opened(out2, gate2), w["o"])

    def _heads(self, w: dict[str, Tensor], x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        c, (rows, n) = self.config, x.shape[:2]
        cos, sin = rope[0], rope[1]
        kv = c.kv_heads * c.head_dim
        both, k, v = F.linear(x, torch.cat([w["q"], w["k"], w["v"]])).split([2 * c.heads * c.head_dim, kv, kv], -1)
        q, gate = both.view(rows, n, c.heads, 2, c.head_dim).unbind(3)
        q = self.pieces.headed(q, w["q_norm"], cos, sin, c.rms_eps)
        k = self.pieces.headed(k.view(rows, n, c.kv_heads, c.head_dim), w["k_norm"], cos, sin, c.rms_eps)
        v = v.view(rows, n, c.kv_heads, c.head_dim).transpose(1, 2)
        k, v = (t[:, :, None].expand(-1, -1, c.heads // c.kv_heads, -1, -1).flatten(1, 2) for t in (k, v))
        return q, k, v, gate


@dataclass(frozen=True)
class Places:
    """What all layers of a pass share. real, real_branch [.., L, 1]: rows before the end. taps [N * 3]: rows of the flat trunk before a
    branch, tapped [N, 3, 1] whether there are such; state [N * H]: which of the flat states [B * H * (C + 1)] a branch starts from; rope,
    rope_branch: (cos, sin); mask [N, 1, R, L + R]: 0 for what a branch's row sees of its trunk and of itself, else -inf."""

    real: Tensor
    real_branch: Tensor
    taps: Tensor
    tapped: Tensor
    state: Tensor
    rope: Tensor
    rope_branch: Tensor
    mask: Tensor


def _product_dtype(x: Tensor) -> torch.dtype:
    """What matrix products read: autocast's dtype, or the tensor's own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def losses(network: Network, batch: Batch, language: float = 0.2) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, answer loss, language loss). The language loss reads the positions `told` of the trunk alone: the head is most of its cost."""
    states, logits = network(batch)
    answer = F.cross_entropy(logits, batch.right)
    told = F.linear(states, network.weight(EMBED)).float()
    next_token = F.cross_entropy(told, batch.trunk.flatten().index_select(0, batch.told + 1))
    return answer + language * next_token, answer, next_token
