"""Qwen3.5's text tower as plain tensors: which tensors there are, what they are called in a checkpoint, how they lie in memory.

Matrices are [out, in] as in the checkpoint. Products that read the same input lie in one buffer, and the single fields are
views of it, so both forms exist without a second copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flide_engine.models.config import FULL, LINEAR, ModelConfig

ROW_PADDING = 64
"""Rows of LinearLayer.in_first are padded with zero rows to a multiple of this: odd widths cost visibly in matrix products."""
PADDING = ""
"""In FUSED: zero rows up to the next multiple of ROW_PADDING."""

# field -> name in the checkpoint, under "layers.{i}."
COMMON_NAMES = {
    "input_norm": "input_layernorm.weight",
    "post_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
LINEAR_NAMES = {
    **COMMON_NAMES,
    "in_qkv": "linear_attn.in_proj_qkv.weight",
    "in_z": "linear_attn.in_proj_z.weight",
    "in_b": "linear_attn.in_proj_b.weight",
    "in_a": "linear_attn.in_proj_a.weight",
    "conv": "linear_attn.conv1d.weight",
    "A_log": "linear_attn.A_log",
    "dt_bias": "linear_attn.dt_bias",
    "gated_norm": "linear_attn.norm.weight",
    "out": "linear_attn.out_proj.weight",
}
FULL_NAMES = {
    **COMMON_NAMES,
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
NAMES = {LINEAR: LINEAR_NAMES, FULL: FULL_NAMES}
EMBED, NORM, HEAD = "embed_tokens.weight", "norm.weight", "lm_head.weight"

# fused buffer -> its parts in order
FUSED: dict[str, dict[str, tuple[str, ...]]] = {
    LINEAR: {"in_all": ("in_qkv", "in_b", "in_a", PADDING, "in_z"), "gate_up": ("gate", "up")},
    FULL: {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")},
}
FLOAT32 = frozenset({"A_log", "dt_bias"})
"""Fields kept in float32 whatever the model's dtype: the decay is an exponential of them."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearLayer:
    """One Gated DeltaNet layer. H hidden, C conv channels, V value width, n value heads."""

    input_norm: Tensor  # [H], zero-centred
    post_norm: Tensor  # [H], zero-centred
    in_all: Tensor  # [(C + 2n padded to 64) + V, H]: in_first, then in_z
    in_first: Tensor  # [C + 2n padded to 64, H], view of in_all: qkv, b, a, then zero rows; all that the state's walk needs
    in_qkv: Tensor  # [C, H], view of in_all
    in_b: Tensor  # [n, H], view of in_all
    in_a: Tensor  # [n, H], view of in_all
    in_z: Tensor  # [V, H], view of in_all: the output gate
    conv: Tensor  # [C, 4], tap 3 is the token itself
    A_log: Tensor  # [n] float32
    dt_bias: Tensor  # [n] float32
    gated_norm: Tensor  # [value head dim], not zero-centred
    out: Tensor  # [H, V]
    gate_up: Tensor  # [2 * mlp, H]
    gate: Tensor  # [mlp, H], view of gate_up
    up: Tensor  # [mlp, H], view of gate_up
    down: Tensor  # [H, mlp]


