"""Sketched runs, training on from given weights, and temperatures."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from flide_engine.models import FULL, LINEAR
from flide_engine.models.dummy import dummy_config
from safetensors.torch import load_file
from training import blend, calibrate, saved, scores, sketch, tune
from training.asks import NAMES
from training.network import Network
from training.packer import Packer
from training.saved import load
from training.shards import Batches, Data, paths

from flide_agent.default_model import DIRECTORY
from flide_agent.prompts import Prompts


def test_sketches_are_made_anew_for_every_seed() -> None:
    assert sketch.episode(4) == sketch.episode(4)
    actions = [a for seed in range(300) for a in sketch.episode(seed).actions]
    kinds = Counter((a.kind, bool(a.failed)) for a in actions)
    assert all(kinds[kind, failed] > 50 for kind in ("look", "search", "edit", "run") for failed in (True, False))
    assert len({a.name for a in actions}) > 400
    failures = [a.output for a in actions if a.failed]
    assert len(set(failures)) > 0.6 * len(failures)
    assert any("\n" in f and len(f) > 2000 for f in failures), "refused edits with long windows of code"


def test_what_a_sketch_knows_stands_in_its_text() -> None:
    for seed in range(200):
        for action in sketch.episode(seed).actions:
            assert not (action.failed and action.edited)
            assert action.failed == (action.code != 0)
            assert not action.failed or action.output.strip()
            if len(action.edited) == 1 and action.kind == "edit" and action.name != action.program:
                assert action.program in action.arguments.get("command", action.command)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    packer = Packer(Prompts.load(DIRECTORY), random.Random(0))
    for seed in range(40):
        packer.add(sketch.episode(seed))
    packer.shard.write(folder / "train-0.npz")
    (folder / "names.json").write_text(json.dumps({"names": NAMES}))
    return folder


def test_narrow_branches_are_more(shards: Path) -> None:
    data = Data.load(paths([shards], "train"))
    wide, narrow = (Batches(data, 1024, 0, told=64, width=width).make(0, 512) for width in (128, 64))
    assert len(narrow.branch) == 2 * len(wide.branch)
    assert narrow.branch.numel() == wide.branch.numel()
    assert int(narrow.branch_len.max()) <= 64


def test_training_goes_on_from_given_weights(shards: Path, tmp_path: Path) -> None:
    data = Data.load(paths([shards], "train"))
    before = data.rarity.copy()
    tune.weigh(data, list(NAMES))
    assert data.rarity[0] == before[0] * tune.OFTEN["last_command_failed"]
    plan = tune.Plan(minutes=0.03, tokens=512, longest=512, sharing=0.0)
    start, first, second = (tmp_path / name for name in ("start", "first", "second"))
    start.mkdir()
    config = dataclasses.replace(dummy_config("tiny"), vocab_size=4096, layers=2, layer_types=(LINEAR, FULL))
    saved.export(Network(config, 0), start, torch.bfloat16)
    for out, beside in ((first, None), (second, first)):
        out.mkdir()
        tune.tune(load(start), data, plan, out, beside, compile=False)
        assert (out / tune.SHARED).exists()
    known, found = load(start), load(second)
    apart = [float((a - b).detach().abs().max()) for a, b in zip(known.parameters(), found.parameters(), strict=True)]
    assert 0 < max(apart) < 0.1
    assert all(torch.isfinite(p).all() for p in found.parameters())


def _answers(scale: float, right: float, n: int, runs: int, seed: int = 0) -> scores.Answers:
    """Logits that are `scale` apart, with `right` of them on the right side."""
    rng = np.random.default_rng(seed)
    logits = [np.array([scale, 0.0]) if rng.random() < right else np.array([0.0, scale]) for _ in range(n)]
    return scores.Answers(logits, [0] * n, ["True"] * n, [i % runs for i in range(n)])


def test_a_question_of_few_answers_stays_near_its_type() -> None:
    many, few = _answers(4.0, 0.75, 800, 40), _answers(4.0, 0.0, 1, 1)
    found = calibrate.temperatures({"last_command_failed": many, "traceback": few}, {})
    told = scores.softmax(np.array([4.0, 0.0]), found["last_command_failed"])[0]
    assert told == pytest.approx(0.75, abs=0.03)
    assert found["noul"] == pytest.approx(found["last_command_failed"], rel=0.2)
    assert found["last_command_failed"] < found["traceback"] < 4 * found["noul"]


def test_own_runs_weigh_as_much_as_the_development_source() -> None:
    hard, easy = _answers(4.0, 0.7, 200, 8), _answers(4.0, 0.99, 4000, 200)
    alone = calibrate.temperatures({"traceback": hard}, {})["traceback"]
    both = calibrate.temperatures({"traceback": hard}, {"traceback": easy})["traceback"]
    own = calibrate.temperatures({}, {"traceback": easy})["traceback"]
    assert own < both < alone
    assert set(calibrate.temperatures({}, {"step_count": easy})) >= {"step_count"}


def test_a_blend_lies_between_its_parts_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    for name, seed, vocab in (("0", 0, 64), ("1", 1, 64), ("wide", 0, 80)):
        (tmp_path / name).mkdir()
        saved.export(Network(dataclasses.replace(dummy_config("tiny"), vocab_size=vocab), seed), tmp_path / name, torch.float32)
    blend.blend([(1.0, tmp_path / "0"), (3.0, tmp_path / "1")], tmp_path / "out")
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in ("0", "1", "out"))
    for name, value in c.items():
        assert torch.allclose(value, 0.25 * a[name] + 0.75 * b[name], atol=1e-7)
    assert not torch.equal(c["model.embed_tokens.weight"], a["model.embed_tokens.weight"])
    assert saved.load(tmp_path / "out").config == saved.load(tmp_path / "0").config
    with pytest.raises(ValueError, match="different architectures"):
        blend.blend([(1.0, tmp_path / "0"), (1.0, tmp_path / "wide")], tmp_path / "no")
    with pytest.raises(ValueError, match="more than zero"):
        blend.blend([(0.0, tmp_path / "0")], tmp_path / "no")
