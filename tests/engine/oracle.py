"""transformers' Qwen3_5ForCausalLM with the weights of one of our models: the outside oracle of the forward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from flide_engine.models import Model
from flide_engine.models.qwen3_5 import EMBED, HEAD, NAMES, NORM
from torch.overrides import TorchFunctionMode
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig


class Double(TorchFunctionMode):
    """Inside, every cast to float32 and every float32 tensor made is float64 instead."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


class Oracle:
    """Logits of one plain prompt. dtype float64 runs with transformers' float32 casts replaced."""

    def __init__(self, model: Model) -> None:
        dtype = model.embed.dtype
        self._mode: AbstractContextManager[Any] = Double() if dtype is torch.float64 else nullcontext()
        raw = model.config.to_json()
        config = Qwen3_5TextConfig(**{k: v for k, v in raw.items() if k not in ("architectures", "model_type")})
        config._attn_implementation = "eager"
        with self._mode:
            self._lm = Qwen3_5ForCausalLM(config).to(dtype).eval()
            rotary = self._lm.model.rotary_emb
            rates = raw["rope_parameters"]["rope_theta"] ** (
                -torch.arange(0, model.config.rotary_dim, 2, dtype=torch.float64) / model.config.rotary_dim
            )
            if dtype is torch.float64:
                rotary.inv_freq = rates
        state = {f"model.{EMBED}": model.embed, f"model.{NORM}": model.norm, HEAD: model.head}
        for i, layer in enumerate(model.layers):
            for field, name in NAMES[model.config.layer_types[i]].items():
                state[f"model.layers.{i}.{name}"] = getattr(layer, field)
        own = self._lm.state_dict()
        missing = own.keys() - state.keys()
        assert not missing, missing
        for name, target in own.items():
            target.copy_(state[name].view(target.shape))

    @torch.inference_mode()
    def logits(self, prompt: Any, labels: tuple[int, ...]) -> Any:
        """Label logits after a prompt of token ids, as numpy."""
        with self._mode:
            hidden = self._lm.model(torch.as_tensor(prompt).long()[None], use_cache=False).last_hidden_state[0, -1]
            return (self._lm.lm_head.weight[list(labels)] @ hidden).numpy()
