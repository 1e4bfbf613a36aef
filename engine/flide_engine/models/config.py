"""ModelConfig: the numbers of one Qwen3.5 text tower, all of them read from config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LINEAR = "linear"
FULL = "full"

_TYPES = {"linear_attention": LINEAR, "full_attention": FULL}
_TEXT_MODELS = ("qwen3_5_text",)
_WRAPPED_MODELS = ("qwen3_5",)
_REQUIRED = object()


class ModelError(ValueError):
    """A model that cannot be loaded as it is. The message names the file, field or tensor and says what to do."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of the text tower; the names are the design's, the comments name the field of config.json."""

    hidden: int  # hidden_size
    layers: int  # num_hidden_layers
    layer_types: tuple[str, ...]  # layer_types, as "linear" | "full"
    heads: int  # num_attention_heads
    kv_heads: int  # num_key_value_heads
    head_dim: int  # head_dim
    rotary_dim: int  # head_dim * partial_rotary_factor
    rope_theta: float
    mlp: int  # intermediate_size
    gdn_key_heads: int  # linear_num_key_heads
    gdn_value_heads: int  # linear_num_value_heads
    gdn_key_dim: int  # linear_key_head_dim
    gdn_value_dim: int  # linear_value_head_dim
    conv_kernel: int  # linear_conv_kernel_dim
    vocab_size: int
    rms_eps: float  # rms_norm_eps
    tied: bool  # tie_word_embeddings, of either level
    max_context: int  # max_position_embeddings
    softcap: float | None = None  # Qwen3.5 has none; the readout applies one when a later architecture does

    def __post_init__(self) -> None:
        for key in ("hidden", "layers", "heads", "kv_heads", "head_dim", "mlp", "gdn_key_heads", "gdn_value_heads",
                    "gdn_key_dim", "gdn_value_dim", "vocab_size", "max_context"):  # fmt: skip
            if getattr(self, key) < 1:
                raise ModelError(f"config.json: {key} is {getattr(self, key)}; it must be at least 1")
        if len(self.layer_types) != self.layers:
            raise ModelError(f"config.json: layer_types has {len(self.layer_types)} entries for {self.layers} layers")
        if self.heads % self.kv_heads:
            raise ModelError(f"config.json: {self.heads} heads do not divide into {self.kv_heads} kv_heads")
        if self.gdn_value_heads % self.gdn_key_heads:
            raise ModelError(f"config.json: {self.gdn_value_heads} value heads do not divide into {self.gdn_key_heads}")
        if self.conv_kernel != 4:
            raise ModelError(f"config.json: linear_conv_kernel_dim is {self.conv_kernel}; this engine runs kernels of 4 taps")
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            raise ModelError(
                f"config.json: rotary dimensions are {self.rotary_dim}; an even number up to {self.head_dim} is needed"
            )

    @property
    def key_width(self) -> int:
        return self.gdn_key_heads * self.gdn_key_dim

    @property
    def value_width(self) -> int:
        return self.gdn_value_heads * self.gdn_value_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the joint convolution: q, k and v of Gated DeltaNet, in this order."""
        return 2 * self.key_width + self.value_width

    @property
    def linear_layers(self) -> int:
        return self.layer_types.count(LINEAR)

    @property
    def full_layers(self) -> int:
        return self.layer_types.count(FULL)

    @classmethod
    def read(cls, directory: Path) -> ModelConfig:
        """The config of a directory. Raises ModelError when config.json is absent, broken or of another architecture."""
        return cls.from_json(read_json(directory / "config.json"))

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """From a decoded config.json of Qwen3_5ForConditionalGeneration (text_config nested) or Qwen3_5ForCausalLM (flat)."""
        text = _text_config(raw)
        _check_supported(raw, text)
        layers = _number(text, "num_hidden_layers", int)
        head_dim = _number(text, "head_dim", int)
        theta, factor = _rope(text)
        return cls(
            hidden=_number(text, "hidden_size", int),
            layers=layers,
            layer_types=_layer_types(text, layers),
            heads=_number(text, "num_attention_heads", int),
            kv_heads=_number(text, "num_key_value_heads", int),
            head_dim=head_dim,
            rotary_dim=int(head_dim * factor),
            rope_theta=theta,
            mlp=_number(text, "intermediate_size", int),
            gdn_key_heads=_number(text, "linear_num_key_heads", int),
            gdn_value_heads=_number(text, "linear_num_value_heads", int),
            gdn_key_dim=_number(text, "linear_key_head_dim", int),
            gdn_value_dim=_number(text, "linear_value_head_dim", int),
            conv_kernel=_number(text, "linear_conv_kernel_dim", int, 4),
            vocab_size=_number(text, "vocab_size", int),
            rms_eps=_number(text, "rms_norm_eps", float, 1e-6),
            tied=_tied(raw, text),
            max_context=_number(text, "max_position_embeddings", int),
        )

    def to_json(self) -> dict[str, Any]:
        """The flat config.json of Qwen3_5ForCausalLM; from_json gives this config back."""
        names = {value: key for key, value in _TYPES.items()}
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "layer_types": [names[kind] for kind in self.layer_types],
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.rotary_dim / self.head_dim,
                # Text has one position for all three axes, so any split of the pairs over them is plain RoPE.
                "mrope_interleaved": True,
                "mrope_section": _mrope_section(self.rotary_dim // 2),
            },
            "intermediate_size": self.mlp,
            "hidden_act": "silu",
            "attention_bias": False,
            "linear_num_key_heads": self.gdn_key_heads,
            "linear_num_value_heads": self.gdn_value_heads,
            "linear_key_head_dim": self.gdn_key_dim,
            "linear_value_head_dim": self.gdn_value_dim,
            "linear_conv_kernel_dim": self.conv_kernel,
            "vocab_size": self.vocab_size,
            "rms_norm_eps": self.rms_eps,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": self.max_context,
        }

    def canonical(self) -> bytes:
        """One fixed spelling of every field, for digests."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError that names the file."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; a model directory holds config.json and *.safetensors files") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"{path} holds no JSON object")
    return raw


