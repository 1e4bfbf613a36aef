"""The sum over the whole vocabulary: what turns label logits into shares of everything that the model might say.

Plain torch, the same on every device. Only readouts that ask for it pay: it is a product with the whole output head.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from flide_engine.reference.products import pointwise, rms_norm
from flide_engine.segments import GRID

Tensor = torch.Tensor

COLUMNS = 4096
"""Rows of the head in one product: bounds the memory for logits and for a float32 copy of a narrower head."""


@torch.inference_mode()
def log_sum_exp(rows: Tensor, head: Tensor, *, softcap: float | None = None, alone: bool = False) -> Tensor:
    """log(sum(exp(logits))) over the whole vocabulary for each row. rows: [R, H] after the final norm, R >= 0; head: [V, H].

    Returns [R] float32, float64 for float64 rows. softcap: logits are cap * tanh(logit / cap). Products and sums have that
    precision whatever the head's, and one shape for all R: blocks of GRID rows (zero rows behind the last) by COLUMNS of the
    vocabulary, added up from the first column block to the last. So a row's bits do not depend on the rows beside it where a
    block's product has the same bits in every one of its rows; `place_matters` tells. alone: give each row a block of its own.
    """
    wide = torch.float64 if rows.dtype is torch.float64 else torch.float32
    step = 1 if alone else GRID
    blocks = [_block(rows[at : at + step].to(wide)) for at in range(0, len(rows), step)]
    most = [b.new_full((GRID,), -torch.inf) for b in blocks]
    total = [b.new_zeros(GRID) for b in blocks]
    for columns in _columns(head, wide):
        for i, block in enumerate(blocks):
            logits = block @ columns.T
            if softcap is not None:
                logits = softcap * pointwise(torch.tanh, logits / softcap)
            top = torch.maximum(most[i], logits.amax(-1))
            own = pointwise(torch.exp, logits - top[:, None]).sum(-1)
            total[i] = total[i] * pointwise(torch.exp, most[i] - top) + own
            most[i] = top
    sums = [(m + pointwise(torch.log, t))[:step] for m, t in zip(most, total, strict=True)]
    return torch.cat(sums)[: len(rows)] if sums else rows.new_zeros(0, dtype=wide)


@torch.inference_mode()
def place_matters(head: Tensor) -> bool:
    """Whether a row's bits depend on its place in a block, for every column block's shape, on this machine."""
    wide = torch.float64 if head.dtype is torch.float64 else torch.float32
    generator = torch.Generator(device=head.device).manual_seed(0)
    block = torch.randn(GRID, head.shape[1], generator=generator, device=head.device, dtype=wide)
    seen: set[int] = set()
    for columns in _columns(head, wide):
        if len(columns) not in seen:
            seen.add(len(columns))
            want = block @ columns.T
            for by in (1, 7, 16, 33):
                if not torch.equal((block.roll(by, 0) @ columns.T).roll(-by, 0), want):
                    return True
    return False


@torch.inference_mode()
def normed_rows(residual: Tensor, delta: Tensor, weight: Tensor, rows: Tensor, *, eps: float) -> Tensor:
    """What `kernels.readout` makes its dots of: rows [W] (int64) of residual + delta, rounded to their dtype, after the final norm.

    residual, delta: [>= max(rows) + 1, H]; weight: [H] zero-centred. Returns [W, H] float32, with one shape for all W as above.
    """
    out = []
    for part in rows.split(GRID):
        x = _block((residual[part].float() + delta[part].float()).to(residual.dtype).float())
        out.append(rms_norm(x, weight.float(), eps)[: len(part)])
    return torch.cat(out) if len(rows) else residual.new_zeros(0, residual.shape[1], dtype=torch.float32)


def _block(rows: Tensor) -> Tensor:
    out = rows.new_zeros(GRID, rows.shape[1])
    out[: len(rows)] = rows
    return out


def _columns(head: Tensor, wide: torch.dtype) -> Iterator[Tensor]:
    for at in range(0, len(head), COLUMNS):
        yield head[at : at + COLUMNS].to(wide)
