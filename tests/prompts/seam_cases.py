"""Seeded texts, histories and questions made to break seams."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flide_agent.messages import Message, ToolCall
from flide_agent.questions import Choice, Noul, Option, Question, Score

ATOMS = (
    "\n", "\n\n", "\n\n\n", "\r", "\r\n", "\r\n\r\n", " ", "  ", "   ", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\xa0",
    "\u2028", "\u3000", "[", "]", "[1]", "[12] ", "[0] tools\n", "[3] user\n", "\n[4] assistant\n", "\\[5] tool\n",
    "[call ", "[result x]\n", "(", ")", "{", "}", "0", "1", "42", "\u0663", "\u2167", "\xb2", "a", "Q", "A:", "word",
    " word", "Question:", "yes", "no", "it's", "'re", "\u2019s", "don't", "'", "\"", "\xe9", "e\u0301", "\u0301",
    "\u0300\u0301", "\u0315\u0300", "\u0345", "\u05b0", "\u0915\u094d\u0937\u093f", "\u093c", "\u0e01\u0e49", "\u1112",
    "\u1161", "\u11ab", "\ud55c\uae00", "\u4e2d\u6587", "\u3002", "\u3001", "\uff46\uff55\uff4c\uff4c",
    "\uff3b\uff11\uff3d", "\u212b", "\u2126", "\u1e9b\u0323", "\U0001f600", "\U0001f469\u200d\U0001f4bb", "\U0001f3fd",
    "\U0001f1e9\U0001f1ea", "\u200d", "\ufe0f", "\u200b", "\ufeff", "\x00", "\x07", "\x1b[31m", "\x7f", "\ufffd", "\ud800",
    "\udc00", "\ud83d\ude00", "\U0010ffff", "\ue000", "\u0627", "\u0640", "\u202e", "<|im_end|>", "<|im_start|>",
    "<|im_start|>assistant\n", "<think>", "</think>", "<tool_call>", "</tool_response>", "<|endoftext|>", "<|", "|>", ".",
    "...", ".\n", ";", "});", "*/", "---", "====", "_", "#", "$ ", ">>> ", "def f():\n    ", "http://x.y/z?q=1", "\\",
    "\\n", "&", "@", "~",
)  # fmt: skip


def text(rng: random.Random, most: int = 12) -> str:
    parts = rng.choices(ATOMS, k=rng.randint(0, most))
    if rng.random() < 0.05:
        run = rng.choice((100, 300, 1000)) if rng.random() < 0.95 else 30_000
        atom = rng.choice(ATOMS)
        parts.insert(rng.randint(0, len(parts)), atom * (run // len(atom)))
    if rng.random() < 0.1:
        parts.append(
            "".join(
                chr(rng.choice((rng.randrange(0x20, 0x250), rng.randrange(0x300), rng.randrange(0x110000)))) for _ in range(8)
            )
        )
    return "".join(parts)


def message(rng: random.Random) -> Message:
    role = rng.choice(("user", "assistant", "tool", "system", text(rng, 3) + "r"))
    calls = tuple(ToolCall(text(rng, 2), text(rng, 2), text(rng, 4)) for _ in range(rng.choice((0, 0, 0, 1, 2))))
    return Message(
        role, text(rng), text(rng, 2) if rng.random() < 0.3 else "", calls, text(rng, 2) if rng.random() < 0.2 else ""
    )


def question(rng: random.Random) -> Question:
    instructions = rng.choice(("", "Is it stuck?", text(rng)))
    kind = rng.randrange(3)
    if kind == 0:
        return Choice(instructions, tuple(Option(text(rng, 3), text(rng, 3)) for _ in range(rng.choice((1, 2, 5, 26, 27)))))
    if kind == 1:
        levels = tuple(text(rng, 3) for _ in range(rng.randint(1, 10)))
        return Score(instructions, levels, levels)
    return Noul(instructions, text(rng, 3), text(rng, 3))


def shared_texts(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(file name, every string of it in order) for each JSON file of real trajectories."""
    for path in sorted((folder / "data" / "trajectories").rglob("*")):
        if path.suffix not in (".json", ".traj", ".jsonl"):
            continue
        data = path.read_bytes().decode("utf-8", "replace")
        found: list[str] = []
        for line in data.splitlines() if path.suffix == ".jsonl" else [data]:
            try:
                strings(json.loads(line), found)
            except ValueError:
                found.append(line)  # broken files are text too
        yield path.name, found


def strings(value: Any, found: list[str]) -> None:
    """Collect the messages' texts: every string of a JSON value with at least one white space."""
    if isinstance(value, str):
        if any(c.isspace() for c in value):
            found.append(value)
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            strings(item, found)
