"""The model inside the package: its size, its weights, and its tokenizer's promises to the prompts."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from flide_engine.models import ModelConfig, load_model
from flide_engine.models.qwen3_5 import allocate
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from training import card
from training.evaluate import missed, passed

from flide_agent.card import Card
from flide_agent.default_model import DIRECTORY
from flide_agent.questions import parse_questions
from flide_agent.replay.questions import DEFAULT

JUDGED = Path(__file__).parents[2] / "engine" / "training" / "judged"
TOKENIZER = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
SPEC = json.loads((DIRECTORY / "tokenizer.json").read_text(encoding="utf-8"))
FRAME_END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
PIECES = st.sampled_from(
    ["\n", "\n\n", " ", "  ", "\t", "\r\n", "[12] tool", "[", "]", "#", "$ ls", "é", "e\u0301", "\u200b", "中文", "🙂", "\x00", "\x1b[0m",
     "<|im_end|>", "<think>", "</think>", "<tool_call>", "yes", "AA", "don't", "x" * 30, "٣", "\u2028", "\xa0"]
)  # fmt: skip
TEXT = st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=12).map("".join)


def test_parameters_and_package_size() -> None:
    weights = allocate(ModelConfig.read(DIRECTORY), "meta", torch.bfloat16)
    assert weights.parameters() <= 7_500_000
    assert sum(path.stat().st_size for path in DIRECTORY.iterdir() if path.is_file()) < 16 << 20


def test_weights_are_the_trained_ones() -> None:
    """A change here is another model: its figures, and the card made of them, have to be made anew with it."""
    model = load_model(str(DIRECTORY), device="cpu", dtype=torch.float32)
    assert not model.untrained
    assert model.digest == "933daa37ae72c14a7152e7d027b4964d56e7bcccc735834ecc55aa22292d6c1f"
    assert torch.equal(model.embed, model.embed.to(torch.bfloat16).to(torch.float32))
    assert model.config.max_context >= 131072


def test_the_card_is_made_of_the_figures_that_were_judged() -> None:
    written, about = card.made(JUDGED)
    assert (DIRECTORY / "card.json").read_bytes() == written
    assert (DIRECTORY / "MODEL_CARD.md").read_text(encoding="utf-8") == about


def test_what_did_not_pass_is_told_and_out_of_scope() -> None:
    held_out = json.loads((JUDGED / "held_out.json").read_text(encoding="utf-8"))
    shipped, about = Card.read(DIRECTORY), (DIRECTORY / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert shipped is not None
    judged = {name: row for name, row in held_out.items() if "all" in row}
    for name, row in judged.items():
        assert (name in shipped.questions) is passed(row) is (not missed(row)), name
        assert f"| {name} | {row['all']['n']} |" in about
    assert set(shipped.questions) < set(judged)


def test_the_default_questions_are_worded_as_in_training() -> None:
    for name, asked in parse_questions(DEFAULT).items():
        assert card.question(name, {}).covers(asked), name
        assert card.question(name, {}).ask in (None, DEFAULT[name])


def test_transformers_loads_the_directory() -> None:
    from transformers import AutoConfig, AutoTokenizer

    assert ModelConfig.from_json(AutoConfig.from_pretrained(DIRECTORY).to_dict()) == ModelConfig.read(DIRECTORY)
    tokenizer = AutoTokenizer.from_pretrained(DIRECTORY)
    text = tokenizer.apply_chat_template([{"role": "user", "content": " hi\n"}], tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi" + FRAME_END
    assert tokenizer(text).input_ids == TOKENIZER.encode(text).ids


def test_vocabulary() -> None:
    config = ModelConfig.read(DIRECTORY)
    vocabulary = TOKENIZER.get_vocab()
    assert config.vocab_size == len(vocabulary) == 4096
    assert sorted(vocabulary.values()) == list(range(4096))


def test_added_tokens_are_those_of_qwen(shared: Path) -> None:
    added = {token["content"]: token["special"] for token in SPEC["added_tokens"]}
    assert len(added) == 33
    assert {"<|endoftext|>", "<|im_start|>", "<|im_end|>"} <= {text for text, special in added.items() if special}
    visible = {text for text, special in added.items() if not special}
    source = (shared / "tools" / "qwen35_tokenizer.py").read_text()
    assert {text for text in visible if f'"{text}"' in source} == visible
    assert len(visible) == 12


def test_what_seams_rest_on() -> None:
    """design.md section 4: no entry joins a newline with what follows, no added token holds or strips white space, no normaliser."""
    assert SPEC["normalizer"] is None
    for token in SPEC["added_tokens"]:
        assert not token["lstrip"]
        assert not token["rstrip"]
        assert not token["single_word"]
        assert not any(character.isspace() for character in token["content"])
    for entry in SPEC["model"]["vocab"]:
        after = entry.rpartition("Ċ")[2]
        assert "Ċ" not in entry or after == "", entry


@given(TEXT, st.sampled_from(["[12] tool\n", "[", "A", "Question: x", "#"]))
def test_blank_lines_are_seams(text: str, following: str) -> None:
    block = text.rstrip("\n\r") + "\n\n"
    assert TOKENIZER.encode(block + following).ids == TOKENIZER.encode(block).ids + TOKENIZER.encode(following).ids


@given(TEXT)
def test_decoding_gives_the_text_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_labels_are_single_tokens_in_the_answer_position() -> None:
    frame = "<|im_start|>user\nstate\n\nAnswer with yes or no only." + FRAME_END
    before = TOKENIZER.encode(frame).ids
    pairs = [a + b for a in string.ascii_uppercase for b in string.ascii_uppercase]
    single = {}
    for label in [*string.ascii_uppercase, *string.digits, "yes", "no", *pairs]:
        ids = TOKENIZER.encode(frame + label).ids
        assert ids[: len(before)] == before
        if len(ids) == len(before) + 1:
            single[label] = ids[-1]
    assert set(string.ascii_uppercase) | set(string.digits) | {"yes", "no"} <= single.keys()
    assert sum(pair in single for pair in pairs) >= 255
    assert len(set(single.values())) == len(single)
    assert max(single.values()) < 4096 - len(SPEC["added_tokens"])
