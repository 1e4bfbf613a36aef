"""Label files and packs through the commands: what is matched, what is told of the rest, and the pack that calibrate takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from counting_service import EXAMPLE, CountingService
from test_replay_labels import TOML, decisions
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.replay.labels import expected
from flide_agent.replay.moments import AFTER
from flide_agent.replay.pack import load
from flide_agent.replay.reading import read
from flide_agent.replay.records import Run

ROOT = Path(__file__).parents[2]


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), catch_exceptions=False)


def summary(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    return path


def test_what_of_a_label_file_is_compared_with_nothing_is_told(service: CountingService, pack: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "run,step,last_failed,next_tool,failed,extra\n"
        "fix_slugify,1,yes,cat,,\n"
        "fix_slugify,2,maybe,sed,no,x\n"
        "fix_slugify,99,no,,,\n"
        "nope,1,no,,,\n"
    )
    result = invoke("replay", EXAMPLE, "--questions", pack, "--labels", labels, "--json", "-")
    assert result.exit_code == 0
    assert summary(result.stdout)["labels"] == {
        "file": str(labels), "lines": 4, "matched": 2, "unmatched": 2, "unknown_values": 1, "unused_columns": ["failed", "extra"],
    }  # fmt: skip
    told = result.stderr
    assert "no question has the reference 'failed', so this column is not used; question 'failed' has the reference" in told
    assert "no question has the reference 'extra'" in told
    assert "1 value that no question understands: last_failed 'maybe' (line 3)" in told
    assert "2 of 4 lines of labels match nothing that was asked: line 4 (run fix_slugify, step 99), line 5 (run nope" in told
    assert summary(result.stdout)["scores"]["tool"]["n"] >= 2


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("", False),
        ("run,step,last_failed\n", False),
        ("run,step,failed\nfix_slugify,1,yes\n", False),
        ("run,step,last_failed\nfix_slugify,1,perhaps\n", False),
        ("run,step,last_failed\nnope,1,yes\n", True),
        ("run,step,last_failed\nfix_slugify,99,yes\n", True),
        ("run,step,moment,last_failed\nfix_slugify,1,after,yes\n", True),
    ],
)
def test_a_label_file_of_which_nothing_matched(
    service: CountingService, pack: Path, tmp_path: Path, text: str, asked: bool
) -> None:
    labels, out = tmp_path / "labels.csv", tmp_path / "out.jsonl"
    labels.write_text(text)
    result = invoke("replay", EXAMPLE, "--questions", pack, "--labels", labels, "--json", out)
    assert result.exit_code == 2
    assert str(labels) in "".join(result.stderr.split("\n"))
    assert bool(service.asked) is asked
    if asked:
        assert summary(out.read_text())["labels"]["matched"] == 0
        assert invoke("calibrate", out, "--labels", labels, "--output", tmp_path / "c.json").exit_code == 2
        assert not (tmp_path / "c.json").exists()


def test_a_row_of_too_many_cells(service: CountingService, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("run,step,last_failed\nfix_slugify,1,yes,no\n")
    assert "labels.csv:2: has more cells" in "".join(invoke("replay", EXAMPLE, "--labels", labels).stderr.split("\n"))


def test_the_pack_in_the_docs_takes_the_labels_of_a_file(shared: Path, tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/replay.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "pack.toml").write_text(block)
    found = load(tmp_path / "pack.toml")
    (path,) = (shared / "data/trajectories").rglob("mini-v2-GENERATED-toolcall*")
    steps = [s for r in read(path) if isinstance(r, Run) for s in r.steps]
    known = [s.then for s in steps if "last_failed" in s.then]
    assert found.readings["failed"].moment == AFTER
    right = [expected(found.readings["failed"], found.questions["failed"], labels) for labels in known]
    assert right == [str(labels["last_failed"]).lower() for labels in known]
    assert right


# calibrate


def labelled(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    rows = (f"fix_slugify,{i},{'yes' if i % 3 else 'no'}\n" for i in range(1, 21))
    path.write_text("run,step,last_failed\n" + "".join(rows))
    return path


def test_calibrate_takes_the_pack_of_the_replay(service: CountingService, pack: Path, tmp_path: Path) -> None:
    out, calibrated = tmp_path / "out.jsonl", tmp_path / "c.json"
    assert invoke("replay", EXAMPLE, "--questions", pack, "--labels", labelled(tmp_path), "--json", out).exit_code == 0
    result = invoke("calibrate", out, "--output", calibrated, "--target-error", "0.5")
    assert result.exit_code == 0, result.output
    before, after = load(pack), load(calibrated)
    assert after.questions == before.questions
    assert after.readings["failed"].reference == "last_failed"
    assert after.readings["failed"].temperature != before.readings["failed"].temperature
    assert re.search(
        r"tool: \d+ labelled answers?, \d kinds? of label; it stays as it is: 20 of 2 kinds are needed", result.output
    )


def test_calibrate_of_a_killed_replay_asks_for_the_pack(service: CountingService, pack: Path, tmp_path: Path) -> None:
    out, calibrated = tmp_path / "out.jsonl", tmp_path / "c.json"
    invoke("replay", EXAMPLE, "--questions", pack, "--labels", labelled(tmp_path), "--json", out)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-1]) + lines[-1][:50])
    result = invoke("calibrate", out, "--output", calibrated)
    assert (result.exit_code, calibrated.exists()) == (2, False)
    assert "--questions" in result.output
    assert invoke("calibrate", out, "--questions", pack, "--output", calibrated).exit_code == 0


def test_calibrate_of_files_of_different_packs(service: CountingService, pack: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    invoke("replay", EXAMPLE, "--questions", pack, "--json", one)
    invoke("replay", EXAMPLE, "--json", two)
    result = invoke("calibrate", one, two, "--output", tmp_path / "c.json")
    assert result.exit_code == 2
    assert "different packs" in result.output
    text = two.read_text().splitlines()
    two.write_text("\n".join(one.read_text().splitlines()[:1] + text[-1:]) + "\n")
    assert invoke("calibrate", two, "--output", tmp_path / "c.json").exit_code == 2


def test_calibrate_without_a_label_or_a_file(pack: Path, tmp_path: Path) -> None:
    given = decisions(tmp_path)
    given.write_text(re.sub(r'"labels": .*', '"labels": {}}', given.read_text()))
    result = invoke("calibrate", given, "--output", tmp_path / "c.json")
    assert (result.exit_code, "no answer has a label" in result.output) == (2, True)
    result = invoke("calibrate", tmp_path / "none", "--output", tmp_path / "c.json")
    assert (result.exit_code, "cannot be read: No such file" in " ".join(result.output.split())) == (2, True)
