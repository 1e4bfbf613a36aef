"""An engine without a model: real pools, handles, export and import, and states that are made up from the tokens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from flide_engine.memory import LAYOUT_VERSION, Checkpoint, Exported, Memory, MemoryShape, export_checkpoint, import_checkpoint
from flide_engine.segments import GRID, Tokens

KEY = b"t" * 32
"""A share key."""
SHAPE = MemoryShape(
    full_layers=2, kv_heads=1, head_dim=4, linear_layers=2, value_heads=2, key_dim=4, value_dim=4, conv_channels=8, conv_taps=3
)


@dataclass(frozen=True)
class FakeInfo:
    model: str = "fake"
    weights_digest: str = "ab" * 32
    dtype: str = "bfloat16"
    device: str = "cpu"
    layout_version: int = LAYOUT_VERSION
    numerics: str = "fake-1"
    slots: int = 64


class FakeEngine:
    """`make` stands for a forward pass: K/V of a page follow from the tokens up to its end, the state from tokens[:m]."""

    def __init__(self, pages: int = 256, slots: int = 64, info: FakeInfo | None = None) -> None:
        self.info = info or FakeInfo()
        self.memory = Memory(SHAPE, pages, slots, device=torch.device("cpu"), dtype=torch.bfloat16, state_dtype=torch.float32)
        self.exports = 0

    def export(self, checkpoint: Checkpoint, since: int = 0) -> Exported:
        self.exports += 1
        return export_checkpoint(checkpoint, since)

    def import_(self, exported: Exported, parent: Checkpoint | None) -> Checkpoint:
        return import_checkpoint(self.memory, exported, parent)

    def make(self, tokens: Tokens, m: int, parent: Checkpoint | None = None) -> Checkpoint:
        since = 0 if parent is None else parent.m
        pages, slots = self.memory.take((m - since) // GRID, 1)
        for i, page in enumerate(pages):
            end = since + (i + 1) * GRID
            self.memory.k[:, page] = noise(b"k", tokens[:end], self.memory.k[:, page])
            self.memory.v[:, page] = noise(b"v", tokens[:end], self.memory.v[:, page])
        slot = int(slots[0])
        self.memory.states[:, slot] = noise(b"s", tokens[:m], self.memory.states[:, slot])
        self.memory.conv[:, slot] = noise(b"c", tokens[:m], self.memory.conv[:, slot])
        if parent is not None:
            self.memory.retain(parent.pages, np.array([], np.int32))
            pages = np.concatenate([parent.pages, pages])
        return Checkpoint(self.memory, m, pages, slot)

    def good(self, checkpoint: Checkpoint, tokens: Tokens) -> bool:
        """The checkpoint is bit for bit what `make` gives for these tokens."""
        got = export_checkpoint(checkpoint).tensors
        n = checkpoint.m // GRID
        return all(
            torch.equal(got["k"][:, i], noise(b"k", tokens[: (i + 1) * GRID], got["k"][:, i]))
            and torch.equal(got["v"][:, i], noise(b"v", tokens[: (i + 1) * GRID], got["v"][:, i]))
            for i in range(n)
        ) and all(
            torch.equal(got[name], noise(seed, tokens[: checkpoint.m], got[name]))
            for name, seed in (("state", b"s"), ("conv", b"c"))
        )

    def idle(self) -> bool:
        """Nobody holds a page or slot."""
        return self.memory.free() == (self.memory.pages, self.memory.slots)


def noise(salt: bytes, tokens: Tokens, like: torch.Tensor) -> torch.Tensor:
    seed = int.from_bytes(hashlib.sha256(salt + tokens.tobytes()).digest()[:8], "little")
    values = np.random.default_rng(seed).standard_normal(like.numel(), np.float32)
    return torch.from_numpy(values).to(like.dtype).reshape(like.shape)


def some_tokens(n: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, 1000, n).astype(np.int32)
