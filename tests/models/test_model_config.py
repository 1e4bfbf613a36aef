"""config.json -> ModelConfig: both classes, every way the fields are spelled, and errors that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flide_engine.models import ModelConfig, ModelError
from flide_engine.models.dummy import SIZES

PLAIN = SIZES["tiny"].to_json()


def nested(**outer: Any) -> dict[str, Any]:
    text = {key: value for key, value in PLAIN.items() if key != "tie_word_embeddings"}
    return {"model_type": "qwen3_5", "text_config": text, "vision_config": {}, **outer}


@pytest.mark.parametrize("size", SIZES)
def test_json_round_trip(size: str) -> None:
    assert ModelConfig.from_json(json.loads(json.dumps(SIZES[size].to_json()))) == SIZES[size]


def test_transformers_reads_the_same_numbers() -> None:
    import transformers

    theirs = transformers.Qwen3_5TextConfig(**SIZES["27b"].to_json())
    assert ModelConfig.from_json(theirs.to_dict()) == SIZES["27b"]


def test_transformers_defaults_are_read() -> None:
    """A config of theirs with nothing given is the 9B model but for what theirs leaves open: theta must then be in the file."""
    import transformers

    config = ModelConfig.from_json(transformers.Qwen3_5TextConfig(rope_theta=1e7).to_dict())
    assert (config.hidden, config.mlp, config.rotary_dim, config.rope_theta) == (4096, 12288, 64, 1e7)
    assert config.layer_types == SIZES["9b"].layer_types


def test_tied_at_either_level() -> None:
    raw = nested()
    assert not ModelConfig.from_json(raw).tied
    raw["text_config"]["tie_word_embeddings"] = True
    assert ModelConfig.from_json(raw).tied
    assert not ModelConfig.from_json({**raw, "tie_word_embeddings": False}).tied
    assert ModelConfig.from_json(nested(tie_word_embeddings=True)).tied


def test_layer_types_by_interval() -> None:
    raw = {key: value for key, value in PLAIN.items() if key != "layer_types"}
    assert ModelConfig.from_json(raw).layer_types == ("linear", "linear", "linear", "full")
    assert ModelConfig.from_json({**raw, "full_attention_interval": 2}).layer_types == ("linear", "full") * 2


def test_irregular_layer_types() -> None:
    kinds = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    assert ModelConfig.from_json({**PLAIN, "layer_types": kinds}).layer_types == ("full", "linear", "linear", "full")


def test_rope_spelled_flat() -> None:
    raw = {key: value for key, value in PLAIN.items() if key != "rope_parameters"}
    config = ModelConfig.from_json({**raw, "rope_theta": 5e5, "partial_rotary_factor": 0.5})
    assert (config.rope_theta, config.rotary_dim) == (5e5, 16)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "96"}, "hidden_size is '96'"),
        ({"hidden_size": 96.5}, "hidden_size is 96.5"),
        ({"num_hidden_layers": 5}, "layer_types has 4 entries"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types[0] is 'sliding_attention'"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"linear_num_value_heads": 3}, "do not divide"),
        ({"linear_conv_kernel_dim": 3}, "linear_conv_kernel_dim is 3"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "rope_type 'yarn'"),
        ({"rope_parameters": {}}, "rope_theta is missing"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_errors_name_the_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as error:
        ModelConfig.from_json({**PLAIN, **change})
    assert named in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=r"config\.json"):
        ModelConfig.read(tmp_path)


def test_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        ModelConfig.read(tmp_path)
