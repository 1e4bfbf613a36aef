"""Texts beyond what the model reads are given up before all of them is tokenised."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_prompts import long_text
from whole_prompt import Oracle

from flide_agent.messages import Message
from flide_agent.prompts import Prompts, encoder


def test_a_text_over_the_limit_is_given_up_early(directory: Path, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts.load(directory)
    text = long_text()
    whole = oracle.encode(text)
    read: list[int] = []
    encode = prompts._encoder._encode
    monkeypatch.setattr(prompts._encoder, "_encode", lambda piece: read.append(len(piece)) or encode(piece))
    for threads in (1, 2, 4):
        prompts._encoder._threads = threads
        prompts.limit(len(whole))
        assert prompts._encoder(text).tolist() == whole
        prompts.limit(len(whole) - 1)
        with pytest.raises(encoder.TextTooLong, match=f"more than {len(whole) - 1} tokens"):
            prompts._encoder(text)
        prompts.limit(5_000)
        read.clear()
        with pytest.raises(encoder.TextTooLong):
            prompts.message(1, Message("tool", text))
        assert sum(read) < len(text) / 3
        read.clear()
        with pytest.raises(encoder.TextTooLong):
            prompts.state("ab, " * 1_000_000)  # nowhere to cut
        assert not read
