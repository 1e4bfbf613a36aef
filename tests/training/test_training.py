"""A short training on the CPU, and the figures."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flide_engine.models import FULL, LINEAR, load_model
from flide_engine.models.dummy import dummy_config
from training import feed, profile_step, scores, service_desk, step, train
from training.asks import NAMES
from training.network import Batch, Network, losses
from training.packer import Packer
from training.shards import LENGTHS, Batches, Data, few, per_trunk

from flide_agent.default_model import DIRECTORY
from flide_agent.prompts import Prompts


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    prompts = Prompts.load(DIRECTORY)
    for part, seeds in (("train", range(40)), ("held", range(100, 106))):
        packer = Packer(prompts, random.Random(part))
        for seed in seeds:
            packer.add(service_desk.episode(seed))
        packer.shard.write(folder / f"{part}-0.npz")
    return folder


def _small(**changes: Any) -> Network:
    return Network(dataclasses.replace(dummy_config("tiny"), vocab_size=4096, **changes), 0)


def _least() -> Network:
    """A layer of each kind, for what need not learn much."""
    return _small(layers=2, layer_types=(LINEAR, FULL))


def _short(data: Data, most: int) -> Data:
    """Its trunks of at most so many tokens."""
    chosen = [i for i, trunk in enumerate(data.trunks) if len(trunk) <= most]
    trunks, sources, of = ([some[i] for i in chosen] for some in (data.trunks, data.sources, data.of))
    return Data(trunks, sources, of, data.questions, data.labels)  # type: ignore[arg-type]


def test_loss_falls_and_the_checkpoint_loads_as_a_trained_model(shards: Path, tmp_path: Path) -> None:
    data = _short(Data.load([shards / "train-0.npz"]), 512)
    plan = train.Plan(minutes=5, steps=41, tokens=512, rate=3e-3, warm=5, device="cpu")
    network = _least()
    log = train.train(network, data, plan, tmp_path)
    assert [row["step"] for row in log] == [0, 20, 40]
    assert log[-1]["language"] < log[0]["language"] - 1.0
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == log
    model = load_model(str(tmp_path), device="cpu", dtype=torch.float32)
    assert not model.untrained
    assert torch.equal(model.embed, network.weight("embed_tokens.weight").detach().bfloat16().float())
    answers = train.answers(network, Data.load([shards / "held-0.npz"]), plan, NAMES)
    assert "last_command_failed" in answers
    report = scores.report(answers["last_command_failed"])
    assert 0 <= report["low"] <= report["balanced"] <= report["high"] <= 1


def test_batches_are_seeded_and_of_fixed_shape(shards: Path) -> None:
    data = Data.load([shards / "train-0.npz"])
    first, second, other = (Batches(data, 2048, seed).make(0, 1024) for seed in (1, 1, 2))
    assert torch.equal(first.branch, second.branch)
    assert first.branch.shape != other.branch.shape or not torch.equal(first.branch, other.branch)
    assert first.branch.shape[0] == first.trunk.shape[0] * per_trunk(first.trunk.shape[1])
    assert bool((first.start <= first.trunk_len[first.owner]).all())
    assert bool((first.labels.gather(1, first.right[:, None]) >= 0).all())
    assert first.told.numel() == min(8192, 64 * len(first.trunk))
    assert bool((first.told % first.trunk.shape[1] < first.trunk_len[first.told // first.trunk.shape[1]] - 1).all())


def test_the_rate_warms_up_and_comes_down() -> None:
    plan = train.Plan()
    assert train.rate(plan, 0, 0.0) == pytest.approx(plan.rate / plan.warm)
    assert train.rate(plan, 1000, 0.0) == pytest.approx(plan.rate)
    assert train.rate(plan, 1000, 1.0) == pytest.approx(0.03 * plan.rate)
    assert train.longest(0.0) < train.longest(0.1) < train.longest(0.9)


def _answers(n: int, sure: float, rng: np.random.Generator) -> scores.Answers:
    """Answers that are right in 80 % of cases, with logits `sure` apart."""
    truth = rng.integers(0, 2, n)
    hit = rng.random(n) < 0.8
    logits = [np.array([sure, 0.0]) if (t == 0) == h else np.array([0.0, sure]) for t, h in zip(truth, hit, strict=True)]
    return scores.Answers(logits, truth.tolist(), [str(t) for t in truth], (np.arange(n) // 10).tolist())


def test_scores_on_answers_of_known_quality() -> None:
    answers = _answers(4000, 6.0, np.random.default_rng(0))
    assert scores.balanced_accuracy(answers) == pytest.approx(0.8, abs=0.02)
    low, high = scores.interval(answers)
    assert low < scores.balanced_accuracy(answers) < high
    heat = scores.temperature(answers)
    assert 6.0 / heat == pytest.approx(np.log(4), abs=0.15), "80 % right is a logit of log 4"
    assert scores.expected_calibration_error(answers) > 0.15
    assert scores.expected_calibration_error(answers, heat) < 0.03


def test_balance_is_over_truths_and_not_over_answers() -> None:
    always = scores.Answers([np.array([1.0, 0.0])] * 10, [0] * 9 + [1], ["a"] * 9 + ["b"], list(range(10)))
    assert scores.accuracy(always) == 0.9
    assert scores.majority(always) == 0.9
    assert scores.balanced_accuracy(always) == 0.5


def test_a_long_run_counts_as_much_as_a_short_one() -> None:
    right = [np.array([1.0, 0.0])]
    answers = scores.Answers(right * 12, [0] * 10 + [1, 0], ["a"] * 12, [0] * 10 + [1, 1])
    assert scores.accuracy(answers) == pytest.approx(11 / 12)
    assert scores.balanced_accuracy(answers) == pytest.approx((1 + 0.5) / 2)


def test_batches_that_do_not_fit_are_halved(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(network: Network, batch: Batch, language: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if batch.trunk.numel() > 1024:
            raise torch.OutOfMemoryError
        return losses(network, batch, language)

    monkeypatch.setattr(step, "losses", fits)
    plan = train.Plan(minutes=5, steps=3, tokens=4096, device="cpu", every=1)
    log = train.train(_least(), _short(Data.load([shards / "train-0.npz"]), 1024), plan, tmp_path)
    assert [row["tokens"] for row in log] == [1024, 2048, 3072]
    assert (tmp_path / "model.safetensors").exists()


def test_progress_is_told_by_question(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = few(Data.load([shards / "held-0.npz"]), 2)
    assert len(held.trunks) == len(held.of) <= 2 * len(LENGTHS)
    plan = train.Plan(minutes=5, steps=2, tokens=512, device="cpu")
    watched = train.Watched(_short(held, 4096), NAMES, seconds=0.0)
    train.train(_least(), _short(Data.load([shards / "train-0.npz"]), 1024), plan, tmp_path, watched)
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 <= told["held"]["last_command_failed"] <= 1


def test_a_batch_is_learnt_by_heart(shards: Path) -> None:
    """Gradients reach what decides an answer: eight answers to different questions, from one batch."""
    network = _least()
    made = Batches(Data.load([shards / "train-0.npz"]), 1024, 1).make(0, 512)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, betas=(0.9, 0.95))
    found = []
    for _ in range(25):
        total, answer, _ = losses(network, made)
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        found.append(answer.item())
    assert found[0] > 0.5
    assert found[-1] < 0.1


def test_updates_are_those_of_adamw() -> None:
    """Three ordinary updates, one of them clipped, and one that is left out."""
    network, known = _small(), _small()
    flat = step.Flat(network, "cpu")
    matrices = [v for _, v in known.named() if v.dim() > 1]
    others = [v for _, v in known.named() if v.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": step.DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=step.BETAS)
    generator = torch.Generator().manual_seed(0)
    for size in (1e-4, 3.0, torch.nan, 1e-2):
        for value in known.parameters():
            value.grad = torch.randn(value.shape, generator=generator) * size
        torch.cat(
            [*(v.grad.flatten() for v in known.parameters() if v.grad is not None), torch.tensor([1.0, 2.0, 1e-2])],
            out=flat.grad,
        )
        flat.update()
        if size == size:
            torch.nn.utils.clip_grad_norm_(known.parameters(), 1.0)
            optimizer.step()
    for (name, value), other in zip(network.named(), known.parameters(), strict=True):
        assert torch.allclose(value, other, rtol=1e-5, atol=1e-6), name
    assert flat.sums.tolist() == [3.0, 6.0, 1.0]


def test_batches_from_processes_are_those_made_here(shards: Path) -> None:
    batches = Batches(Data.load([shards / "train-0.npz"]), 1024, 1)
    size = max(batches.shape(n).numbers for n in batches.by_length)
    here, there = torch.zeros(2, 12, size, dtype=torch.int32)
    with feed.Feed(batches, 0) as one, feed.Feed(batches, 3) as three:
        for some in (one, three):
            some.longest.value = 8192
            some.begin()
        lengths = [one.next(row) for row in here]
        assert [three.next(row) for row in there] == lengths
    assert torch.equal(here, there)
    assert len({tuple(row.tolist()) for row in here}) == 12


def test_two_processes_train_one_model(shards: Path, tmp_path: Path) -> None:
    """Both hold the same weights at the end: the sum of their gradients is the gradient of both batches."""
    data = _short(Data.load([shards / "train-0.npz"]), 512)
    plan = train.Plan(minutes=5, steps=2, tokens=512, rate=3e-3, warm=1, device="cpu", every=1, feeders=1)
    network = _least()
    train.together(network, data, plan, tmp_path, None, 2)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["tokens"] for row in log][-1] >= 2 * 512 * 4
    alone, batches = _least(), Batches(data, 512, plan.seed)
    flat = step.Flat(alone, "cpu")
    for i, row in enumerate(log):
        length = batches.length(i, train.longest(i / plan.steps) if i < plan.steps else LENGTHS[-1])
        grads = torch.zeros_like(flat.grad)
        for rank in (0, 1):
            shape = batches.shape(length)
            made = torch.zeros(shape.numbers, dtype=torch.int32)
            batches.fill(made, i, length, rank)
            flat.gather(*losses(alone, shape.split(made.long())))
            grads += flat.grad
        flat.grad.copy_(grads)
        flat.grad[-1] = 2 * row["rate"]
        flat.update(2)
    for (name, value), (_, other) in zip(network.named(), alone.named(), strict=True):
        assert torch.allclose(value, other, rtol=1e-4, atol=1e-5), name


@pytest.mark.bars
def test_a_profile_tells_all_lengths_and_kernels(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _short(Data.load([shards / "train-0.npz"]), 2048)
    lengths = [str(n) for n in Batches(data, 1024, 0).by_length]
    assert len(lengths) == 3, "a batch of one length must not be read as one of another"
    profile_step.report(_least(), data, "cpu", 1024, time.monotonic() + 60, graphs=False, compile=False)
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told if "host_ms" in line] == lengths
    assert any("aten::" in line and line.split()[0] == lengths[0] for line in told)
    assert told[-1].endswith("all")
