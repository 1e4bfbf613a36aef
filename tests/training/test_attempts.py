"""What keeps a training going: checks of a captured step, a state to go on from, the log, an end to what hangs, the script of one call."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flide_engine.models.dummy import dummy_config
from training import feed, saved, service_desk, step, train, trial
from training.network import Network, losses
from training.pace import Log, Pace
from training.packer import Packer
from training.shards import Batches, Data, bucket

from flide_agent.default_model import DIRECTORY
from flide_agent.prompts import Prompts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Desk runs of at most 512 tokens."""
    packer = Packer(Prompts.load(DIRECTORY), random.Random(0))
    for seed in range(40):
        packer.add(service_desk.episode(seed))
    file = tmp_path_factory.mktemp("shards") / "train-0.npz"
    packer.shard.write(file)
    made = Data.load([file])
    chosen = [i for i, trunk in enumerate(made.trunks) if bucket(len(trunk)) == 512]
    trunks, sources, of = ([some[i] for i in chosen] for some in (made.trunks, made.sources, made.of))
    return Data(trunks, sources, of, made.questions, made.labels)  # type: ignore[arg-type]


def _small() -> Network:
    return Network(dataclasses.replace(dummy_config("tiny"), vocab_size=4096), 0)


class _Passes:
    """A step's pass over numbered batches; `stale`: as a capture would that never reads its input again."""

    def __init__(self, data: Data, stale: bool = False) -> None:
        self.network, self.batches, self.stale = _small(), Batches(data, 1024, 3), stale
        self.flat = step.Flat(self.network, "cpu")

    def __call__(self, i: int) -> None:
        self.flat.gather(*losses(self.network, self.batches.make(0 if self.stale else i, 512)))

    def plain(self) -> list[torch.Tensor]:
        found, stale, self.stale = [], self.stale, False
        for i in (0, 1):
            self(i)
            found.append(self.flat.grad.clone())
        self.stale = stale
        return found


def test_a_captured_pass_must_read_its_own_batch(data: Data) -> None:
    good, stale = _Passes(data), _Passes(data, stale=True)
    assert "gradients apart 0.0000" in trial.gradients(good.flat, good.plain(), good)
    with pytest.raises(RuntimeError, match="other gradients"):
        trial.gradients(stale.flat, stale.plain(), stale)


def test_a_captured_update_must_move_weights_as_the_plain_one(data: Data) -> None:
    passes = _Passes(data)
    flat, plain = passes.flat, passes.plain()
    before = flat.state()
    assert "values 0.0e+00" in trial.updates(flat, plain, flat.update, flat.update, 1e-3)
    assert all(torch.equal(value, before[name]) for name, value in flat.state().items())

    def twice() -> None:
        flat.update()
        flat.update()

    wrong: tuple[Callable[[], None], ...] = (lambda: None, twice)
    for other in wrong:
        with pytest.raises(RuntimeError, match="a captured update"):
            trial.updates(flat, plain, flat.update, other, 1e-3)
        assert torch.equal(flat.values, before["values"])


def test_a_second_attempt_goes_on_from_the_state(data: Data, tmp_path: Path) -> None:
    plan = train.Plan(minutes=5, steps=4, tokens=512, warm=1, device="cpu", every=1, state=tmp_path / "state.safetensors")
    first = _small()
    train.train(first, data, plan, tmp_path)
    assert saved.read(plan.state) == saved.Done(1.0, 4, 4 * 512)
    again = _small()
    log = train.train(again, data, dataclasses.replace(plan, steps=6), tmp_path)
    assert log == [], "the whole was done"
    assert torch.equal(step.Flat(again, "cpu").values, step.Flat(first, "cpu").values)

    saved.keep(step.Flat(first, "cpu"), tmp_path / "state.safetensors", saved.Done(0.5, 4, 4 * 512))
    log = train.train(_small(), data, dataclasses.replace(plan, steps=6), tmp_path)
    assert [row["step"] for row in log] == [4, 5]
    assert [row["tokens"] for row in log] == [5 * 512, 6 * 512]
    assert log[0]["rate"] < 0.7 * plan.rate, "the schedule goes on too"
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [0, 1, 2, 3, 4, 5]


