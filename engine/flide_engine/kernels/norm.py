"""Add + RMSNorm over rows: the residual stream's two steps in one pass."""

from __future__ import annotations

from typing import Any

from flide_engine.kernels.early import launch, wait_for_previous
from flide_engine.kernels.language import tl, triton

Tensor = Any


@triton.jit
def _add_rms_norm(
    source, rows, delta, weight, residual, out,
    source_stride, eps,
    HAS_ROWS: tl.constexpr, HAS_DELTA: tl.constexpr, KEEP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    from_row = row
    if HAS_ROWS:
        from_row = tl.load(rows + row).to(tl.int64)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        wait_for_previous()
    x = tl.load(source + from_row * source_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        # The residual stream lives in the activation dtype, and the norm sees what the stream holds.
        x = x.to(residual.dtype.element_ty).to(tl.float32)
    if KEEP:
        tl.store(residual + row * WIDTH + column, x.to(residual.dtype.element_ty), mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / WIDTH + eps)
    y = x * scale * (1.0 + w)
    tl.store(out + row * WIDTH + column, y.to(out.dtype.element_ty), mask=inside)


def norm_warps(width: int) -> int:
    """Warps of one row's program. By the width alone: more warps would reorder the row's sum."""
    return 4 if width <= 2048 else 8


def add_rms_norm(
    source: Tensor, weight: Tensor, out: Tensor, *, eps: float, delta: Tensor | None = None, residual: Tensor | None = None,
    rows: Tensor | None = None, early: bool = False,
) -> None:  # fmt: skip
    """residual[i] = source[rows[i]] + delta[i];  out[i] = rms_norm(residual[i]) * (1 + weight).

    source: [*, H], rows contiguous in H (the embedding table with rows = token ids, or the residual stream itself).
    rows: [N] int32 indices into source, or None for i. delta: [N, H] or None. weight: [H], zero-centred.
    residual: [N, H] or None; may be `source` when rows is None. Required with delta. out: [N, H].
    All of one dtype, bfloat16 or float32. Inside float32: the sum is rounded to the dtype once, normalised, rounded once more.
    early: see kernels.early; rows must have been there when the kernel before began.
    One program a row, so a row's bits depend on nothing but the row.
    """
    count, width = out.shape
    if delta is not None and residual is None:
        raise ValueError("a sum needs a residual to go to")
    if residual is not None and rows is not None and residual.data_ptr() == source.data_ptr():
        raise ValueError("rows cannot be gathered in place")
    if count == 0:
        return
    _add_rms_norm[(count,)](
        source, rows, delta, weight, residual, out, source.stride(0), eps,
        HAS_ROWS=rows is not None, HAS_DELTA=delta is not None, KEEP=residual is not None,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=norm_warps(width),
        **launch(early),
    )  # fmt: skip
