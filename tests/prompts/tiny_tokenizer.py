"""Tiny byte-level tokenizers with one thing wrong at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

# The pre-tokenizer pattern of Qwen3.5 (Apache-2.0), and GPT-2's (MIT), which looks ahead over newlines.
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FRAME = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
MERGES = (("\u010a", "\u010a"), ("y", "e"), ("ye", "s"), ("n", "o"), ("A", "A"), ("A", "C"))


def tiny(
    directory: Path,
    *,
    pattern: str | None = QWEN,
    merges: tuple[tuple[str, str], ...] = (),
    without: str = "",
    normalizer: Any = None,
    frame: tuple[str, ...] = FRAME,
    added: tuple[AddedToken, ...] = (),
) -> Path:
    """Write a tokenizer.json to the directory. without: letters of the byte-level alphabet, or merges of labels, to leave out."""
    joined = [m for m in (*MERGES, *merges) if "".join(m) != without]
    letters = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter != without]
    entries = list(dict.fromkeys([*letters, *("".join(m) for m in joined)]))
    tokenizer = Tokenizer(BPE(vocab={entry: i for i, entry in enumerate(entries)}, merges=joined))
    tokenizer.normalizer = normalizer if normalizer is not None else normalizers.NFC()
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*(AddedToken(text, normalized=False) for text in frame), *added])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    assert json.loads((directory / "tokenizer.json").read_text("utf-8"))["model"]["type"] == "BPE"
    return directory
