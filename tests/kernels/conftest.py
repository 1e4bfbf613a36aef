"""Kernel tests run on the GPU where there is one, and in triton's interpreter (float32) elsewhere; tests/conftest.py turns it on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from flide_engine.models import FULL, LINEAR
from flide_engine.models.dummy import SIZES

pytest.importorskip("triton")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


_small = replace(
    SIZES["tiny"], hidden=32, layers=2, layer_types=(LINEAR, FULL), heads=2, kv_heads=1, head_dim=16, mlp=32, gdn_key_heads=1,
    gdn_value_heads=2, gdn_key_dim=16, gdn_value_dim=16, max_context=4096,
)  # fmt: skip
SMALL = {
    "small": _small,
    "small6": replace(_small, heads=6, gdn_value_heads=3, tied=False),  # the grouping of 27B
}
"""A program costs the interpreter milliseconds, so a whole pass there costs by its layers, rows and heads; these have few of the first
and the last. `dummy:tiny` and `dummy:tiny6` take ten times as long and run under the `bars` marker."""


@pytest.fixture(scope="module", autouse=True)
def small_models() -> Iterator[None]:
    """`dummy:small` and the like can be loaded in these tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, config in SMALL.items():
            patch.setitem(SIZES, name, config)
        yield
