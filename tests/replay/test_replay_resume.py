"""Going on with a replay whose histories have changed in between."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from counting_service import EXAMPLE, CountingService, copies
from test_replay_options import decisions, replay

from flide_agent.replay.history import Histories
from flide_agent.replay.reading import read
from flide_agent.replay.records import Run


@pytest.mark.parametrize(("steps", "moment"), [("1-4", ""), ("2", ""), ("1-3", "proposed"), ("1-3", "after")])
def test_resume_notices_a_history_that_has_changed(service: CountingService, tmp_path: Path, steps: str, moment: str) -> None:
    (file,), out, recording = copies(tmp_path, 1), tmp_path / "out.jsonl", tmp_path / "recording"
    questions = tmp_path / "q.json"
    questions.write_text(json.dumps({"q": {"type": "noul", "instructions": "?", "moment": moment or "before"}}))
    more = ("--questions", questions, "--steps", "1-4")
    replay(file, "--questions", questions, "--steps", steps, "--json", out, "--record", recording)
    assert len({r["history"] for r in decisions(out)}) == len(decisions(out))
    assert replay(file, *more, "--resume", out).exit_code == 0  # the same histories
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:1]))
    then, asked = out.read_bytes(), len(service.asked)
    file.write_text(file.read_text().replace("You are a software engineer", "You are a software engineer, and then some more"))
    result = replay(file, *more, "--resume", out, "--verify", recording)
    assert result.exit_code == 2
    told = " ".join(result.output.split())
    assert f"{file}:1 (fix_slugify): the history of step {steps[0]} ({moment or 'before'}) is not the one" in told
    assert decisions(out) == [json.loads(then)]
    assert len(service.asked) == asked


def test_resume_notices_another_run_in_the_place_of_one(service: CountingService, tmp_path: Path) -> None:
    (file,), out = copies(tmp_path, 1), tmp_path / "out.jsonl"
    replay(file, "--steps", "1-2", "--json", out)
    assert replay(file, "--steps", "1-3", "--resume", out).exit_code == 0
    file.write_text(file.read_text().replace("fix_slugify", "fix_other"))
    result = replay(file, "--steps", "1-3", "--resume", out)
    assert result.exit_code == 2
    assert f"{file}:1 was fix_slugify in" in " ".join(result.output.split())


def test_a_digest_is_of_content_alone() -> None:
    one, two = (next(r for r in read(EXAMPLE) if isinstance(r, Run)) for _ in range(2))
    step, last = one.steps[3], one.steps[-1]
    assert [Histories(one).of(s, "after") for s in one.steps] == [Histories(two).of(s, "after") for s in two.steps]
    assert len({Histories(one).of(step, moment) for moment in ("before", "proposed", "after")}) == 3
    assert Histories(replace(one, tools=[{"name": "a"}])).of(step, "before") != Histories(one).of(step, "before")
    swapped = replace(last, messages=[last.messages[1], last.messages[0], *last.messages[2:]])
    assert Histories(one).of(swapped, "before") != Histories(one).of(last, "before")
    odd = replace(step, messages=[{"role": "user", "content": "\ud800", "name": 1 << 80}])
    assert len(Histories(one).of(odd, "before")) == 32
