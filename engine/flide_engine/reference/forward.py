"""The forward pass of a round: a stream of tokens in, float label logits out, checkpoints written on the way."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from flide_engine.memory import Memory
from flide_engine.models import FullLayer, LinearLayer, Model
from flide_engine.plan import RoundPlan
from flide_engine.reference.attention import Attention, Rotary
from flide_engine.reference.delta_rule import gated_delta_net
from flide_engine.reference.layout import Layout, layout
from flide_engine.reference.products import Products, padded, pointwise, rms_norm
from flide_engine.segments import GRID

Tensor = torch.Tensor


@torch.inference_mode()
def forward(model: Model, memory: Memory, plan: RoundPlan, products: Products, rotary: Rotary) -> Tensor:
    """Run one planned pass. Returns the label logits [L] in the model's dtype, in the order of plan.label_ids.

    Writes the K/V pages of all trunk rows and the states and conv windows of all saves into `memory`. In the last layer queries,
    output projection and MLP run on the readout rows only.
    """
    config, at = model.config, layout(plan)
    x = model.embed[at.token_ids]
    linear = full = 0
    for i, layer in enumerate(model.layers):
        last = i + 1 == config.layers
        normed = rms_norm(x, layer.input_norm, config.rms_eps)
        if isinstance(layer, LinearLayer):
            projected = products(normed, layer.in_all)
            mixed = gated_delta_net(config, layer, projected, memory.conv[linear], memory.states[linear], at)
            linear += 1
            if last:
                mixed, x = _readout_rows(mixed, at), _readout_rows(x, at)
            x = x + products(mixed, layer.out)
        elif isinstance(layer, FullLayer):
            projected = products(normed, layer.qkv)
            attention = Attention(config, layer, rotary, memory, full, at, projected)
            full += 1
            if last:
                mixed, x = attention.readout_rows(), _readout_rows(x, at)
            else:
                mixed = attention.all_rows()
            x = x + products(mixed, layer.o)
        gate, up = products(rms_norm(x, layer.post_norm, config.rms_eps), layer.gate_up).chunk(2, -1)
        x = x + products(pointwise(F.silu, gate.contiguous()) * up, layer.down)
    return label_logits(model, rms_norm(x, model.norm, config.rms_eps), plan)


def _readout_rows(x: Tensor, at: Layout) -> Tensor:
    out = x.new_zeros(padded(len(at.readout_rows)), x.shape[1])
    out[: len(at.readout_rows)] = x[at.readout_rows]
    return out


def label_logits(model: Model, hidden: Tensor, plan: RoundPlan) -> Tensor:
    """Dot products of readout rows [R, H] with the head rows of their labels; no product with the vocabulary. Returns [L]."""
    n = len(plan.label_ids)
    labels = torch.zeros(padded(n), dtype=torch.long)
    rows = torch.zeros_like(labels)
    labels[:n] = torch.from_numpy(plan.label_ids)
    rows[:n] = torch.repeat_interleave(torch.arange(len(plan.readout_row)), torch.from_numpy(plan.label_ptr).long().diff())
    out = torch.cat([(hidden[r] * model.head[t]).sum(-1) for r, t in zip(rows.split(GRID), labels.split(GRID), strict=True)])[
        :n
    ]
    if model.config.softcap is not None:
        out = model.config.softcap * pointwise(torch.tanh, F.pad(out / model.config.softcap, (0, -n % GRID)))[:n]
    return out
