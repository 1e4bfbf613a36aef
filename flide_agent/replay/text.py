"""Cleaning text: a little of it before it is sent, all of it before it reaches a terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SURROGATES = re.compile("[\ud800-\udfff]")
_DATA_URI = re.compile(r"(data:[\w.+-]+/[\w.+-]+(?:;[\w=.+-]+)*;base64,)[A-Za-z0-9+/=_-]{64,}")
_ESCAPES = re.compile(
    r"(?:\x1b[PX^_\]]|[\x90\x98\x9d-\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"  # strings up to their terminator: titles, links, images
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, cursor moves
    r"|\x1b[ -/]*[0-~]?",  # everything else that starts with ESC
    re.DOTALL,
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""C0 but tab and newline, C1, and the marks that reorder a line on the screen."""


@dataclass
class Cleaned:
    """Counts of what `sent` replaced, kept over one run."""

    surrogates: int = 0
    payloads: int = 0

    def sent(self, text: str) -> str:
        """Text as it goes to the service: lone surrogates become U+FFFD, base64 payloads of data URIs are left out.

        Everything else stays, control codes included: it is what the agent saw.
        """
        text, n = _SURROGATES.subn("\ufffd", text)
        self.surrogates += n
        if ";base64," in text:
            text, n = _DATA_URI.subn(r"\1[left out]", text)
            self.payloads += n
        return text

    def notes(self) -> list[str]:
        """The counts in words, nothing for zeros."""
        out = []
        if self.surrogates:
            out.append(f"lone surrogates replaced by U+FFFD: {self.surrogates}")
        if self.payloads:
            out.append(f"base64 payloads left out: {self.payloads}")
        return out


def plain(text: str) -> str:
    """Text that is safe to print: no escape sequences, no control codes, overwritten parts gone. Keeps tabs and newlines."""
    if text.replace("\n", "").replace("\t", "").isprintable():  # nothing of what is taken out below is printable
        return text
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    if "\r" in text or "\b" in text:
        text = "\n".join(_overwritten(line) for line in text.split("\n"))
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))


def line(text: str, width: int = 200) -> str:
    """`plain` on one line, runs of white space joined, cut to `width` characters with an ellipsis."""
    text = " ".join(plain(text[: 20 * width + 1000]).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _overwritten(text: str) -> str:
    """What a terminal shows in the end of a line with carriage returns and backspaces (the last part that is not empty)."""
    parts = [p for p in text.split("\r") if p]
    out: list[str] = []
    for c in parts[-1] if parts else "":
        if c == "\b":
            del out[-1:]
        else:
            out.append(c)
    return "".join(out)
