"""Clients that know nothing of us: the System One conformance check, and the page that describes the API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from service_process import Running

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_jevcompat(server: Running, tmp_path: Path) -> None:
    """Every MUST and SHOULD of the System One contract, the official SDK included, where jevcompat is installed."""
    pytest.importorskip("jevcompat")
    command = [str(Path(sys.executable).with_name("jevcompat")), "test", server.url, "--timeout", "60"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"no_proxy": "127.0.0.1"}, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "MUST 32/32, SHOULD 13/13" in done.stdout


def names(value: Any) -> set[str]:
    """All keys of an object, and below; not those that a caller chooses."""
    if not isinstance(value, dict):
        return set().union(*map(names, value)) if isinstance(value, list) else set()
    own = set(value)
    for key, below in value.items():
        if key in ("answers", "x_candidates", "requests_per_round"):
            for each in below.values():
                own |= names(each) if key != "requests_per_round" else set()
        elif key not in ("probabilities", "legend", "metadata", "store"):
            own |= names(below)
    return own


def test_the_page_s_examples_run_and_name_every_field(server: Running) -> None:
    text = PAGE.read_text()
    examples = re.findall(r"curl -s http://127\.0\.0\.1:8321(\S+) -d '(.*?)'\n", text, re.DOTALL)
    assert len(examples) == 2
    http = server.http()
    found: set[str] = set()
    for path, body in examples:
        reply = http.post(path, content=body.encode())
        assert reply.status_code == 200, reply.text
        found |= names(reply.json())
    for path in ("/v1/sessions", "/v1/sessions/run-1", "/v1/models", "/health", "/ready"):
        found |= names(http.get(path).json())
    found |= names(http.post("/v1/sessions/run-1/fork", json={}).json()) | names(http.delete("/v1/sessions/run-1").json())
    ours = found - {"device", "dtype", "numerics", "alive", "untrained", "created", "owned_by", "stable"}
    assert {name for name in ours if f"`{name}`" not in text and f'"{name}"' not in text} == set()
    assert json.loads(re.findall(r"```json\n(\{\"model\".*?)```", text, re.DOTALL)[0])
