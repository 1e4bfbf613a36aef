"""Fixtures shared by all tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

try:
    from hypothesis import settings
except ImportError:  # GPU tests need none
    pass
else:
    # How long an example takes says more of the machine than of us; what is slow without need meets the timeout of a test.
    settings.register_profile("any machine", deadline=None)
    settings.load_profile("any machine")

if not torch.cuda.is_available():
    # Read when a kernel is declared: before any test imports one, directly or not.
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real trajectories and tools beside the checkout; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("FLIDE_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no shared test data at {folder} (set FLIDE_SHARED)")
    return folder


@pytest.fixture
def bar() -> Callable[..., None]:
    """bar(name, value, limit=..., at_least=..., **details): print a bar's figure, keep it in bars.json, fail when it does not hold."""

    def record(name: str, value: float, *, limit: float | None = None, at_least: float | None = None, **details: Any) -> None:
        holds = (limit is None or value <= limit) and (at_least is None or value >= at_least)
        row = {"bar": name, "value": value, "limit": limit, "at_least": at_least, "holds": holds, **details}
        print(f"\nBAR {name}: {value:.6g} ({'<=' if limit is not None else '>='} {limit if limit is not None else at_least})")
        path = Path(os.environ.get("FLIDE_BARS", ROOT / "bars.json"))
        rows = json.loads(path.read_text()) if path.exists() else []
        rows = [r for r in rows if r["bar"] != name] + [row]
        path.write_text(json.dumps(rows, indent=1) + "\n")
        assert holds, row

    return record
