"""Random weights: true shapes, the same bits everywhere, and answers that are spread out and depend on far tokens."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
import torch
from flide_engine.models import LinearLayer, dummy, load_model
from flide_engine.models.dummy import SIZES, fill_random, random_digest
from flide_engine.models.qwen3_5 import Weights, allocate
from saved_models import oracle

PARAMETERS = {"0.8b": 0.752e9, "2b": 1.882e9, "4b": 4.206e9, "9b": 8.954e9, "27b": 26.896e9}


def values_digest(weights: Weights) -> str:
    """SHA-256 of every tensor's values in float32, by name."""
    whole = hashlib.sha256()
    for name, tensor in sorted(weights.by_name.items()):
        whole.update(name.encode() + tensor.to(torch.float32).contiguous().numpy().tobytes())
    return whole.hexdigest()


def filled(size: str, seed: int, dtype: torch.dtype = torch.float32) -> Weights:
    weights = allocate(SIZES[size], "cpu", dtype)
    fill_random(weights, seed)
    return weights


@pytest.mark.parametrize("size", PARAMETERS)
def test_true_sizes(size: str) -> None:
    weights = allocate(SIZES[size], "meta", torch.bfloat16)
    assert weights.parameters() == pytest.approx(PARAMETERS[size], rel=1e-3)
    assert SIZES[size].layer_types[-1] == "full"


def test_27b_has_the_851_tensors_of_its_checkpoint() -> None:
    assert len(allocate(SIZES["27b"], "meta", torch.bfloat16).by_name) == 851


@pytest.mark.parametrize(
    ("size", "values"),
    [
        ("tiny", "fda4d133203add518a92211009fa443990a103da6304ea8800e21bcd75ea7bff"),
        ("tiny6", "42b9e3df2ca5b0abcb7b0f120c78a2faed51defcdff10375549f47d52ffa7791"),
    ],
)
def test_values_are_pinned(size: str, values: str) -> None:
    """A change here changes every random model: raise GENERATOR_VERSION with it, so old checkpoints are not taken for new ones."""
    assert dummy.GENERATOR_VERSION == 1
    assert values_digest(filled(size, 0)) == values


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_every_dtype_holds_the_same_values(dtype: torch.dtype) -> None:
    assert values_digest(filled("tiny", 3, dtype)) == values_digest(filled("tiny", 3))


def test_seeds_differ() -> None:
    assert values_digest(filled("tiny", 0)) != values_digest(filled("tiny", 1))
    assert random_digest(SIZES["tiny"], 0) != random_digest(SIZES["tiny"], 1)
    assert random_digest(SIZES["tiny"], 0) != random_digest(SIZES["tiny6"], 0)


def test_a_tensor_depends_on_its_name_alone() -> None:
    """Not on the tensors before it: fewer layers leave the others as they are."""
    short = allocate(
        dataclasses.replace(SIZES["tiny"], layers=2, layer_types=SIZES["tiny"].layer_types[:2]), "cpu", torch.float32
    )
    fill_random(short, 0)
    whole = filled("tiny", 0)
    assert all(torch.equal(tensor, whole.by_name[name]) for name, tensor in short.by_name.items())


def test_blocks_do_not_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dummy, "_BLOCK", 1 << 10)
    head = filled("tiny", 0).embed.reshape(-1)
    assert not torch.equal(head[: 1 << 10], head[1 << 10 : 2 << 10])


def test_load_model_by_name() -> None:
    model = load_model("dummy:tiny:7", device="cpu", dtype=torch.float32)
    assert model.untrained
    assert model.digest == random_digest(SIZES["tiny"], 7)
    assert torch.equal(model.embed, filled("tiny", 7).embed)
    assert load_model("dummy:tiny", device="cpu", dtype=torch.float64).digest == random_digest(SIZES["tiny"], 0)


@pytest.mark.parametrize("size", ["tiny", "tiny6"])
def test_heads_remember_from_tokens_to_hundreds(size: str) -> None:
    for layer in filled(size, 0).layers:
        if isinstance(layer, LinearLayer):
            rate = layer.A_log.exp() * torch.nn.functional.softplus(layer.dt_bias)
            assert rate.min() < 1 / 100
            assert rate.max() > 1 / 30
            assert rate.isfinite().all()


@pytest.mark.parametrize("size", ["tiny", "tiny6"])
def test_gain_is_useful(size: str) -> None:
    """Label logits spread by 1 to 4, the median top label over 2 to 26 labels lies at 0.3 to 0.7, a far token moves answers."""
    tops: list[float] = []
    spread: list[float] = []
    moved: list[float] = []
    for seed in range(3):
        module = oracle(SIZES[size], seed)
        random = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, SIZES[size].vocab_size, (4, 300), generator=random)
        other = ids.clone()
        other[:, 5] = (other[:, 5] + 1) % SIZES[size].vocab_size
        labels = torch.randperm(SIZES[size].vocab_size, generator=random)[:26]
        with torch.no_grad():
            here, there = (module(input_ids=x, logits_to_keep=1, use_cache=False).logits[:, -1, labels] for x in (ids, other))
        spread.append(float(here.std()))
        moved += ((here.softmax(-1) - there.softmax(-1)).abs().sum(-1) / 2).tolist()
        for count in range(2, 27):
            tops += here[:, :count].softmax(-1).amax(-1).tolist()
    assert 1 <= np.mean(spread) <= 4
    assert 0.3 <= np.median(tops) <= 0.7
    assert np.median(moved) > 0.005


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_holds_the_same_values() -> None:
    weights = allocate(SIZES["tiny6"], "cuda", torch.bfloat16)
    fill_random(weights, 0)
    here = filled("tiny6", 0, torch.bfloat16)
    assert all(torch.equal(tensor.cpu(), here.by_name[name]) for name, tensor in weights.by_name.items())
