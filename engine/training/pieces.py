"""The pointwise parts of a layer, each one function, so that a GPU can run each as one kernel.

`PLAIN` runs them as they stand; `compiled()` is the same functions through torch.compile, one kernel each for forward and backward.
Everything is computed in float32; `dtype` is what the next matrix product reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

L2_EPS = 1e-6


def norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The zero-centred norm of Qwen3.5 over the last dimension."""
    return F.rms_norm(x.float(), (x.shape[-1],), 1.0 + weight.float(), eps).to(dtype)


def l2(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + L2_EPS)


def mixed(
    before: Tensor, raw: Tensor, conv: Tensor, a_log: Tensor, bias: Tensor, real: Tensor, sizes: tuple[int, int, int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Convolution, l2 norms and gates of Gated DeltaNet.

    before [B, 3, C], raw [B, L, C + 2 H]: the window, and what the projections give (q, k, v, then a and b of the gates); conv [C, 4];
    real [B, L, 1]: rows past the end neither decay nor write. sizes: key heads, their width, value heads, their width.
    Returns q, k [B, L, key heads, dk], v [B, L, H, dv], g, beta [B, L, H], float32.
    """
    keys, dk, heads, dv = sizes
    rows, n = raw.shape[:2]
    window, gates = torch.cat([before, raw[..., : conv.shape[0]]], 1).float(), raw[..., conv.shape[0] :].float()
    taps = conv.float()
    y = F.silu(
        window[:, :n] * taps[:, 0]
        + window[:, 1 : n + 1] * taps[:, 1]
        + window[:, 2 : n + 2] * taps[:, 2]
        + window[:, 3 : n + 3] * taps[:, 3]
    )
    q, k, v = y.split([keys * dk, keys * dk, heads * dv], -1)
    a, b = gates.split([heads, heads], -1)
    q = l2(q.view(rows, n, keys, dk)) * dk**-0.5
    k = l2(k.view(rows, n, keys, dk))
    g = -a_log.float().exp() * F.softplus(a + bias.float()) * real
    return q, k, v.view(rows, n, heads, dv), g, torch.sigmoid(b) * real


def inside(kk: Tensor, qk: Tensor, total: Tensor, beta: Tensor, share: int) -> tuple[Tensor, Tensor]:
    """What a chunk's rows do to each other: (lower of the system to solve, query against key), both [B, H, C, n, n] with decays.

    kk, qk [B, key heads, C, n, n]; total, beta [B, H, C, n]."""
    n = total.shape[-1]
    at = torch.arange(n, device=total.device)
    apart = total[..., :, None] - total[..., None, :]
    decay = torch.where(at[:, None] >= at, apart, -torch.inf).exp()
    lower = torch.where(at[:, None] > at, beta[..., None] * _shared(kk, share) * decay, 0.0)
    return lower, _shared(qk, share) * decay


def sides(q: Tensor, k: Tensor, v: Tensor, total: Tensor, beta: Tensor, share: int) -> tuple[Tensor, Tensor, Tensor]:
    """(right sides of the system [B, H, C, n, dv + dk], decayed queries, decayed keys [B, H, C, n, dk])."""
    grown, b = total.exp()[..., None], beta[..., None]
    k = _shared(k, share)
    right = torch.cat([b * v, b * k * grown], -1)
    return right, _shared(q, share) * grown, k * (total[..., -1:] - total).exp()[..., None]


def _shared(t: Tensor, share: int) -> Tensor:
    """Every key head for each of its value heads: [B, h, C, ...] to [B, h * share, C, ...]."""
    return t[:, :, None].expand(-1, -1, share, *t.shape[2:]).flatten(1, 2)


def finished(out: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The gated norm of Gated DeltaNet. out [B, L, H, dv] float32, z [B, L, H * dv]; returns z's shape and dtype."""
    y = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + eps) * weight.float()
    return (y.flatten(2) * F.silu(z.float())).to(z.dtype)


def headed(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Norm and rotary embedding of heads. x [B, L, heads, d]; cos, sin [1 or B, L, 1, half]. Returns [B, heads, L, d] in x's dtype."""
    y = F.rms_norm(x.float(), (x.shape[-1],), 1.0 + weight.float(), eps)
    half = cos.shape[-1]
    a, b, rest = y[..., :half], y[..., half : 2 * half], y[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype).transpose(1, 2)


def opened(out: Tensor, gate: Tensor) -> Tensor:
    """Attention's output under its gate. out [B, heads, L, d], gate [B, L, heads, d]; returns [B, L, heads * d]."""
    return (out.transpose(1, 2) * torch.sigmoid(gate.float())).to(gate.dtype).flatten(2)


def swiglu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return (F.silu(gate.float()) * up.float()).to(both.dtype)


@dataclass(frozen=True)
class Pieces:
    norm: Callable[..., Tensor]
    mixed: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]
    inside: Callable[..., tuple[Tensor, Tensor]]
    sides: Callable[..., tuple[Tensor, Tensor, Tensor]]
    finished: Callable[..., Tensor]
    headed: Callable[..., Tensor]
    opened: Callable[..., Tensor]
    swiglu: Callable[..., Tensor]


PLAIN = Pieces(norm, mixed, inside, sides, finished, headed, opened, swiglu)


def compiled() -> Pieces:
    """The same through torch.compile, for any shape. It compiles at the first call of each, a few seconds each."""
    return Pieces(*(torch.compile(getattr(PLAIN, name), dynamic=True) for name in Pieces.__dataclass_fields__))
