"""Rows in the shape of nebius/SWE-agent-trajectories out of a seed: sizes as in the real set, texts of code, paths and prose.

Per row (real set: median 20 decisions, mean 29, most 349; 84 kB; a context that is full near 33k tokens ends a run): a system
prompt that all rows share, an issue, then thoughts with one fenced command and observations, most of them short, some long.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEED = 20_261
FULL = 100_000
"""Characters of observations at which the agent's context is full."""
_WORDS = (
    "the of to a in is that for with as on it be return def self import from None True if else raise value index test error "
    "line file path class name list dict str int args kwargs result data parse token field model schema query node tree match "
    "config option default handler request response session buffer length offset expected actual assert failed passed warning "
    "because function method should change here which already other first last never when after before same"
)
_CHOICES = _WORDS.split()
_MARKS = ("(", "):", "()", " = ", ".", ", ", "[0]", " == ", "_", "/", ": ", ' "', '" ', "\n    ", "\n", " ", " ", " ", " ")


def text(rng: random.Random, characters: int) -> str:
    """About so many characters of something between code and prose."""
    out: list[str] = []
    size = 0
    while size < characters:
        piece = rng.choice(_CHOICES) + rng.choice(_MARKS)
        out.append(piece)
        size += len(piece)
    return "".join(out)


def row(rng: random.Random, number: int, system: str) -> dict[str, Any]:
    """One row; it ends on a message of the agent, as the real ones do."""
    steps = min(max(round(math.exp(rng.gauss(math.log(20.0), 0.85))), 1), 349)
    items = [item("system", system), item("user", text(rng, rng.randint(1500, 6000)))]
    observed = 0
    for step in range(1, steps + 1):
        items.append(item("ai", f"{text(rng, rng.randint(80, 500))}\n\n```\n{command(rng)}\n```"))
        if step == steps or observed >= FULL:
            break
        long = rng.random() < (0.35 if observed < FULL // 3 else 0.02)
        seen = text(rng, rng.randint(1500, 5000) if long else rng.randint(60, 700))
        observed += len(seen)
        items.append(item("user", f"{seen}\n(Open file: /repo/a.py)\n(Current directory: /repo)\nbash-$"))
    name = f"seeded__{number}"
    return {"instance_id": name, "model_name": "seeded", "target": False, "trajectory": items, "exit_status": "submitted"}


def item(role: str, said: str) -> dict[str, Any]:
    system = role == "system"
    return {"role": role, "text": None if system else said, "system_prompt": said if system else None, "mask": role == "ai",
            "cutoff_date": "01.01.2023" if system else None}  # fmt: skip


def command(rng: random.Random) -> str:
    verb = rng.choice(("edit 10:20", "python reproduce.py", "open src/a.py", "search_dir", "ls -la", "goto 100", "pytest -q"))
    return f"{verb} {rng.choice(_CHOICES)}"


def rows(seed: int = SEED) -> Iterator[dict[str, Any]]:
    """Without end."""
    rng = random.Random(seed)
    system = text(rng, 4900)
    number = 0
    while True:
        number += 1
        yield row(rng, number, system)


def write(path: Path, size: int, seed: int = SEED) -> tuple[int, int]:
    """Rows of at least `size` bytes together; (rows, decision steps)."""
    written = count = steps = 0
    with path.open("w", encoding="utf-8") as f:
        for value in rows(seed):
            if written >= size:
                break
            written += f.write(json.dumps(value) + "\n")
            count += 1
            steps += sum(i["role"] == "ai" for i in value["trajectory"])
    return count, steps
