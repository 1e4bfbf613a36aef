"""Label logits of readout rows: final norm, then a float32 dot with the label rows of the head. No vocabulary product."""

from __future__ import annotations

from typing import Any

from flide_engine.kernels.language import tl, triton

Tensor = Any
LABELS_A_PROGRAM = 8


@triton.jit(do_not_specialize=["count"])
def _label_logits(
    residual, delta, weight, head, label_ptr, label_ids, logits, place, count, eps, softcap,
    HAS_PLACE: tl.constexpr, HAS_SOFTCAP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    readout = tl.program_id(0).to(tl.int64)
    if readout < count:
        first = tl.load(label_ptr + readout)
        end = tl.load(label_ptr + readout + 1)
        entry = first + tl.program_id(1) * LABELS + tl.arange(0, LABELS)
        if first + tl.program_id(1) * LABELS < end:
            column = tl.arange(0, BLOCK)
            x = tl.load(residual + readout * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
            x += tl.load(delta + readout * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
            x = x.to(residual.dtype.element_ty).to(tl.float32)
            scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / WIDTH + eps)
            token = tl.load(label_ids + entry, mask=entry < end, other=0).to(tl.int64)
            total = tl.zeros([LABELS, CHUNK], tl.float32)
            for start in range(0, WIDTH, CHUNK):
                c = start + tl.arange(0, CHUNK)
                y = tl.load(residual + readout * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32)
                y += tl.load(delta + readout * WIDTH + c, mask=c < WIDTH, other=0.0).to(tl.float32)
                y = y.to(residual.dtype.element_ty).to(tl.float32)
                w = tl.load(weight + c, mask=c < WIDTH, other=0.0).to(tl.float32)
                y = y * scale * (1.0 + w)
                rows = tl.load(head + token[:, None] * WIDTH + c[None, :], mask=(c < WIDTH)[None, :], other=0.0)
                total += rows.to(tl.float32) * y[None, :]
            dot = tl.sum(total, axis=1)
            if HAS_SOFTCAP:
                # tanh by exp2, which every triton has: 1 - 2 / (exp(2x) + 1)
                dot = softcap * (1.0 - 2.0 / (tl.exp(2.0 * dot / softcap) + 1.0))
            if HAS_PLACE:
                logits += tl.load(place)
            tl.store(logits + entry, dot, mask=entry < end)


def label_logits(
    residual: Tensor, delta: Tensor, weight: Tensor, head: Tensor, label_ptr: Tensor, label_ids: Tensor, logits: Tensor, *,
    count: int, most_labels: int, eps: float, softcap: float | None = None, place: Tensor | None = None,
) -> None:  # fmt: skip
    """logits[e] = head[label_ids[e]] . rms_norm(residual[r] + delta[r]) for every entry e of readout r.

    residual, delta: [>= count, H]; the sum is rounded to their dtype as everywhere in the residual stream, then all is float32.
    weight: [H] zero-centred. head: [vocab, H]. label_ptr: [count + 1], label_ids: [>= L] int32. logits: [L] float32, also in pinned
    host memory. place: [1] int32, entry of logits that stands for the first.
    most_labels: at least the largest number of labels of one readout. softcap: cap * tanh(logit / cap) when given.
    The sum's order is fixed by H.
    """
    width = residual.shape[1]
    if count == 0:
        return
    grid = (count, triton.cdiv(most_labels, LABELS_A_PROGRAM))
    _label_logits[grid](
        residual, delta, weight, head, label_ptr, label_ids, logits, place, count, eps, softcap or 0.0,
        HAS_PLACE=place is not None, HAS_SOFTCAP=softcap is not None, WIDTH=width, BLOCK=triton.next_power_of_2(width),
        CHUNK=min(512, triton.next_power_of_2(width)),
        LABELS=LABELS_A_PROGRAM, num_warps=8 if width > 256 else 4,
    )  # fmt: skip
