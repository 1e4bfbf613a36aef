"""The oracle of the prompt tests: a tokenizer directory read by other code than ours, whole prompts encoded in one go."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer


class Oracle:
    """Text is encoded without added tokens; the chat frame is put in by id."""

    def __init__(self, directory: Path) -> None:
        raw = json.loads((directory / "tokenizer.json").read_text("utf-8"))
        self.added = {t["content"]: t["id"] for t in raw["added_tokens"]}
        raw["added_tokens"], raw["post_processor"] = [], None
        self.plain = Tokenizer.from_str(json.dumps(raw, ensure_ascii=False))

    def encode(self, text: str) -> list[int]:
        return list(self.plain.encode(text, add_special_tokens=False).ids)

    def prompt(self, turn: str) -> list[int]:
        """Ids of the whole prompt around the text of the user turn."""
        start, end = self.added["<|im_start|>"], self.added["<|im_end|>"]
        return [
            *(start, *self.encode("user\n" + turn), end, *self.encode("\n"), start, *self.encode("assistant\n")),
            *(self.added["<think>"], *self.encode("\n\n"), self.added["</think>"], *self.encode("\n\n")),
        ]

    def trunk(self, text: str) -> list[int]:
        return [self.added["<|im_start|>"], *self.encode("user\n" + text)]
