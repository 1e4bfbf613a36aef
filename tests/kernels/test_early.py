"""Kernels that start early wait before they write, and let their follower start only behind their own wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flide_engine.kernels.early import launch


@pytest.fixture(scope="module")
def orders() -> dict[str, dict[str, list[str]]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("early_ptx.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def misses(order: list[str]) -> str:
    """What is wrong with what a kernel does, in the order of its code, each way through it being a stretch of that; '' if nothing."""
    if order[0] != "wait":
        return f"{order[0]} comes before the first wait"
    before = dict(zip(order[1:], order, strict=False))
    if "next" in order and before["next"] != "wait":
        return f"the next kernel may start behind a {before['next']}"
    return ""


def test_compiled_kernels_wait_before_they_write(orders: dict[str, dict[str, list[str]]]) -> None:
    assert len(orders) == 11
    query = orders.pop("norm_rope_query")["early"]
    assert query == ["next", "store", "wait"], "it needs nothing of the kernel before, but ends behind it"
    for name, ways in orders.items():
        assert misses(ways["early"]) == "", name
        assert ways["plain"] == ["store"], name
    followed = {"conv_gate", "gdn_intra", "gdn_scan", "gdn_scan with a branch", "gdn_branch", "norm_rope_key_value"}
    assert {name for name, ways in orders.items() if "next" in ways["early"]} == followed


def test_the_check_sees_what_is_wrong() -> None:
    assert misses(["store", "wait"])
    assert misses(["next", "wait", "store"])
    assert misses(["wait", "store", "next"])
    assert not misses(["wait", "next", "store", "wait", "next", "store"])


def test_launch_options() -> None:
    assert launch(True) == {"EARLY": True, "launch_pdl": True}
    assert launch(False) == {"EARLY": False}, "other GPUs' Triton backends know no launch_pdl"
