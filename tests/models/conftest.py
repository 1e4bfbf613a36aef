"""Checkpoints of both transformers classes, saved by transformers itself: names and shapes are its word, not ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flide_engine.models.dummy import SIZES
from saved_models import Saved


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Saved]:
    """save(kind, size, shard=None): kind "causal" or "conditional"; a tiny model of transformers with random values."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    def build(kind: str, size: str = "tiny", shard: str | None = None, dtype: torch.dtype = torch.float32) -> Saved:
        import transformers

        config = SIZES[size]
        text = {key: value for key, value in config.to_json().items() if key not in ("architectures", "model_type")}
        torch.manual_seed(1)
        if kind == "causal":
            module = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**text))
        else:
            vision = {
                "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": config.hidden,
                "num_position_embeddings": 16, "patch_size": 4,
            }  # fmt: skip
            whole = transformers.Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=config.tied)
            module = transformers.Qwen3_5ForConditionalGeneration(whole)
        module = module.to(dtype)
        folder = tmp_path / f"{kind}-{size}"
        module.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
        return Saved(folder, config, module)

    return build
