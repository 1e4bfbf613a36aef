"""The chunked gated delta rule with gradients, over a batch of sequences of one length: the formulas of reference/delta_rule."""

from __future__ import annotations

from typing import Any

import torch
from flide_engine.segments import GRID
from torch import Tensor

from training.kernels import invert
from training.pieces import PLAIN, Pieces


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, first: Tensor | None, pieces: Pieces = PLAIN
) -> tuple[Tensor, Tensor]:
    """q, k [B, L, key heads, dk] normalised, q scaled; v [B, L, H, dv]; g, beta [B, L, H]; L a multiple of GRID; float32.

    first [B, H, dk, dv] or None for zeros. Returns out [B, L, H, dv] and the states before each chunk and after the last
    [B, H, L / GRID + 1, dk, dv].
    """
    rows, n, heads, dv = v.shape
    share = heads // k.shape[2]

    def chunks(t: Tensor) -> Tensor:  # [B, L, h, ...] -> [B, h, C, GRID, ...], heads before chunks: the scan steps through them
        return t.view(rows, n // GRID, GRID, *t.shape[2:]).movedim(3, 1).contiguous()

    q, k, v, b = chunks(q), chunks(k), chunks(v), chunks(beta)
    total = chunks(g).cumsum(-1)
    lower, within = pieces.inside(k @ k.mT, q @ k.mT, total, b, share)
    right, q_decayed, k_decayed = pieces.sides(q, k, v, total, b, share)
    solved = inverse(lower) @ right
    u, w = solved[..., :dv], solved[..., dv:]
    # A chunk maps the state before it to last * S + k_decayed^T @ (u - w @ S): its matrix and what it adds.
    moved = k_decayed.mT @ solved
    last = total[..., -1].exp()[..., None, None]
    keep = last * torch.eye(k.shape[-1], device=v.device) - moved[..., dv:]
    before = scan(keep, moved[..., :dv], first)
    at = before[:, :, :-1]
    out = q_decayed @ at + within @ (u - w @ at)
    return out.movedim(1, 3).reshape(rows, n, heads, dv), before


class _Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        found: Tensor = invert(lower)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        grad: Tensor = -(found.mT @ grads[0] @ found.mT).tril(-1)
        return grad


def inverse(lower: Tensor) -> Tensor:
    """(I + lower)^-1 for strictly lower triangular matrices of a size that is a power of two."""
    found: Tensor = _Inverse.apply(lower)  # type: ignore[no-untyped-call]
    return found


class _Scan(torch.autograd.Function):
    """One small product a chunk, in place in one buffer; the gradient of all matrices is one large product."""

    @staticmethod
    def forward(ctx: Any, keep: Tensor, add: Tensor, first: Tensor | None) -> Tensor:
        many, chunks, dk, dv = add.shape
        states = add.new_empty(many, chunks + 1, dk, dv)
        states[:, 1:] = add
        states[:, 0] = 0.0 if first is None else first
        for c in range(0 if first is not None else 1, chunks):  # from zeros, the first step adds nothing
            states[:, c + 1].baddbmm_(keep[:, c], states[:, c])
        ctx.save_for_backward(keep, states)
        ctx.from_zeros = first is None
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        keep, states = ctx.saved_tensors
        into = grads[0][:, 1:].clone(memory_format=torch.contiguous_format)
        for c in range(keep.shape[1] - 1, 0, -1):
            into[:, c - 1].baddbmm_(keep[:, c].mT, into[:, c])
        first = None if ctx.from_zeros else torch.baddbmm(grads[0][:, 0], keep[:, 0].mT, into[:, 0])
        return into @ states[:, :-1].mT, into, first


def scan(keep: Tensor, add: Tensor, first: Tensor | None) -> Tensor:
    """States [B, H, C + 1, dk, dv] of S[c + 1] = keep[c] @ S[c] + add[c] from S[0] = first or zeros.

    keep [B, H, C, dk, dk], add [B, H, C, dk, dv], first [B, H, dk, dv].
    """
    flat = None if first is None else first.flatten(0, 1)
    found: Tensor = _Scan.apply(keep.flatten(0, 1), add.flatten(0, 1), flat)  # type: ignore[no-untyped-call]
    return found.view(*add.shape[:2], -1, *add.shape[3:])