def _text_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = raw.get("model_type")
    if kind in _WRAPPED_MODELS and "text_config" in raw:
        text = raw["text_config"]
        if not isinstance(text, Mapping):
            raise ModelError("config.json: text_config is no object")
        return text
    if kind in _TEXT_MODELS or kind in _WRAPPED_MODELS:
        return raw
    known = ", ".join(_WRAPPED_MODELS + _TEXT_MODELS)
    raise ModelError(f"config.json: model_type {kind!r} is not supported; supported: {known}")


def _check_supported(raw: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    if raw.get("quantization_config") or text.get("quantization_config"):
        raise ModelError("config.json: quantization_config is set; this engine loads float checkpoints only, use the bf16 one")
    for key, supported in (("hidden_act", "silu"), ("attention_bias", False), ("attn_output_gate", True)):
        value = text.get(key)
        if value is not None and value != supported:
            raise ModelError(f"config.json: {key} is {value!r}; this engine runs {supported!r} only")


def _number(text: Mapping[str, Any], key: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = text.get(key, default)
    if value is _REQUIRED or value is None:
        raise ModelError(f"config.json: {key} is missing")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or kind(value) != value:
        raise ModelError(f"config.json: {key} is {value!r}; a number ({kind.__name__}) is needed")
    return kind(value)


def _layer_types(text: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    given = text.get("layer_types")
    if given is None:
        every = _number(text, "full_attention_interval", int, 4)
        if every < 1:
            raise ModelError(f"config.json: full_attention_interval is {every}; it must be at least 1")
        return tuple(LINEAR if (i + 1) % every else FULL for i in range(layers))
    if not isinstance(given, list):
        raise ModelError("config.json: layer_types is no list")
    for i, kind in enumerate(given):
        if kind not in _TYPES:
            raise ModelError(f"config.json: layer_types[{i}] is {kind!r}; known: {', '.join(_TYPES)}")
    return tuple(_TYPES[kind] for kind in given)


def _rope(text: Mapping[str, Any]) -> tuple[float, float]:
    """(theta, partial factor), looked up in the order of transformers: rope_scaling, rope_parameters, the config itself."""
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise ModelError("config.json: rope_parameters is no object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise ModelError(f"config.json: rope_type {kind!r} is not supported; only 'default' is")
    merged = {"partial_rotary_factor": 0.25, **text, **rope}
    return _number(merged, "rope_theta", float), _number(merged, "partial_rotary_factor", float)


def _tied(raw: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    """The outer level decides where it says anything, as in transformers; else text_config does."""
    value = raw.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    if not isinstance(value, bool):
        raise ModelError(f"config.json: tie_word_embeddings is {value!r}; true or false is needed")
    return value


def _mrope_section(pairs: int) -> list[int]:
    third = pairs // 3
    return [pairs - 2 * third, third, third]
