"""kill -9 at random moments and at every call into the file system, with an outside ledger of what was acknowledged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def rounds(path: Path, count: int, seed: int, *options: str, script: str = "kill_rounds.py") -> dict[str, Any]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), str(path), str(count), str(seed), *options],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    print(run.stdout, run.stderr[-2000:])
    return result


def holds(result: dict[str, Any]) -> bool:
    return not any(result[name] for name in ("lost", "bad", "ledger_off", "corrupt"))


def test_killed_at_random(tmp_path: Path) -> None:
    result = rounds(tmp_path, 5, 1)
    assert holds(result), result
    assert result["acknowledged"] > 5


def test_killed_at_calls(tmp_path: Path) -> None:
    result = rounds(tmp_path, 8, 2, "--points", "7")
    assert holds(result), result


def test_acknowledging_too_early_is_noticed(tmp_path: Path) -> None:
    lost = 0
    for seed in range(3, 13):  # a kill may come when nothing happens to wait for the disk
        lost += rounds(tmp_path / str(seed), 4, seed, "--hasty")["lost"]
        if lost:
            break
    assert lost > 0


@pytest.mark.bars
@pytest.mark.parametrize(("name", "options"), [("at random", ()), ("at every call", ("--points", "1"))])
def test_two_hundred_kills(tmp_path: Path, bar: Callable[..., None], name: str, options: tuple[str, ...]) -> None:
    result = rounds(tmp_path, 200, 4, *options)
    wrong = result["lost"] + result["bad"] + result["ledger_off"] + result["corrupt"]
    bar(f"store: acknowledged steps lost or bad in 200 kills {name}", wrong, limit=0, **result)
    bar(f"store: slowest start after a kill {name} (s)", result["slowest_start"], limit=1.0)


def test_a_killed_server_knows_what_it_acknowledged(tmp_path: Path) -> None:
    acknowledged = 0
    for seed in range(5, 10):  # a loaded machine may be killed before it acknowledged anything
        result = rounds(tmp_path / str(seed), 2, seed, script="kill_server.py")
        assert not any(result[name] for name in ("lost", "back", "corrupt")), result
        acknowledged += result["acknowledged"]
        if acknowledged:
            break
    assert acknowledged > 0


@pytest.mark.bars
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("name", "options"), [("at random", ()), ("at every named point", ("--named",)), ("at every call", ("--points", "1"))]
)
def test_two_hundred_kills_of_a_server(tmp_path: Path, bar: Callable[..., None], name: str, options: tuple[str, ...]) -> None:
    result = rounds(tmp_path, 200, 6, "--fill", "10000", *options, script="kill_server.py")
    wrong = result["lost"] + result["back"] + result["corrupt"]
    bar(f"store: acknowledged steps lost or bad in 200 kills of a server {name}", wrong, limit=0, **result)
    bar(f"store: slowest start of a server's store {name}, 10,000 checkpoints (s)", result["slowest_start"], limit=1.0)
    assert result["acknowledged"] > 200
