"""Gated DeltaNet of branches: state by index from the parent's slot, outputs normalised and gated in the same program.

Branches are short and many, so a program owns a whole head of one branch: the gated norm needs no second pass and nothing but the
layer's output leaves the chip.
"""

from __future__ import annotations

import torch

from flide_engine.kernels.gdn_intra import IntraOut
from flide_engine.kernels.gdn_scan import _check, chunk_step
from flide_engine.kernels.language import tl, triton


def gdn_branch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    intra: IntraOut,
    states: torch.Tensor,
    z: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    eps: float,
    segments: torch.Tensor,
    seg_first_row: torch.Tensor,
    seg_len: torch.Tensor,
    seg_state_in: torch.Tensor,
    seg_state_out: torch.Tensor,
) -> torch.Tensor:
    """The layer's gated outputs of the listed local segments, whose parents' states must be in their slots: one launch a level.

    q, k, v, intra, states, segments and slots as in gdn_scan. z: [T, value_heads * value_dim] with any row stride, last stride 1.
    weight: [value_dim]. out: [T, value_heads, value_dim] contiguous, activation dtype; rows of other segments are left alone.
    out = o * rsqrt(mean o^2 + eps) * weight * silu(z), in float32 and rounded once, as gated_norm does. The same arithmetic for
    every branch, whatever its neighbours; any number of branches may read one slot.
    """
    _check(q, k, v, states)
    nv, dk, dv = states.shape[1:]
    if segments.shape[0] == 0:
        return out
    _gdn_branch[(segments.shape[0], nv)](
        q, k, v, intra.decay, intra.inverse, intra.attention, states, z, weight, out, segments, seg_first_row, seg_len,
        seg_state_in, seg_state_out, dk**-0.5, z.stride(0), eps,
        NK=k.shape[1], NV=nv, DK=dk, DV=dv, PARTS=intra.inverse.shape[2], STAGES=1, num_warps=8,
    )  # fmt: skip
    return out


@triton.jit
def _gdn_branch(
    q, k, v, decay, inverse, attention, states, z, weight, out, segments, seg_first_row, seg_len,
    seg_state_in, seg_state_out, scale, z_stride, eps,
    NK: tl.constexpr, NV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (listed segments, value heads)."""
    segment = tl.load(segments + tl.program_id(0))
    if segment < 0:
        return
    h = tl.program_id(1)
    columns = tl.arange(0, DV)
    length = tl.load(seg_len + segment)
    first = tl.load(seg_first_row + segment).to(tl.int64)
    place = h * DK * DV + tl.arange(0, DK)[None, :] * DV + columns[:, None]
    source = tl.load(seg_state_in + segment).to(tl.int64)
    state = tl.zeros((DV, DK), tl.float32)
    if source >= 0:
        state = tl.load(states + source * (NV * DK * DV) + place)
    scales = tl.load(weight + columns).to(tl.float32)
    for begin in tl.range(0, length, 64, num_stages=STAGES):
        rows = tl.minimum(length - begin, 64)
        state, o = chunk_step(
            state, q, k, v, decay, inverse, attention, first + begin, rows, h, columns, scale, NK, NV, DK, DV, PARTS
        )  # fmt: skip
        i = tl.arange(0, 64)
        row = first + begin + i
        gate = tl.load(z + row[:, None] * z_stride + (h * DV + columns)[None, :], mask=(i < rows)[:, None], other=0.0).to(tl.float32)
        y = o * tl.rsqrt(tl.sum(o * o, 0) / DV + eps)[None, :] * scales[:, None]
        y = tl.trans(y) * (gate / (1.0 + tl.exp(-gate)))
        at = (row * NV + h)[:, None] * DV + columns[None, :]
        tl.store(out + at, y.to(out.dtype.element_ty), mask=(i < rows)[:, None])
    target = tl.load(seg_state_out + segment).to(tl.int64)
    if target >= 0:
        tl.store(states + target * (NV * DK * DV) + place, state)
