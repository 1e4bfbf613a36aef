"""transformers' Qwen3_5ForCausalLM on the GPU with the weights of one of our models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flide_engine.models import Model
from oracle import Oracle


class GpuOracle(Oracle):
    """Label logits of plain prompts of one length, a batch at a time. float64 runs with transformers' float32 casts replaced."""

    def __init__(self, model: Model) -> None:
        with torch.device("cuda"):
            super().__init__(model)
        self._lm.config._attn_implementation = "sdpa"
        if model.embed.dtype is not torch.float64:
            # A module cast to bfloat16 rounds these too; a model loaded in bfloat16 keeps them, so the comparison must.
            c = model.config
            steps = torch.arange(0, c.rotary_dim, 2, dtype=torch.float32, device="cuda") / c.rotary_dim
            self._lm.model.rotary_emb.inv_freq = 1.0 / (c.rope_theta**steps)

    @torch.inference_mode()
    def batch(self, prompts: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """prompts: [B, n] token ids; labels: [B, L]. Returns float64 [B, L]."""
        ids = torch.from_numpy(prompts.astype(np.int64)).cuda()
        with self._mode, torch.device("cuda"):
            hidden: Any = self._lm.model(ids, use_cache=False).last_hidden_state[:, -1]
            rows = self._lm.lm_head.weight[torch.from_numpy(labels.astype(np.int64)).cuda()]
            logits = torch.einsum("blh,bh->bl", rows.double(), hidden.double())
        return logits.cpu().numpy()