def test_weights_of_a_directory_are_what_was_exported(tmp_path: Path) -> None:
    """Also those of the model in the package, which another training may start from, at any length from the first step on."""
    network = _small()
    saved.export(network, tmp_path, torch.float32)
    assert torch.equal(step.Flat(saved.load(tmp_path), "cpu").values, step.Flat(network, "cpu").values)
    shipped = saved.load(DIRECTORY)
    saved.export(shipped, tmp_path, torch.bfloat16)
    assert (tmp_path / "model.safetensors").read_bytes() == (DIRECTORY / "model.safetensors").read_bytes()
    assert train.Plan().curriculum


def test_an_attempt_without_time_keeps_what_there_is(data: Data, tmp_path: Path) -> None:
    network = _small()
    flat = step.Flat(network, "cpu")
    flat.values.add_(1.0)
    state = tmp_path / "state.safetensors"
    saved.keep(flat, state, saved.Done(0.5, 100, 1000))
    again = _small()
    assert train.train(again, data, train.Plan(minutes=0, tokens=512, device="cpu", state=state), tmp_path) == []
    assert torch.equal(step.Flat(again, "cpu").values, flat.values)
    assert saved.read(state) == saved.Done(1.0, 100, 1000)


def test_batches_of_a_process_that_died_are_made_here(data: Data, capfd: pytest.CaptureFixture[str]) -> None:
    batches = Batches(data, 1024, 1)
    rows = torch.zeros(2, 8, batches.shape(512).numbers, dtype=torch.int32)
    with feed.Feed(batches, 0) as here, feed.Feed(batches, 2) as there:
        here.begin()
        there.begin()
        for i in range(8):
            here.next(rows[0, i])
            there.next(rows[1, i])
            if i == 1:
                there._workers[1].kill()
                there._workers[1].join()
    assert torch.equal(rows[0], rows[1])
    assert capfd.readouterr().out.count("its batches are made here") == 1


def test_the_log_tells_the_pace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pace = Pace()
    with pace.waiting("batches"):
        time.sleep(0.05)
    with pace.waiting("device"):
        time.sleep(0.02)
    pace.step(700)
    pace.step(700)
    told = pace.read()
    assert told["step_ms"] >= told["batches_ms"] + told["device_ms"] >= 34
    assert told["batches_ms"] > told["device_ms"] >= 9
    assert told["tokens_a_second"] == pytest.approx(700e3 / told["step_ms"], rel=0.01)
    pace.step(1)
    assert pace.read()["batches_ms"] == 0.0
    log = Log(tmp_path / "log.jsonl")
    log._told -= 11.0
    log.add({"step": 0})
    log.add({"step": 1})
    assert capsys.readouterr().out == '{"step": 0}\n'


@pytest.mark.parametrize("alive", [True, False])
def test_what_hangs_is_ended(alive: bool) -> None:
    code = (
        "import sys, time; from training.pace import Watchdog\n"
        "with Watchdog(0.5) as dog:\n"
        "    for _ in range(12):\n"
        "        time.sleep(0.1)\n"
        f"        {'dog.alive()' if alive else 'pass'}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, "nothing moved" in ended.stderr) == ((0, False) if alive else (3, True))


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'engine'}", "OMP_NUM_THREADS": "1"}


def test_one_call_tries_again_in_what_time_is_left(tmp_path: Path) -> None:
    """With a python3 that notes what it is called with: the first training dies, the second does not; then the judge."""
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        f'[ "$2" = training.train ] && [ ! -e {tmp_path}/died ] && {{ touch {tmp_path}/died; sleep 1; exit 134; }}\nexit 0\n'
    )
    fake.chmod(0o755)
    script = ROOT / "engine/training/one_call.sh"
    command = ["sh", str(script), "judge", str(tmp_path / "out"), "0.5", "0", "a", "b", "--", "--tokens", "4096"]
    environment = _environment() | {"PATH": f"{fake.parent}:{os.environ['PATH']}"}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=60)
    first, second, judge = ((tmp_path / "calls").read_text()).splitlines()
    assert first.startswith(f"-m training.train a b {tmp_path}/out --minutes 0.5 --state ")
    assert first.endswith("--tokens 4096")
    assert second.endswith("--tokens 4096 --gpus 1 --no-graphs")
    assert 0.4 < float(second.split("--minutes ")[1].split()[0]) < 0.5
    assert judge == f"-m training.evaluate {tmp_path}/out judge --own a b"
