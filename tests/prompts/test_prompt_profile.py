"""What a tokenizer allows is found out at load, and what it does not allow is never used."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import seam_cases
from tiny_tokenizer import GPT2, tiny
from tokenizers import AddedToken, normalizers
from whole_prompt import Oracle

from flide_agent.messages import InputError, Message
from flide_agent.prompts import PromptError, Prompts, wording
from flide_agent.questions import Choice, Noul, Option


def test_a_good_tokenizer_is_incremental(tmp_path: Path) -> None:
    prompts = Prompts.load(tiny(tmp_path))
    assert prompts.incremental
    assert prompts.reason == ""


@pytest.mark.parametrize(
    "fault",
    [
        {"pattern": None, "merges": (("a", "\u0120"),)},
        {"pattern": r"\n+|(?:yes|no|[A-Z]+)(?![A-Za-z])|[A-Za-z]+(?= )|[A-Za-z]|\s|[^\sA-Za-z]+", "merges": (("o", "r"),)},
    ],
)
def test_words_that_are_joined_are_not_cut_apart(tmp_path: Path, fault: dict[str, Any]) -> None:
    assert Prompts.load(tiny(tmp_path / "good"))._encoder.words
    prompts = Prompts.load(tiny(tmp_path / "joined", **fault))
    assert prompts.incremental
    assert not prompts._encoder.words


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"pattern": r"\n(?=\n\[)|\n+|[^\n]+"}, "pre-tokenizer joins"),
        ({"pattern": None, "merges": (("\u010a", "["),)}, "'\u010a[' joins a newline"),
        ({"pattern": None, "merges": ((".", "\u010a"), (".\u010a", "Q"))}, "'.\u010aQ' joins a newline"),
        ({"normalizer": normalizers.NFKC()}, "normaliser NFKC"),
        ({"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Replace("x", "y")])}, "normaliser Replace"),
        ({"added": (AddedToken("<x>", rstrip=True),)}, "<x> takes in the white space"),
        ({"added": (AddedToken("<x>", lstrip=True),)}, "<x> takes in the white space"),
        ({"added": (AddedToken("<x>", single_word=True),)}, "<x> takes in the white space"),
        ({"added": (AddedToken("<x>\n"),)}, "holds white space"),
    ],
)
def test_a_tokenizer_without_seams_tokenises_whole_histories(tmp_path: Path, fault: dict[str, Any], reason: str) -> None:
    prompts = Prompts.load(tiny(tmp_path, **fault))
    assert not prompts.incremental
    assert reason in prompts.reason
    oracle = Oracle(tmp_path)
    rng = random.Random(4)
    for _ in range(20):
        messages = [Message("system", "Be brief.\n"), *(seam_cases.message(rng) for _ in range(3))]
        tools = [{"name": "bash"}]
        blocks = [wording.tools_block(tools), *(wording.message_block(i, m) for i, m in enumerate(messages, 1))]
        trunk = prompts.history(tools, messages)
        assert trunk.tokens.tolist() == oracle.trunk("".join(blocks))
        # A base is no help here and must not be used.
        base = prompts.history(tools, messages[:2])
        assert prompts.history(tools, messages, base=base, keep=2).tokens.tolist() == trunk.tokens.tolist()
        assert len(trunk.ends) == 6
        assert list(trunk.ends) == sorted(trunk.ends)
        assert trunk.ends[-1] == len(trunk.tokens)


def test_ends_of_whole_histories_fall_where_blocks_end(tmp_path: Path) -> None:
    """Where the seams happen to hold, the ends of a whole history are those of its blocks."""
    whole = Prompts.load(tiny(tmp_path / "a", added=(AddedToken("<x>\n"),)))
    blocks = Prompts.load(tiny(tmp_path / "b"))
    messages = [Message("system", "x" * 70), Message("user", "é<think>"), Message("tool", "中文\n\nout")]
    assert not whole.incremental
    a, b = whole.history([{}], messages), blocks.history([{}], messages)
    assert (a.tokens.tolist(), a.ends, a.saves, a.escaped_blocks) == (b.tokens.tolist(), b.ends, b.saves, b.escaped_blocks)
    assert len(a.saves) == 2
    assert a.escaped_blocks == (2,)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"frame": ("<|im_start|>", "<|im_end|>", "<think>")}, "no added token </think>"),
        ({"without": "yes"}, "labels yes are not single"),
        ({"without": "no"}, "labels no are not single"),
        ({"merges": (("\u010a\u010a", "B"),), "pattern": None}, "labels B are not single"),
        ({"pattern": GPT2}, "labels A, B, C"),  # its newlines before a label are other tokens than those of the frame
        ({"without": "\u00e9"}, "1 of 256 bytes"),
        (
            {
                "pattern": None,
                "merges": (("<", "t"), ("<t", "h"), ("<th", "i"), ("<thi", "n"), ("<thin", "k"), ("<think", ">")),
            },
            "spells <think> becomes an added token",
        ),
    ],
)
def test_a_tokenizer_that_cannot_serve_is_refused(tmp_path: Path, fault: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message) as caught:
        Prompts.load(tiny(tmp_path, **fault))
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"model": {}}', b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', b"\xff"]
)
def test_files_that_are_no_tokenizer(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(PromptError, match=r"tokenizer\.json"):
        Prompts.load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"tokenizer\.json.*needs a tokenizer\.json"):
        Prompts.load(tmp_path)


def test_a_choice_needs_as_many_labels_as_options(tmp_path: Path) -> None:
    prompts = Prompts.load(tiny(tmp_path))
    assert prompts.max_options == 26
    prompts.question(Choice("", tuple(Option(str(i)) for i in range(26))))
    with pytest.raises(InputError, match="26 options, not 27") as caught:
        prompts.question(Choice("", tuple(Option(str(i)) for i in range(27))))
    assert caught.value.loc == ("choice", "criteria")


def test_the_digest_names_tokenizer_and_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = Prompts.load(tiny(tmp_path / "a")).digest
    assert Prompts.load(tiny(tmp_path / "same")).digest == a
    assert Prompts.load(tiny(tmp_path / "b", merges=(("a", "b"),))).digest != a
    monkeypatch.setattr(wording, "FORMAT", "flide-2")
    assert Prompts.load(tmp_path / "a").digest != a


def test_vocabulary_size_counts_added_tokens(tmp_path: Path) -> None:
    prompts = Prompts.load(tiny(tmp_path))
    assert prompts.vocab_size == 256 + 6 + 4
    assert max(prompts.frame_close.tolist()) < prompts.vocab_size
    assert prompts.question(Noul("x")).tokens.max() < prompts.vocab_size
