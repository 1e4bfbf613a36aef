"""Packs, labels and the figures made of them, against values worked out apart."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.replay.labels import Labels, expected
from flide_agent.replay.moments import Plan
from flide_agent.replay.pack import DEFAULT_PACK, Pack, Reading, load, tempered, written
from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.scoring import Sample, auroc, ece, score, temperature_of, threshold_at, wilson

TOML = """
[questions.failed]
type = "noul"
instructions = "Did it fail?"
reference = "last_failed"
threshold = 0.7
temperature = 2.0

[questions.tool]
type = "choice"
instructions = "Which tool?"
criteria = { look = "read", edit = "write" }
reference = "next_tool"
map = { cat = "look", sed = "edit" }
"""


def test_a_pack_in_toml_and_the_same_in_json(tmp_path: Path) -> None:
    path = tmp_path / "pack.toml"
    path.write_text(TOML)
    pack = load(path)
    assert pack.questions["failed"] == {"type": "noul", "instructions": "Did it fail?"}  # what is replay's own is not sent
    assert pack.readings["failed"] == Reading("last_failed", {}, 0.7, 2.0)
    again = tmp_path / "again.json"
    again.write_text(written(pack))
    assert load(again) == pack


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[questions", "not valid TOML"),
        ('[q]\ntype="noul"\nthreshold=2', "question 'q': threshold must be a number from 0 to 1"),
        ('[q]\ntype="noul"\ntemperature=0', "temperature must be a number above 0"),
        ('[q]\ntype="noul"\nreference=1', "reference must be the name of a label"),
        ('[q]\ntype="noul"\nmap=1', "map must be an object"),
    ],
)
def test_a_pack_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "pack.toml"
    path.write_text(text)
    with pytest.raises(QuestionsError, match=says):
        load(path)


def test_firing_looks_at_the_probability_at_the_temperature() -> None:
    pack = Pack({"q": {"type": "noul"}}, {"q": Reading(threshold=0.7, temperature=2.0)})
    hot = 1 / (1 + math.exp(-math.log(0.8 / 0.2) / 2))  # logit halved: 0.667
    assert pack.calibrated("q", {"type": "noul", "noul": 0.8})["true"] == pytest.approx(hot)
    assert not pack.fires("q", {"type": "noul", "noul": 0.8})
    assert pack.fires("q", {"type": "noul", "noul": 0.9})


@pytest.mark.parametrize(
    ("reading", "question", "labels", "right"),
    [
        (Reading("x"), {"type": "noul"}, {"x": True}, "true"),
        (Reading("x"), {"type": "noul"}, {"x": "no"}, "false"),
        (Reading("x"), {"type": "noul"}, {"x": "maybe"}, None),
        (Reading("x"), {"type": "noul"}, {}, None),
        (Reading(), {"type": "noul"}, {"x": True}, None),
        (Reading("x", {"HIGH": 1}), {"type": "score", "criteria": ["a", "b"]}, {"x": "HIGH"}, "1"),
        (Reading("x", {"HIGH": 1}), {"type": "score", "criteria": ["a", "b"]}, {"x": "UNKNOWN"}, None),
        (Reading("x", {"cat": "look"}), {"type": "choice", "criteria": {"look": None}}, {"x": "cat"}, "look"),
        (Reading("x"), {"type": "choice", "criteria": {"look": None}}, {"x": "edit"}, None),
        (Reading("x", {"true": False}), {"type": "noul"}, {"x": True}, "false"),
        (Reading("x", {"yes": True, "no": False}), {"type": "noul"}, {"x": False}, "false"),
        (Reading("x", {"yes": True, "no": False}), {"type": "noul"}, {"x": "maybe"}, None),
        (Reading("x", {"HIGH": True}), {"type": "noul"}, {"x": True}, None),
        (Reading("x", {"yes": "a"}), {"type": "choice", "criteria": {"a": None}}, {"x": True}, "a"),
        (Reading("x", {"1": 0}), {"type": "score", "criteria": ["a", "b"]}, {"x": "yes"}, None),
    ],
)
def test_from_a_label_to_an_option(
    reading: Reading, question: dict[str, Any], labels: dict[str, Any], right: str | None
) -> None:
    assert expected(reading, question, labels) == right


def test_a_label_file_is_laid_over_what_the_format_says(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    rows = [{"run": "r", "step": 1, "stuck": True}, {"file": "a/b.traj", "row": 2, "step": 1, "labels": {"last_failed": False}}]
    path.write_text("\n".join(map(json.dumps, rows)))
    labels = Labels.load(path)
    assert labels.of("x/b.traj", 2, "r", 1, "before", {"last_failed": True}) == {"last_failed": False, "stuck": True}
    assert labels.of("x/b.traj", 3, "", 1, "before", {"last_failed": True}) == {"last_failed": True}
    table = tmp_path / "labels.csv"
    table.write_text("run,step,stuck\nr,1,yes\nr,2,\n")
    assert Labels.load(table).of("f", 1, "r", 1, "after", {}) == {"stuck": "yes"}
    assert Labels.load(table).of("f", 1, "r", 2, "after", {}) == {}
    table.write_text("run,step,moment,stuck\nr,1,after,yes\nr,1,,no\n")
    assert [Labels.load(table).of("f", 1, "r", 1, m, {})["stuck"] for m in ("before", "after")] == ["no", "yes"]
    table.write_text("run,step,moment,stuck\nr,1,later,yes\n")
    with pytest.raises(QuestionsError, match=r"labels.csv:2: moment must be one of before, proposed, after"):
        Labels.load(table)
    path.write_text('{"step": 1}')
    with pytest.raises(QuestionsError, match=r"labels.jsonl:1: needs a step number"):
        Labels.load(path)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.2, 0.5, 0.9]), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_the_share_of_pairs_in_order(rows: list[tuple[float, bool]]) -> None:
    p, y = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    pairs = [(a > b) + 0.5 * (a == b) for a in p[y] for b in p[~y]]
    if pairs:
        assert auroc(p, y) == pytest.approx(float(np.mean(pairs)))
    else:
        assert math.isnan(auroc(p, y))


def test_ece_of_hand_made_bins() -> None:
    p, y = np.array([0.05, 0.05, 0.95, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    assert ece(p, y) == pytest.approx((2 * abs(0.05 - 0.5) + 2 * abs(0.975 - 1)) / 4)


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.3, 0.6, 0.8, 0.9]), st.booleans()), min_size=1, max_size=25),
    st.sampled_from([0.0, 0.1, 0.34, 1.0]),
)
def test_the_threshold_is_the_lowest_that_keeps_the_error(rows: list[tuple[float, bool]], target: float) -> None:
    p, y = np.array([r[0] for r in rows]), np.array([float(r[1]) for r in rows])
    good = [c for c in sorted(set(p)) if 1 - y[p >= c].mean() <= target + 1e-12]
    found = threshold_at(p, y, target)
    assert (found[0] if found else None) == (good[0] if good else None)
    if found:
        assert found[1] == (p >= found[0]).sum()
        assert found[3] == pytest.approx(1 - y[p >= found[0]].mean())


def test_wilson_of_a_textbook_case() -> None:
    low, high = wilson(8, 10) or (0, 0)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_the_temperature_that_made_the_labels_is_found(true: float) -> None:
    rng = np.random.default_rng(5)
    sample = Sample("noul")
    for i, x in enumerate(rng.normal(0, 2, 4000)):
        p = 1 / (1 + math.exp(-x))
        real = tempered({"true": p, "false": 1 - p}, true)["true"]
        sample.add(i % 40, {"true": p, "false": 1 - p}, "true" if rng.random() < real else "false")
    found, after, before = temperature_of(sample)
    assert found == pytest.approx(true, rel=0.12)
    assert after <= before
    assert score(sample, temperature=found)["ece"] < 0.03


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(8)
    held = 0
    for _ in range(60):
        sample = Sample("choice")
        for run in range(25):
            right = rng.random() < 0.7  # all steps of a run are right or wrong together
            for _ in range(4):
                sample.add(run, {"a": 0.8, "b": 0.2}, "a" if right else "b")
        low, high = score(sample)["accuracy_interval"]
        held += low <= 0.7 <= high
    assert held >= 50  # resampled steps instead of runs would hold it about 40 times


def test_few_and_one_sided_labels_give_no_numbers_that_mean_nothing() -> None:
    sample = Sample("noul")
    assert score(sample)["n"] == 0
    sample.add(0, {"true": 0.4, "false": 0.6}, "false")
    found = score(sample)
    assert (found["auroc"], found["accuracy_interval"], found["accuracy"]) == (None, None, 1.0)
    json.dumps(found, allow_nan=False)


def decisions(tmp_path: Path, n: int = 200) -> Path:
    rng = np.random.default_rng(3)
    path = tmp_path / "decisions.jsonl"
    with path.open("w") as f:
        for i in range(n):
            p = float(rng.uniform(0.01, 0.99))
            answers = {"last_command_failed": {"type": "noul", "noul": p}}
            row = {
                "kind": "decision",
                "file": "f",
                "row": i % 9,
                "run": "r",
                "step": i,
                "answers": answers,
                "questions": Plan(DEFAULT_PACK.questions, DEFAULT_PACK.moments).digest,
                "labels": {"last_failed": bool(rng.random() < p)},
            }
            f.write(json.dumps(row) + "\n")
        f.write('{"kind": "summary"}\n')
    return path


def test_calibrate_writes_a_pack_that_replay_reads(tmp_path: Path) -> None:
    out = tmp_path / "pack.json"
    result = CliRunner().invoke(
        cli.app, ["calibrate", str(decisions(tmp_path)), "-o", str(out), "--target-error", "0.1"], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    pack = load(out)
    assert pack.questions == DEFAULT_PACK.questions
    reading = pack.readings["last_command_failed"]
    assert 0.7 < reading.temperature < 1.4  # the labels were drawn from the probabilities themselves
    assert reading.threshold is not None
    assert reading.threshold > 0.6
    assert pack.readings["empty_output"] == DEFAULT_PACK.readings["empty_output"]
    assert "empty_output: 0 labelled answers" in result.output


def test_calibrate_of_what_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("{")
    out = tmp_path / "o.json"
    result = CliRunner().invoke(cli.app, ["calibrate", str(path), "-o", str(out)])
    assert result.exit_code == 2
    assert not out.exists()
