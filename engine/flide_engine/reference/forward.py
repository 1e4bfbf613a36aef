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
from flide_engine.vocabulary import log_sum_exp

Tensor = torch.Tensor


@torch.inference_mode()
def forward(
    model: Model, memory: Memory, plan: RoundPlan, products: Products, rotary: Rotary, *, alone: bool = False
) -> Tensor:
    """Run one planned pass. Returns in the model's dtype the label logits [L], in the order of plan.label_ids, and behind them the
    sums over the vocabulary [W] of plan.mass. alone: see `log_sum_exp`.

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
    hidden = rms_norm(x, model.norm, config.rms_eps)
    logits = label_logits(model, hidden, plan)
    if not len(plan.mass):
        return logits
    sums = log_sum_exp(hidden[torch.from_numpy(plan.mass).long()], model.head, softcap=config.softcap, alone=alone)
    return torch.cat([logits, sums])


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
