"""`flide-agent bench engine` on a CPU: what it measures, its switches, and that different bits do not pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine
from flide_engine.segments import Round
from typer.testing import CliRunner

from flide_agent.bench import beside, inside
from flide_agent.bench.ablation import ABLATION, Drawn, Switches
from flide_agent.bench.command import app
from flide_agent.bench.shapes import Shape

SMALL = ["--model", "dummy:tiny", "--device", "cpu", "--memory", "64MiB", "--rows", "3", "--scale", "0.1", "--repeats", "1"]


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["engine", *SMALL, *arguments])


def test_one_file_tells_all(tmp_path: Path) -> None:
    path = tmp_path / "out" / "engine.json"
    result = bench("--only", "race_all", "--histories", "128,256,512", "--json", str(path))
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert found["complete"]
    assert found["failures"] == []
    assert found["machine"]["versions"]["torch"] == torch.__version__
    assert {"date", "processor", "cores", "commit"} <= found["machine"].keys()
    (row,) = found["tables"]["engine"]
    assert row["workload"] == "race_all"
    assert row["equal"] == 1.0
    assert row["passes"] == 1
    assert row["ms"] >= row["gpu_ms"] > row["products_ms"] > 0
    assert row["ratio"] == pytest.approx(row["gpu_ms"] / row["products_ms"])
    assert 0 < row["attention_ms"] < row["gpu_ms"]
    assert [r["history"] for r in found["tables"]["steps"]] == [128, 256, 512]
    assert "over_attention" in found["tables"]["growth"][0]
    (memory,) = found["tables"]["memory"]
    assert memory["peak_bytes"] > memory["pool_bytes"]
    for heading in ("requests/s", "equal bits", "products ms", "100 %"):
        assert heading in result.output


def test_the_ablation_takes_ideas_away_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    result = bench("--only", "race_all", "--ablation", "--histories", "", "--json", str(path))
    assert result.exit_code == 0, result.output
    rows = {r["switches"]: r for r in json.loads(path.read_text())["tables"]["engine"]}
    assert list(rows) == [s.name for s in ABLATION if s.graphs]  # a CPU has no graphs to leave out
    assert {r["equal"] for r in rows.values()} == {1.0}
    whole, apart = rows["whole"], rows["no-fork"]
    assert apart["rows"] > whole["rows"]  # each question carries the state once more
    assert rows["no-flat"]["rows"] == whole["rows"]
    assert rows["no-readout"]["products_ms"] == whole["products_ms"]  # beside it stands what had to be computed


def test_no_fork_asks_each_question_alone_and_no_readout_every_row() -> None:
    shape = Shape(100, (40, 50))
    (whole,) = Drawn(1024, Switches()).request(shape, 5)
    apart = Drawn(1024, Switches(fork=False)).request(shape, 5)
    assert [len(s) for s in whole.segments] == [100, 40, 50]
    assert whole.segments[0].saves == (64,)
    assert [[len(s) for s in r.segments] for r in apart] == [[100, 40], [100, 50]]
    for request, branch in zip(apart, whole.segments[1:], strict=True):
        assert np.array_equal(request.segments[0].tokens, whole.segments[0].tokens)
        assert np.array_equal(request.segments[1].tokens, branch.tokens)
    (every,) = Drawn(1024, Switches(readout=False)).request(shape, 5)
    assert [len(s.readouts) for s in every.segments] == [100, 40, 50]


def test_bits_that_change_with_the_round_fail_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The negative control: one logit of a round of several requests off by its last bit."""
    run, path = inside.seconds_of, tmp_path / "engine.json"

    def off(engine: Engine, rounds: Any, repeats: int, after: Callable[[], None] | None = None) -> inside.Timed:
        timed = run(engine, rounds, repeats, after)
        if len(timed.results) > 1:
            timed.results[1].logits[1][0].view(np.int32)[0] ^= 1
        return timed

    monkeypatch.setattr(inside, "seconds_of", off)
    result = bench("--only", "race_one", "--histories", "", "--json", str(path))
    assert result.exit_code == 1
    found = json.loads(path.read_text())
    assert found["tables"]["engine"][0]["equal"] == pytest.approx(2 / 3)
    assert len(found["failures"]) == 1
    assert "bits of the single client" in found["failures"][0]


def test_products_are_those_of_the_pass() -> None:
    """FLOPs of the products counted here against those of the layers' weights."""
    engine = inside.load("dummy:tiny", "cpu", "float32", 64 << 20, 1024, True)
    jobs = beside.products(engine.model.layers, 100, 3)
    c = engine.model.config
    assert len(jobs) == 4 * c.layers + 1  # the last layer's keys and values are apart
    last = sum(w.shape[0] for w, rows in jobs if rows == 3)
    assert last == 2 * c.heads * c.head_dim + 2 * c.hidden + 2 * c.mlp
    assert {rows for _, rows in jobs} == {100, 3}


def test_measuring_beside_leaves_nothing_in_the_pools() -> None:
    engine = inside.load("dummy:tiny", "cpu", "float32", 64 << 20, 1024, True)
    free = engine.memory.free()
    requests = Drawn(engine.info.vocab_size, Switches()).request(Shape(130, (40, 30)), 1)
    found = beside.Yardstick(engine).measure(Round(tuple(requests)))
    inside.seconds_of(engine, [requests], 1)
    assert engine.memory.free() == free
    assert (found.rows, found.padded_rows) == (200, 256)


def test_union_counts_overlapping_kernels_once() -> None:
    assert beside.union([(0, 4), (2, 3), (3, 6), (8, 9)]) == 7
    assert beside.union([]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "race_none"], "race_none not among"),
        (["--histories", "12"], "64 tokens at least"),
        (["--histories", "64,x"], "no list of"),
        (["--max-memory", "1GiB"], "only a GPU"),
        (["--ablation", "--no-fork"], "each switch by itself"),
        (["--memory", "much"], "no size"),
        (["--data", "race"], "NAME=FOLDER"),
        (["--model", "dummy:huge"], "unknown dummy size"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], says: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.replace("│", " ").split())
