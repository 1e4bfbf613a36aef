"""SiLU(gate) * up against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from flide_engine.kernels.mlp import silu_mul


@pytest.mark.parametrize("width", [48, 1024, 1500])
def test_silu_mul(device: torch.device, width: int) -> None:
    g = torch.Generator().manual_seed(width)
    x = (3 * torch.randn(3, 2 * width, generator=g)).to(device)
    x[0, 0], x[1, 1] = 100.0, -100.0
    out = torch.full((3, width), torch.nan, device=device)
    silu_mul(x, out)
    torch.testing.assert_close(out, F.silu(x[:, :width]) * x[:, width:], rtol=2e-6, atol=1e-7)
