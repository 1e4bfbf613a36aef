"""Formats and versions that no shared file covers, from generated files: steps, what each saw, labels, and no outcome."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from made_formats import MADE, OUTCOME, Made

from flide_agent.replay.reading import read
from flide_agent.replay.records import Problem, Run


def runs(path: Path, mode: str = "as-sent") -> list[Run]:
    found = list(read(path, mode))
    assert not [p for p in found if isinstance(p, Problem)], found
    return [r for r in found if isinstance(r, Run)]


def written(tmp_path: Path, made: Made) -> Path:
    path = tmp_path / "file"
    path.write_text("\n".join(map(json.dumps, made.lines)), encoding="utf-8")
    return path


def seen(some: list[Run]) -> list[list[list[str]]]:
    return [[[m["content"] for m in s.messages] for s in r.steps] for r in some]


@pytest.mark.parametrize("mode", ["as-sent", "raw"])
@pytest.mark.parametrize("name", MADE)
def test_what_is_read_of_it(tmp_path: Path, name: str, mode: str) -> None:
    made = MADE[name]
    found = runs(written(tmp_path, made), mode)
    assert {r.format for r in found} == {made.form}
    assert seen(found) == made.seen
    assert [len(r.tools) for r in found] == [made.tools] * len(found)
    assert not [r.notes for r in found if r.notes]
    if made.last_failed:
        assert [[s.labels.get("last_failed") for s in r.steps] for r in found] == made.last_failed


@pytest.mark.parametrize("name", MADE)
def test_no_outcome_of_it_is_sent(tmp_path: Path, name: str) -> None:
    made = MADE[name]
    assert OUTCOME in json.dumps(made.lines)
    for run in runs(written(tmp_path, made)):
        sent = [[s.messages, s.proposed, s.result] for s in run.steps]
        assert OUTCOME not in json.dumps([sent, run.tools])


@pytest.mark.parametrize("name", MADE)
def test_its_results_lead_to_the_next_step(tmp_path: Path, name: str) -> None:
    for run in runs(written(tmp_path, MADE[name])):
        for one, following in zip(run.steps, run.steps[1:], strict=False):
            assert one.after() == following.messages
            assert one.then == following.labels


def test_a_tool_call_of_each_is_the_same(tmp_path: Path) -> None:
    for name, made in MADE.items():
        (proposed,) = runs(written(tmp_path, made))[0].steps[0].proposed
        (call,) = proposed["tool_calls"]
        assert call["function"]["name"].lower() in ("bash", "run"), name
        assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_a_parquet_whose_messages_have_every_field(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    made = MADE["rebench"]
    pq.write_table(pa.Table.from_pylist(made.lines * 3), tmp_path / "rows.parquet")
    found = runs(tmp_path / "rows.parquet")
    assert seen(found) == made.seen * 3
    assert [r.row for r in found] == [1, 2, 3]
    assert [s.messages for s in found[0].steps] == [s.messages for s in runs(written(tmp_path, made))[0].steps]


def test_packed_and_in_an_archive(tmp_path: Path) -> None:
    made = MADE["inspect"]
    plain = written(tmp_path, made)
    (tmp_path / "file.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert seen(runs(tmp_path / "file.gz")) == made.seen
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("header.json", "{}")
        archive.writestr("samples/1_epoch_1.json", json.dumps(made.lines[0]["samples"][0]))
    assert seen(runs(tmp_path / "log.eval")) == made.seen


def test_an_atif_version_that_is_not_known_is_read_and_said(tmp_path: Path) -> None:
    value: dict[str, Any] = MADE["atif-1.8"].lines[0] | {"schema_version": "ATIF-v1.9"}
    (run,) = runs(written(tmp_path, Made("", [value], [])))
    assert len(run.steps) == 2
    assert "is not known; read as ATIF-v1.8" in run.notes[0]
