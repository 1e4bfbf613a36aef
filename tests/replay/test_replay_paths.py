"""What may be read and written: outputs that are inputs are refused, pipes and devices of a folder are left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from counting_service import EXAMPLE, CountingService
from test_replay_labels import decisions
from typer.testing import CliRunner

from flide_agent import cli


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), catch_exceptions=False, env={"COLUMNS": "400"})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of each kind."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "same.traj").write_bytes(EXAMPLE.read_bytes())
    (tmp_path / "link.traj").symlink_to(folder / "same.traj")
    (tmp_path / "pack.json").write_text('{"q": {"type": "noul", "instructions": "?", "reference": "last_failed"}}')
    (tmp_path / "labels.csv").write_text("run,step,last_failed\nfix_slugify,2,no\n")
    (tmp_path / "golden").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        "runs/same.traj --json runs/../runs/same.traj",
        "runs/same.traj --json link.traj",
        "runs --html runs/same.traj",
        "runs/*.traj --failures runs/same.traj",
        "runs --json runs/new.jsonl",
        "runs/same.traj --html x --json ./x",
        "runs/same.traj --record golden --verify golden",
        "runs/same.traj --resume golden --html golden",
        "runs/same.traj --resume runs/same.traj",
        "runs/same.traj --questions pack.json --record pack.json",
        "runs/same.traj --labels labels.csv --failures labels.csv",
        "runs/same.traj --list --json runs/same.traj",
        "runs/same.traj --dry-run --json runs/same.traj",
    ],
)
def test_an_output_is_no_input(here: Path, service: CountingService, arguments: str) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}

    then = content()
    result = invoke("replay", *arguments.split())
    assert result.exit_code == 2
    assert "would write over" in result.output or "lies in runs, which is read" in result.output
    assert content() == then
    assert not service.asked


def test_calibrate_writes_over_none_of_its_inputs(here: Path) -> None:
    given = decisions(here)
    then = given.read_bytes()
    result = invoke("calibrate", given, "--output", given)
    assert (result.exit_code, given.read_bytes()) == (2, then)
    assert "would write over the input" in result.output
    assert invoke("calibrate", given, "--questions", "pack.json", "--output", "pack.json").exit_code == 2


def test_devices_may_be_named_twice(here: Path, service: CountingService) -> None:
    done = invoke("replay", "link.traj", "--steps", "1", "--json", os.devnull, "--failures", os.devnull)
    assert done.exit_code == 0


def test_a_listing_that_cannot_be_written(here: Path) -> None:
    result = invoke("replay", "runs", "--list", "--json", "no/such/folder")
    assert (result.exit_code, "No such file or directory" in result.output) == (2, True)


def test_pipes_and_devices_of_a_folder_are_named_and_left_out(here: Path) -> None:
    os.mkfifo(here / "runs" / "pipe.json")
    (here / "runs" / "zero.json").symlink_to("/dev/zero")
    (here / "runs" / "nowhere.json").symlink_to("not/there")
    for arguments in (("runs",), ("runs/*",)):
        result = invoke("replay", *arguments, "--list", "--json", "-")
        found = [json.loads(text) for text in result.stdout.splitlines()]
        told = {Path(r["file"]).name: r["message"] for r in found if r["kind"] == "problem"}
        assert result.exit_code == 1
        assert told.pop("nowhere.json", "no such file") == "no such file"
        assert {name: text[:20] for name, text in told.items()} == {
            "pipe.json": "is a pipe, not a fil",
            "zero.json": "is a device, not a f",
        }
        assert found[-1]["runs"] == 1


def test_a_pipe_that_is_named_is_read(here: Path) -> None:
    os.mkfifo(here / "pipe")
    writer = subprocess.Popen([sys.executable, "-c", f"open('pipe', 'wb').write(open({str(EXAMPLE)!r}, 'rb').read())"])
    try:
        assert "1 run, 20 steps" in invoke("replay", "pipe", "--list").output
    finally:
        writer.kill()
        writer.wait()


def test_a_file_that_is_named_twice_counts_once(here: Path) -> None:
    result = invoke("replay", "runs", "runs/same.traj", "link.traj", "runs/*", "--list")
    assert "1 run, 20 steps" in result.output


def test_a_dry_run_names_the_question_that_is_wrong(here: Path) -> None:
    (here / "pack.json").write_text(
        '{"good": {"type": "noul", "instructions": "?"}, "bad": {"type": "choice", "instructions": "?"}}'
    )
    result = invoke("replay", "runs", "--dry-run", "--questions", "pack.json")
    assert result.exit_code == 2
    assert "questions.bad" in result.output
