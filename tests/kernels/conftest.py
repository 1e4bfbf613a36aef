"""Kernel tests run on the GPU where there is one, and in triton's interpreter (float32) elsewhere; tests/conftest.py turns it on."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
