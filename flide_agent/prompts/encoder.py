"""Text to token ids by a copy of the tokenizer that has no added tokens: whatever outside text spells, it stays text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

Tokens = npt.NDArray[np.int32]

OPENERS = "[ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""What opens a block, a question part, or a piece of a long text: never white space, a combining mark or punctuation that joins."""

_PIECE = 1 << 11
"""Characters of a piece that a thread of its own is worth: about half a millisecond's work."""
_CUT = re.compile(r"\n(?=[\[A-Za-z0-9])")
_CUT_WORDS = re.compile(_CUT.pattern + r"|(?<=[A-Za-z])(?= [A-Za-z])")


class PromptError(ValueError):
    """A tokenizer that cannot serve. The message names the file and what it lacks."""


class TextTooLong(ValueError):
    """A text of more tokens than the encoder's `most`. The message says the limit."""


class AddedToken(msgspec.Struct, frozen=True):
    """An entry of tokenizer.json's `added_tokens`."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _Model(msgspec.Struct):
    type: str = ""
    vocab: dict[str, int] = msgspec.field(default_factory=dict)


class Encoder:
    """The tokenizer of a directory, less its added tokens.

    added: those tokens by their text. vocab: the model's own entries, for the profile's checks; dropped after them by `forget`.
    size: one more than the largest id. parallel: whether long texts may be cut at newlines, words: also before a space
    between letters; set once the profile holds. most: texts of more tokens are given up at that point, 0 for no limit.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        try:
            parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            model = msgspec.json.decode(parts["model"], type=_Model)
            self.added = {t.content: t for t in msgspec.json.decode(parts.get("added_tokens", b"[]"), type=list[AddedToken])}
            self.normalizer: Any = msgspec.json.decode(parts.get("normalizer", b"null"))
            self.pre_tokenizer: Any = msgspec.json.decode(parts.get("pre_tokenizer", b"null"))
            plain = {**parts, "added_tokens": msgspec.Raw(b"[]")}
            # A post-processor puts tokens around each text, truncation and padding change its length: none belongs in a piece of a prompt.
            plain |= dict.fromkeys(("post_processor", "truncation", "padding"), msgspec.Raw(b"null"))
            self._tokenizer = Tokenizer.from_buffer(msgspec.json.encode(plain))
        except (KeyError, ValueError, TypeError) as error:
            raise PromptError(f"{path} is no tokenizer: {error}") from error
        except Exception as error:  # tokenizers raises bare Exception for files it cannot read
            raise PromptError(f"{path}: the tokenizers library cannot read it: {error}") from error
        self.vocab = model.vocab
        ids = [*model.vocab.values(), *(t.id for t in self.added.values())]
        if not model.vocab:
            raise PromptError(f"{path} has no vocabulary")
        self.size = max(ids) + 1
        self.parallel = self.words = False
        self.most = 0
        self._longest = max(len(token) for token in (*model.vocab, *self.added))
        self._threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._pool: ThreadPoolExecutor | None = None
        spelled = "|".join(re.escape(text) for text in sorted(self.added, key=len, reverse=True))
        self._spelled = re.compile(spelled or r"(?!)")

    def __call__(self, text: str) -> Tokens:
        """int32 [n] ids of well-formed text. Long texts go through several threads, with the same ids. Raises TextTooLong."""
        if self.most and len(text) > 2 * self.most * self._longest:
            raise self._too_long()  # a token has that many letters at most; a normalizer may make one of two
        if self.parallel and len(text) >= 2 * _PIECE and (self._threads > 1 or len(text) > self.most > 0):
            # As many pieces as threads; a text that may turn out too long in more, so that little is done beyond the limit.
            most = self.most if len(text) > self.most > 0 else len(text)
            pieces = cut(text, max(_PIECE, -(-most // self._threads)), self.words)
            if len(pieces) > 1:
                return np.concatenate(self._pieces(pieces))
        (found,) = self._encode((text,))
        if len(found) > self.most > 0:
            raise self._too_long()
        return found

    def many(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of each text, those that it has alone. Raises TextTooLong."""
        return self.start(texts)()

    def start(self, texts: Sequence[str]) -> Callable[[], list[Tokens]]:
        """Begin `many`: short texts in groups, which threads are at until what this returns is called, and then the caller too."""
        short = [text for text in texts if len(text) < 2 * _PIECE]
        size, groups, room = max(_PIECE, -(-sum(map(len, short)) // self._threads)), list[list[str]](), 0
        for text in short:
            if room <= 0:
                groups.append([])
                room = size
            groups[-1].append(text)
            room -= len(text)
        beside = self._beside(groups)

        def finish() -> list[Tokens]:
            out = {text: self(text) for text in texts if len(text) >= 2 * _PIECE}
            for group, found in zip(groups, beside(), strict=True):
                out.update(zip(group, found, strict=True))
            if self.most and any(len(tokens) > self.most for tokens in out.values()):
                raise self._too_long()
            return [out[text] for text in texts]

        return finish

    def _pieces(self, pieces: list[str]) -> list[Tokens]:
        """Ids of each piece, so many at a time as there are threads."""
        out: list[Tokens] = []
        count = 0
        for at in range(0, len(pieces), self._threads):
            out += [tokens for (tokens,) in self._beside([[piece] for piece in pieces[at : at + self._threads]])()]
            count += sum(map(len, out[at:]))
            if count > self.most > 0:
                raise self._too_long()
        return out

    def _beside(self, groups: list[list[str]]) -> Callable[[], list[list[Tokens]]]:
        """Ids of each text of each group: the first group in the thread that calls for them, each other one in a thread of its own."""
        others = [self._executor().submit(self._encode, group) for group in groups[1:]]
        return lambda: [*(self._encode(group) for group in groups[:1]), *(other.result() for other in others)]

    def _too_long(self) -> TextTooLong:
        return TextTooLong(f"a text has more than {self.most} tokens")

    def ends(self, text: str, characters: list[int]) -> tuple[Tokens, list[int]]:
        """Ids of the whole text, and for each character position how many tokens begin before it."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
        return np.array(encoding.ids, dtype=np.int32), [int(n) for n in np.searchsorted(starts, characters)]

    def spells_added(self, text: str) -> bool:
        """Whether the text spells an added token, which an ordinary tokenizer would have made of it."""
        return self._spelled.search(text) is not None

    def byte_level(self) -> bool:
        """Whether text reaches the model as bytes of the byte-level alphabet."""
        return "ByteLevel" in repr(self.pre_tokenizer)

    def alphabet_missing(self) -> int:
        """How many of the 256 bytes a byte-level vocabulary lacks (their text would vanish)."""
        return sum(letter not in self.vocab for letter in ByteLevel.alphabet())

    def forget(self) -> None:
        """Drop the vocabulary, tens of megabytes that only the profile's checks read."""
        self.vocab = {}

    def _encode(self, texts: Sequence[str]) -> list[Tokens]:
        # Unlike encode(), this releases the GIL; it also skips the offsets.
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in found]

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="flide-tokenise")
        return self._pool


def cut(text: str, size: int, words: bool = False) -> list[str]:
    """The text in pieces of about `size` characters, cut only between a newline and an opener, or a letter and " " with a letter.

    A pre-tokenizer that passes the profile never joins the two, and neither composes with the other under NFC.
    """
    pieces: list[str] = []
    start, pattern = 0, _CUT_WORDS if words else _CUT
    while (found := pattern.search(text, start + size)) is not None:
        pieces.append(text[start : found.end()])
        start = found.end()
    return [*pieces, text[start:]]
