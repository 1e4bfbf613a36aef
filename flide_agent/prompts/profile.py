"""What a tokenizer allows, checked once at load: whether blocks and branches can be tokenised on their own.

`tokens(a + b) = tokens(a) + tokens(b)` at a seam (a ends in a newline, b opens with one of OPENERS) needs four things:
- characters on either side never compose: the normaliser is NFC or none;
- no vocabulary entry joins them;
- the pre-tokenizer splits there whatever stands around: a pattern that looks ahead over white space, as GPT-2's does, fails this;
- added tokens leave the white space of the frame alone.
The same, but for what is no newline, lets long texts be cut before a space between two ASCII letters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from flide_agent.prompts.encoder import OPENERS, Encoder, PromptError

_BEFORE = (
    "word", ".", "...", "only.", "(", "]", "]]", "[", "[1]", "\\", "'", "\"", "\u2019", "1", "42", "_", "-", "<|", "|>",
    "</", "{}", "});", "*/", " ", "  ", "    ", "\t", "\t \t", "word ", "word  ", ". ", ".\t", "\r", "\r\n", "\r\n\r\n",
    "\n", "\n\n\n", "\n \n", "\n\t\n", " \r\n ", "\x0b", "\x0c", "\x00", "\x1c", "\x85", "\xa0", "\u2003", "\u2028",
    "\u3000", "\ufeff", "\u200b", "\u200d", "\xe9", "e\u0301", "\u0301", "\n\u0301", "\u0315\u0300", "\u4e2d", "\u3002",
    "\ud55c", "\u1112\u1161", "\u0e01", "\u0627", "\U0001f600", "\U0001f469\u200d", "\U0001f3fd", "\U0001f1e9",
    "=" * 80, "a" * 300, " " * 100,
)  # fmt: skip
_AFTER = (
    "[1] user\n",
    "[12] tool bash\nx",
    "[0] tools\n{",
    "Question: is it?",
    "A: b",
    "AB: c",
    "0: d",
    "yes",
    "no: e",
    "word",
    "9",
)
_WORDS_BEFORE = (
    "a", "word", "don't", "I'm", "x9y", "_id", "('a", "\n\nA", "  b", "\t\tc", "\xe9t\xe9e", "e\u0301a", "\u4e2da", "\u0301z", "1a", "...d",
    "Z" * 300,
    "\r\nq", "\xa0s", "\u200dg", "\U0001f600h", "\"k", "<|m",
)  # fmt: skip
_WORDS_AFTER = (
    " a",
    " word",
    " A",
    " s",
    " t'",
    " re d",
    " ll\n",
    " x9",
    " e\u0301",
    " B ",
    " \x61\u0315",
    " l'\u00e9",
    " a" * 200,
)
_JOINED = re.compile("[A-Za-z][ \u0120]")
"""A space behind a letter, as such and as the byte-level alphabet writes it."""


@dataclass(frozen=True, slots=True)
class Profile:
    """incremental: seams hold, so a block is tokenised on its own; else whole histories are, and reason says why.

    words: a text may also be cut before a space between letters.
    """

    incremental: bool
    reason: str = ""
    words: bool = False


def check(encoder: Encoder, path: str) -> Profile:
    """The profile of a tokenizer. Raises PromptError when outside text could become an added token or vanish."""
    added = {t.id for t in encoder.added.values()}
    for text in encoder.added:
        for sample in (text, f"\n{text}\n", f" {text} ", f"a{text}a"):
            if added.intersection(encoder(sample).tolist()):
                raise PromptError(f"{path}: plain text that spells {text} becomes an added token even without added tokens")
    if encoder.byte_level() and (missing := encoder.alphabet_missing()):
        raise PromptError(f"{path}: {missing} of 256 bytes are not in its vocabulary, so some text would vanish")
    reason = _normalizer_reason(encoder) or _added_reason(encoder) or _vocabulary_reason(encoder) or _seam_reason(encoder)
    return Profile(not reason, reason, not reason and _words_hold(encoder))


def _normalizer_reason(encoder: Encoder) -> str:
    normalizer = encoder.normalizer
    steps = normalizer.get("normalizers", []) if normalizer and normalizer.get("type") == "Sequence" else [normalizer]
    others = [step["type"] for step in steps if step and step["type"] != "NFC"]
    return f"its normaliser {others[0]} may change text across a seam" if others else ""


def _added_reason(encoder: Encoder) -> str:
    for text, token in encoder.added.items():
        if token.lstrip or token.rstrip or token.single_word:
            return f"its added token {text} takes in the white space or words around it"
        if any(c.isspace() for c in text):
            return f"its added token {text!r} holds white space"
    return ""


def _vocabulary_reason(encoder: Encoder) -> str:
    newlines = "\n\r\u010a\u010d"  # as such, and as the byte-level alphabet writes them
    openers = frozenset(OPENERS)
    for entry in encoder.vocab:
        for newline in newlines:
            at = entry.find(newline)
            while at != -1:
                if entry[at + 1 : at + 2] in openers and at + 1 < len(entry):
                    return f"its vocabulary entry {entry!r} joins a newline with the character after it"
                at = entry.find(newline, at + 1)
    return ""


def _seam_reason(encoder: Encoder) -> str:
    after = {text: encoder(text) for text in _AFTER}
    for ending in _BEFORE:
        for newlines in ("\n", "\n\n"):
            before = ending + newlines
            tokens = encoder(before)
            for text, rest in after.items():
                if not np.array_equal(encoder(before + text), np.concatenate([tokens, rest])):
                    return f"its pre-tokenizer joins {before[-8:]!r} and {text[:8]!r}"
    return ""


def _words_hold(encoder: Encoder) -> bool:
    if any(_JOINED.search(entry) for entry in encoder.vocab):
        return False
    after = [(text, encoder(text)) for text in _WORDS_AFTER]
    for before in _WORDS_BEFORE:
        tokens = encoder(before)
        if not all(np.array_equal(encoder(before + text), np.concatenate([tokens, rest])) for text, rest in after):
            return False
    return True
