"""The training forward against the engine that serves the exported weights, and against itself without forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine
from flide_engine.models.config import ModelConfig
from flide_engine.models.dummy import dummy_config
from flide_engine.segments import GRID, Kind, Readout, Request, Round, Segment
from training.network import Batch, Network, losses
from training.saved import export

LABELS = (5, 9, 700)


def _network() -> Network:
    network = Network(dummy_config("tiny"), 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in network.named():
            if not name.endswith(("A_log", "dt_bias")):
                value.add_(torch.randn(value.shape, generator=generator) * (0.2 if value.dim() == 1 else 0.05))
    return network


def _batch(forks: list[tuple[int, int]], question: int = 21) -> tuple[Batch, list[np.ndarray], np.ndarray]:
    """Two trunks of 150 and 256 tokens; forks: (trunk, position). Also the trunks and the question as arrays."""
    rng = np.random.default_rng(5)
    trunks = [rng.integers(0, 1000, n).astype(np.int32) for n in (150, 256)]
    asked = rng.integers(0, 1000, question).astype(np.int32)
    trunk = np.full((2, 256), 7)
    for row, tokens in zip(trunk, trunks, strict=True):
        row[: len(tokens)] = tokens
    branch = np.full((len(forks), 128), 3)
    starts, lengths = [], []
    for row, (t, f) in zip(branch, forks, strict=True):
        m = f // GRID * GRID
        own = np.concatenate([trunks[t][m:f], asked])
        row[: len(own)] = own
        starts.append(m)
        lengths.append(len(own))
    n = len(forks)
    zeros = torch.zeros(n, dtype=torch.long)
    owner, start, labels = torch.tensor([t for t, _ in forks]), torch.tensor(starts), torch.tensor([(*LABELS, -1)] * n)
    trunk_len, branch_len = torch.tensor([150, 256]), torch.tensor(lengths)
    told = torch.tensor([*range(0, 149, 3), *range(256, 511)])
    batch = Batch(
        torch.from_numpy(trunk), trunk_len, torch.from_numpy(branch), branch_len, owner, start, labels, zeros, zeros, told
    )
    return batch, trunks, asked


FORKS = [(0, 150), (0, 128), (0, 40), (1, 255), (1, 256), (1, 70)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Path]:
    network = _network()
    directory = tmp_path_factory.mktemp("model")
    export(network, directory, torch.float32)
    return network, directory


def test_exported_weights_give_the_same_label_logits_in_the_engine(exported: tuple[Network, Path]) -> None:
    network, directory = exported
    batch, trunks, asked = _batch(FORKS)
    with torch.no_grad():
        logits = network(batch)[1]
    engine = Engine.load(str(directory), device="cpu", dtype=torch.float32, memory_bytes=64 << 20)
    assert not engine.info.untrained
    for i, (t, f) in enumerate(FORKS):
        segments = (
            Segment(trunks[t][:f]),
            Segment(asked, parent=0, kind=Kind.LOCAL, readouts=(Readout(len(asked) - 1, LABELS),)),
        )
        served = engine.run(Round((Request(segments),))).results[0].logits[1][0]
        assert np.abs(served - logits[i, :3].numpy()).max() < 1e-4, (t, f)
        assert logits[i, 3] == -torch.inf
    assert logits[:, :3].std(0).min() > 1e-3, "the branches must differ, or the comparison says nothing"


def test_what_lies_beyond_a_fork_or_the_end_changes_nothing(exported: tuple[Network, Path]) -> None:
    network, _ = exported
    batch, *_ = _batch(FORKS)
    with torch.no_grad():
        before = network(batch)[1]
        batch.trunk[0, 150:] = 11
        batch.trunk[1, 192:] = 12  # both forks at 255 and 256 start at 192 or later; 256 starts at the end itself
        batch.branch[:, 100:] = 13
        after = network(batch)[1]
    same = [i for i, (t, f) in enumerate(FORKS) if (t, f) != (1, 256)]
    assert torch.allclose(before[same, :3], after[same, :3], atol=1e-5)
    assert not torch.allclose(before[4, :3], after[4, :3], atol=1e-5), "a change before the fork must show"


def test_a_checkpoint_file_is_small_and_its_config_is_read_back(exported: tuple[Network, Path], tmp_path: Path) -> None:
    network, directory = exported
    assert ModelConfig.read(directory) == network.config
    export(network, tmp_path, torch.bfloat16)
    assert (tmp_path / "model.safetensors").stat().st_size < (directory / "model.safetensors").stat().st_size * 0.6


def test_the_gradient_reaches_every_parameter(exported: tuple[Network, Path]) -> None:
    network, _ = exported
    batch, *_ = _batch(FORKS)
    torch.manual_seed(0)
    losses(network, batch)[0].backward()
    dead = [name for name, value in network.named() if value.grad is None or not value.grad.abs().max() > 0]
    network.zero_grad()
    assert not dead


def test_training_needs_neither_the_tokenizer_nor_the_service() -> None:
    """The machine that trains may have torch and safetensors alone."""
    blocked = (
        "import sys\nfor name in ('msgspec', 'tokenizers', 'transformers', 'litestar', 'lmdb'): sys.modules[name] = None\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked + "import training.train, training.evaluate"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
