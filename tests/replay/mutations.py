"""Broken variants of a trajectory: in its bytes, and in the shape of its JSON."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

ODD: list[Any] = [
    None, True, 0, -1, 7.5, 1e999, float("nan"), "", "x", "user", "assistant", "\ud83d", "9" * 40, [], {}, [[]], [None], ["x"],
    [{}], {"role": "assistant"}, {"type": "text"}, {"type": [1]}, {"content": {}}, {"id": []}, [{"type": "tool_use", "input": 1}],
]  # fmt: skip
SPLICES = [b"null", b"[]", b"{}", b'"', b"7", b"\n", b"\\ud83d", b"\xff", b"]", b"}", b",", b"NaN", b"\x00", b'{"a":1}\n']


def rows(path: Path) -> list[Any]:
    """The values of a JSON or JSONL file, cut down so that a mutation is quick to read."""
    text = path.read_text(encoding="utf-8")
    try:
        values = [json.loads(text)]
    except ValueError:
        values = [json.loads(row) for row in text.splitlines()[:12]]
    return [_cut(v) for v in values]


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value[:80]
    if isinstance(value, list):
        return [_cut(v) for v in value[:8]]
    if isinstance(value, dict):
        return {k: _cut(v) for k, v in value.items()}
    return value


def mutated(values: list[Any], rng: random.Random) -> bytes:
    """One broken file."""
    values = copy.deepcopy(values)
    if rng.random() < 0.7:
        for _ in range(rng.randint(1, 3)):
            _reshape(values, rng)
    data = "\n".join(json.dumps(v) for v in values).encode()
    if rng.random() < 0.4:
        out = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            at, cut = rng.randrange(len(out) + 1), rng.choice([0, 1, 5, 200])
            out[at : at + cut] = rng.choice(SPLICES)
        data = bytes(out)
    return data


def _reshape(root: list[Any], rng: random.Random) -> None:
    """Replace, remove, repeat or move one thing; near the top as often as deep down."""
    at: Any = root
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = rng.choice(keys)
        inside = at[key]
        if isinstance(inside, (dict, list)) and inside and rng.random() < 0.8:
            at = inside
            continue
        kind = rng.randrange(4)
        if kind == 0:
            at[key] = copy.deepcopy(rng.choice(ODD))
        elif kind == 1:
            del at[key]
        elif kind == 2 and isinstance(at, list):
            at.insert(key, copy.deepcopy(rng.choice([inside, *ODD])))
        else:
            at[key] = [inside] if rng.random() < 0.5 else {"content": inside}
        return
