"""What reaches a terminal: never a control code."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flide_agent.replay.text import Cleaned, line, plain


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x00b \x1b[31mred\x1b[0m \x1b]0;title\x07 end", "ab red  end"),
        ("back\b\bXY", "baXY"),
        ("10%\r20%\r100%", "100%"),
        ("10%\r20%\r\nnext", "20%\nnext"),
        ("link \x1b]8;;http://x\x1b\\text\x1b]8;;\x1b\\ end", "link text end"),
        ("\x9b31mC1 colour\x9b0m", "C1 colour"),
        ("cut \x1b[38;5", "cut "),
        ("dcs \x1bPq#0;2;0\x1b\\done", "dcs done"),
        ("\x1b(B\x1b7\x1bcreset", "reset"),
        ("right\u202eleft\u2069", "rightleft"),
        ("half \ud83d", "half \ufffd"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("open \x1b]0;never ends", "open "),
    ],
)
def test_plain(raw: str, shown: str) -> None:
    assert plain(raw) == shown


@given(st.text(alphabet=st.characters(max_codepoint=0x2100, codec=None) | st.sampled_from("\x1b[]\x07\x9b\r\b\n\\;m")))
def test_nothing_that_steers_a_terminal_is_left(raw: str) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", plain(raw))
    assert "\n" not in line(raw)
    assert len(line(raw, 20)) <= 20


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cf", "Zl", "Zp", "Cs"])))
def test_ordinary_text_is_left_alone(raw: str) -> None:
    assert plain(raw) == raw


def test_sent_keeps_everything_but_surrogates_and_payloads() -> None:
    clean = Cleaned()
    kept = "\x1b[31mred\x00\r\n data:image/png;base64,short"
    assert clean.sent(kept) == kept
    assert clean.notes() == []
    assert clean.sent("x\ud800") == "x\ufffd"
    assert clean.notes() == ["lone surrogates replaced by U+FFFD: 1"]