@dataclass(frozen=True, slots=True, eq=False)
class FullLayer:
    """One full-attention layer. H hidden, h heads, g key/value heads, d head dim."""

    input_norm: Tensor  # [H], zero-centred
    post_norm: Tensor  # [H], zero-centred
    qkv: Tensor  # [(2h + 2g) * d, H]
    q: Tensor  # [2 * h * d, H], view of qkv: of each head first the query's d rows, then the gate's
    k: Tensor  # [g * d, H], view of qkv
    v: Tensor  # [g * d, H], view of qkv
    o: Tensor  # [H, h * d]
    q_norm: Tensor  # [d], zero-centred
    k_norm: Tensor  # [d], zero-centred
    gate_up: Tensor  # [2 * mlp, H]
    gate: Tensor  # [mlp, H], view of gate_up
    up: Tensor  # [mlp, H], view of gate_up
    down: Tensor  # [H, mlp]


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """All tensors of one model; `by_name` holds the same memory by checkpoint name, in the checkpoint's shapes."""

    embed: Tensor  # [vocab, H]
    head: Tensor  # [vocab, H]; embed itself when tied
    norm: Tensor  # [H], zero-centred
    layers: tuple[LinearLayer | FullLayer, ...]
    by_name: dict[str, Tensor]

    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.by_name.values())


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model: config and weights on one device. No module, no forward: engine rooms read the tensors.

    digest: SHA-256 hex over config and stored tensors, the same on every device and in every dtype.
    untrained: the weights are random; every answer made with them must say so.
    """

    name: str
    config: ModelConfig
    embed: Tensor
    head: Tensor
    norm: Tensor
    layers: tuple[LinearLayer | FullLayer, ...]
    digest: str
    untrained: bool
    device: torch.device
    dtype: torch.dtype


def field_shapes(config: ModelConfig, kind: str) -> dict[str, tuple[int, ...]]:
    """Shape of every field of a layer of one kind, as the checkpoint stores it."""
    hidden, mlp = config.hidden, config.mlp
    shapes: dict[str, tuple[int, ...]] = {
        "input_norm": (hidden,),
        "post_norm": (hidden,),
        "gate": (mlp, hidden),
        "up": (mlp, hidden),
        "down": (hidden, mlp),
    }
    if kind == LINEAR:
        return shapes | {
            "in_qkv": (config.conv_channels, hidden),
            "in_z": (config.value_width, hidden),
            "in_b": (config.gdn_value_heads, hidden),
            "in_a": (config.gdn_value_heads, hidden),
            "conv": (config.conv_channels, 1, config.conv_kernel),
            "A_log": (config.gdn_value_heads,),
            "dt_bias": (config.gdn_value_heads,),
            "gated_norm": (config.gdn_value_dim,),
            "out": (hidden, config.value_width),
        }
    return shapes | {
        "q": (2 * config.heads * config.head_dim, hidden),
        "k": (config.kv_heads * config.head_dim, hidden),
        "v": (config.kv_heads * config.head_dim, hidden),
        "o": (hidden, config.heads * config.head_dim),
        "q_norm": (config.head_dim,),
        "k_norm": (config.head_dim,),
    }


def fused_rows(parts: tuple[str, ...], shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, slice], int]:
    """Which rows of a fused buffer each part takes, and how many rows it has."""
    places, end = {}, 0
    for part in parts:
        start, end = end, -(-end // ROW_PADDING) * ROW_PADDING if part == PADDING else end + shapes[part][0]
        places[part] = slice(start, end)
    return places, end


def allocate(config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> Weights:
    """Uninitialised tensors of the whole model. On device "meta" it costs nothing and tells names and shapes."""
    by_name: dict[str, Tensor] = {}

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, device=device, dtype=kind)

    embed = by_name[EMBED] = empty(config.vocab_size, config.hidden)
    layers: list[LinearLayer | FullLayer] = []
    for i, kind in enumerate(config.layer_types):
        shapes = field_shapes(config, kind)
        fields: dict[str, Tensor] = {}
        for buffer, parts in FUSED[kind].items():
            places, end = fused_rows(parts, shapes)
            whole = fields[buffer] = empty(end, config.hidden)
            fields |= {part: whole[place] for part, place in places.items() if part != PADDING}
            if PADDING in places:
                whole[places[PADDING]].zero_()
        for field, shape in shapes.items():
            if field not in fields:
                fields[field] = empty(*shape, kind=torch.float32 if field in FLOAT32 else dtype)
            by_name[f"layers.{i}.{NAMES[kind][field]}"] = fields[field]
        if kind == LINEAR:
            fields["conv"] = fields["conv"].squeeze(1)
            fields["in_first"] = fields["in_all"][: -config.value_width]
        built: Any = LinearLayer if kind == LINEAR else FullLayer
        layers.append(built(**fields))
    norm = by_name[NORM] = empty(config.hidden)
    head = embed if config.tied else empty(config.vocab_size, config.hidden)
    if not config.tied:
        by_name[HEAD] = head
    return Weights(embed, head, norm, tuple(layers), by_name)
