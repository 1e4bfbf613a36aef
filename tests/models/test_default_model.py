"""The model inside the package: its size, its weights, and its tokenizer's promises to the prompts."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
import torch
from flide_engine.models import ModelConfig, ModelError, load_model
from flide_engine.models.dummy import random_digest
from flide_engine.models.qwen3_5 import allocate
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from flide_agent.default_model import DIRECTORY

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
    stored = 2 * weights.parameters()
    beside = sum(path.stat().st_size for path in DIRECTORY.iterdir() if path.suffix == ".json")
    assert stored + beside < 16 << 20


def test_weights_are_random_from_the_declared_seed() -> None:
    model = load_model(str(DIRECTORY), device="cpu", dtype=torch.float32)
    seed = json.loads((DIRECTORY / "config.json").read_text())["flide_weights"]["seed"]
    assert model.untrained
    assert model.digest == random_digest(model.config, seed)
    assert model.digest == "9471d4594030d2153d0cb1a2797eb30265dab2c890b215a3c9cc96c2f1708bfe"
    assert torch.equal(model.embed, model.embed.to(torch.bfloat16).to(torch.float32))
    assert model.config.max_context >= 131072


def test_stored_weights_take_over(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text((DIRECTORY / "config.json").read_text())
    config = ModelConfig.read(tmp_path)
    weights = allocate(config, "cpu", torch.bfloat16)
    tensors = {f"model.{name}": torch.zeros_like(tensor) for name, tensor in weights.by_name.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    model = load_model(str(tmp_path), device="cpu", dtype=torch.float32)
    assert not model.untrained
    assert not model.embed.any()


@pytest.mark.parametrize(
    "declared", ["random", {"kind": "trained"}, {"kind": "random", "seed": "1"}, {"kind": "random", "seed": True}]
)
def test_a_wrong_declaration_is_an_error(tmp_path: Path, declared: object) -> None:
    raw = json.loads((DIRECTORY / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "flide_weights": declared}))
    with pytest.raises(ModelError, match="flide_weights"):
        load_model(str(tmp_path), device="cpu", dtype=torch.float32)


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
