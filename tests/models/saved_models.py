"""What the fixtures hand out, and transformers' model around our random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flide_engine.models.config import ModelConfig
from flide_engine.models.dummy import fill_random
from flide_engine.models.qwen3_5 import EMBED, HEAD, allocate


@dataclass(frozen=True)
class Saved:
    directory: Path
    config: ModelConfig
    module: Any  # the transformers model that was saved

    def state(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach() for name, tensor in self.module.state_dict().items()}


def oracle(config: ModelConfig, seed: int) -> Any:
    """transformers' model around our random weights."""
    import transformers

    weights = allocate(config, "cpu", torch.float32)
    fill_random(weights, seed)
    module = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**config.to_json())).eval()
    state = {name if name == HEAD else f"model.{name}": tensor for name, tensor in weights.by_name.items()}
    state.setdefault(HEAD, weights.by_name[EMBED])
    module.load_state_dict(state, assign=True)
    return module
