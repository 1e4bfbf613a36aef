"""Label logits against a full product with the head."""

from __future__ import annotations

import pytest
import torch
from flide_engine.kernels.readout import label_logits


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("width", [96, 600])
def test_label_logits(device: torch.device, width: int, softcap: float | None) -> None:
    g = torch.Generator().manual_seed(width)
    counts = [1, 8, 9, 26]
    residual, delta = (torch.randn(16, width, generator=g).to(device) for _ in range(2))
    weight, head = torch.randn(width, generator=g).to(device), torch.randn(50, width, generator=g).to(device)
    ptr = torch.tensor([0, 1, 9, 18, 44], dtype=torch.int32, device=device)
    ids = torch.randint(0, 50, (44,), generator=g).int().to(device)
    out = torch.full((44,), torch.nan, device=device)
    label_logits(residual, delta, weight, head, ptr, ids, out, count=4, most_labels=26, eps=1e-6, softcap=softcap)
    x = (residual + delta)[:4].double()
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight.double())
    want = (x @ head.double().T)[torch.repeat_interleave(torch.arange(4), torch.tensor(counts)).to(device), ids.long()]
    if softcap is not None:
        want = softcap * torch.tanh(want / softcap)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)
