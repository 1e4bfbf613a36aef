"""Random weights in true shapes, the same bits on every machine, device and in every dtype.

Values come from Philox, one stream per tensor name and block, through integer arithmetic and one rounding to bfloat16; the
order in which tensors or blocks are drawn does not matter. The gain makes answers useful: label logits spread by 1 to 4, and
recurrent heads remember from one token to thousands, so an answer depends on early tokens as a trained model's does.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from flide_engine.models.config import FULL, LINEAR, ModelConfig, ModelError
from flide_engine.models.qwen3_5 import EMBED, HEAD, NORM, Weights

GENERATOR_VERSION = 1
"""Part of every random model's digest: raise it with any change of the values drawn."""

_BLOCK = (
    1 << 17
)  # values drawn from one stream; part of what a seed means. Larger blocks are slower: their pages are new each time
_UNIT_STD = math.sqrt(2 * (65536**2 - 1) / 12)  # of the sum of two uniform 16-bit integers

LOGIT_STD = 1.8
"""Standard deviation of a label's logit over tokens."""

# field -> standard deviation times sqrt(fan in); the fan in is the last dimension. Attention writes more than the other branches,
# so answers depend on far tokens; the others write less, so a rounding error does not grow from layer to layer.
GAINS = {
    "linear_attn.in_proj_qkv.weight": 1.0,
    "linear_attn.in_proj_z.weight": 1.0,
    "linear_attn.in_proj_b.weight": 1.0,
    "linear_attn.in_proj_a.weight": 0.5,
    "linear_attn.conv1d.weight": 1.0,
    "linear_attn.out_proj.weight": 0.5,
    "self_attn.q_proj.weight": 1.0,
    "self_attn.k_proj.weight": 1.0,
    "self_attn.v_proj.weight": 1.0,
    "self_attn.o_proj.weight": 1.5,
    "mlp.gate_proj.weight": 1.0,
    "mlp.up_proj.weight": 1.0,
    "mlp.down_proj.weight": 0.5,
    EMBED: LOGIT_STD,
    HEAD: LOGIT_STD,
}
# field -> (mean, standard deviation)
NORMS = {
    "input_layernorm.weight": (0.0, 0.1),
    "post_attention_layernorm.weight": (0.0, 0.1),
    "linear_attn.norm.weight": (1.0, 0.1),
    "self_attn.q_norm.weight": (0.5, 0.1),
    "self_attn.k_norm.weight": (0.5, 0.1),
    NORM: (0.0, 0.1),
}
DECAY_A, DECAY_DT = (1.0, 16.0), (1e-4, 1e-1)
"""Ranges of A (uniform) and of the time step (log-uniform), those of Gated DeltaNet's own initialisation with a longer tail."""


def _true(hidden: int, layers: int, heads: int, kv_heads: int, value_heads: int, mlp: int, tied: bool) -> ModelConfig:
    return ModelConfig(
        hidden=hidden, layers=layers, layer_types=_pattern(layers), heads=heads, kv_heads=kv_heads, head_dim=256, rotary_dim=64,
        rope_theta=1e7, mlp=mlp, gdn_key_heads=16, gdn_value_heads=value_heads, gdn_key_dim=128, gdn_value_dim=128,
        conv_kernel=4, vocab_size=248320, rms_eps=1e-6, tied=tied, max_context=262144,
    )  # fmt: skip


def _tiny(heads: int, kv_heads: int, value_heads: int, tied: bool) -> ModelConfig:
    return ModelConfig(
        hidden=96, layers=4, layer_types=_pattern(4), heads=heads, kv_heads=kv_heads, head_dim=32, rotary_dim=8,
        rope_theta=1e7, mlp=192, gdn_key_heads=2, gdn_value_heads=value_heads, gdn_key_dim=32, gdn_value_dim=32, conv_kernel=4,
        vocab_size=1024, rms_eps=1e-6, tied=tied, max_context=262144,
    )  # fmt: skip


def _pattern(layers: int) -> tuple[str, ...]:
    return tuple(FULL if (i + 1) % 4 == 0 else LINEAR for i in range(layers))


SIZES = {
    "tiny": _tiny(heads=4, kv_heads=2, value_heads=4, tied=True),
    "tiny6": _tiny(heads=6, kv_heads=1, value_heads=6, tied=False),  # the grouping of 27B
    "0.8b": _true(1024, 24, 8, 2, 16, 3584, tied=True),
    "2b": _true(2048, 24, 8, 2, 16, 6144, tied=True),
    "4b": _true(2560, 32, 16, 4, 32, 9216, tied=True),
    "9b": _true(4096, 32, 16, 4, 32, 12288, tied=False),
    "27b": _true(5120, 64, 24, 4, 48, 17408, tied=False),
}


def dummy_config(size: str) -> ModelConfig:
    """The config of `dummy:size`. Raises ModelError for a size that is not in SIZES."""
    try:
        return SIZES[size.lower()]
    except KeyError:
        raise ModelError(f"unknown dummy size {size!r}; known: {', '.join(SIZES)}") from None


def random_digest(config: ModelConfig, seed: int) -> str:
    """SHA-256 hex of what the values of fill_random are a function of."""
    return hashlib.sha256(b"random|%d|%d|" % (GENERATOR_VERSION, seed) + config.canonical()).hexdigest()


def fill_random(weights: Weights, seed: int) -> None:
    """Fill every tensor of `weights` from the seed. All values are exact in bfloat16, so all dtypes hold the same model."""
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        jobs = [job for name, tensor in weights.by_name.items() for job in _jobs(name, tensor, seed)]
        for _ in pool.map(lambda job: _draw(*job), jobs):
            pass


_Job = tuple[str, int, int, torch.Tensor, float, float]


def _jobs(name: str, tensor: torch.Tensor, seed: int) -> Iterator[_Job]:
    mean, std = _moments(name, tensor)
    flat = tensor.view(-1)
    for block, start in enumerate(range(0, flat.numel(), _BLOCK)):
        yield name, seed, block, flat[start : start + _BLOCK], mean, std


def _moments(name: str, tensor: torch.Tensor) -> tuple[float, float]:
    field = name.split(".", 2)[2] if name.startswith("layers.") else name
    if field in GAINS:
        return 0.0, GAINS[field] / math.sqrt(tensor.shape[-1])
    return NORMS.get(field, (0.0, 0.0))


def _draw(name: str, seed: int, block: int, target: torch.Tensor, mean: float, std: float) -> None:
    count = target.numel()
    if name.endswith(("linear_attn.A_log", "linear_attn.dt_bias")):
        values = _decay(name, seed, count)
    else:
        values = _triangular(_stream(name, seed, block), count)
        values *= np.float32(std / _UNIT_STD)
        values += np.float32(mean)
    _store(_to_bfloat16(values), target)


def _stream(name: str, seed: int, block: int) -> np.random.Philox:
    key = hashlib.sha256(f"{GENERATOR_VERSION}|{seed}|{name}".encode()).digest()[:16]
    return np.random.Philox(key=np.frombuffer(key, "<u8"), counter=np.array([0, 0, 0, block], np.uint64))


def _triangular(stream: np.random.Philox, count: int) -> npt.NDArray[np.float32]:
    """Sums of two uniform 16-bit integers, centred: exact in float32, bounded at 2.45 standard deviations.

    Raw integers, because numpy promises them to be stable over versions and its normal variates not.
    """
    raw = stream.random_raw((count + 1) // 2).astype("<u8", copy=False)
    mask = np.uint64(0x0000FFFF0000FFFF)
    sums = (raw & mask) + ((raw >> np.uint64(16)) & mask)
    values = sums.view("<u4")[:count].astype(np.float32)
    values -= np.float32(65535)
    return values


def _decay(name: str, seed: int, heads: int) -> npt.NDArray[np.float32]:
    """A_log or dt_bias of one layer: one stratum of the range a head, in random order, so every layer has long memories."""
    raw = _stream(name, seed, 0).random_raw(2 * heads)
    quantile = (np.argsort(raw[:heads], kind="stable") + (raw[heads:] >> np.uint64(11)) / 2.0**53) / heads
    if name.endswith("A_log"):
        low, high = DECAY_A
        return np.log(low + (high - low) * quantile).astype(np.float32)
    low, high = (math.log(bound) for bound in DECAY_DT)
    step = np.exp(low + (high - low) * quantile)
    return np.log(np.expm1(step)).astype(np.float32)  # inverse of softplus


def _to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest even; the bits of bfloat16. In numpy, since torch would start a thread team in each worker."""
    bits = values.view(np.uint32)
    bits += ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return (bits >> np.uint32(16)).astype(np.uint16)


def _store(bits: npt.NDArray[np.uint16], target: torch.Tensor) -> None:
    if target.device.type != "cpu":
        target.copy_(torch.from_numpy(bits).view(torch.bfloat16).to(target.device))
    elif target.dtype == torch.bfloat16:
        np.copyto(target.view(torch.uint16).numpy(), bits)
    else:
        np.copyto(target.numpy(), (bits.astype(np.uint32) << np.uint32(16)).view(np.float32))
