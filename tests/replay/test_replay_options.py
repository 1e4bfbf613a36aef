"""--every, --list, --dry-run, --resume: what is asked, counted, written, and the exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from counting_service import EXAMPLE, CountingService, copies
from test_replay_moments import pack
from test_replay_readers import STEPS
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.errors import TooLong, Unreachable
from flide_agent.local import LocalService
from flide_agent.replay import command
from flide_agent.replay.dry import Counting, Estimate
from flide_agent.replay.pack import load
from flide_agent.replay.reading import read
from flide_agent.replay.records import Run
from flide_agent.replay.totals import Totals
from flide_agent.replay.walk import Walk
from flide_agent.settings import Settings


def replay(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["replay", *map(str, arguments)], catch_exceptions=False)


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in text.splitlines()]


def decisions(path: Path) -> list[dict[str, Any]]:
    return [r for r in rows(path.read_text()) if r["kind"] == "decision"]


def places(some: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["file"], r["row"], r["step"], r["moment"]) for r in some]


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No service may be started."""

    def refuse(options: object) -> None:
        raise AssertionError("a service was started")

    monkeypatch.setattr(command, "_service", refuse)
    monkeypatch.setattr(LocalService, "__enter__", refuse)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (("--every", 7), [1, 8, 15]),
        (("--every", 7, "--steps", "5-"), [5, 12, 19]),
        (("--every", 1, "--steps", "-3"), [1, 2, 3]),
    ],
)
def test_every(service: CountingService, options: tuple[object, ...], asked: list[int]) -> None:
    result = replay(EXAMPLE, *options, "--json", "-")
    assert [r["step"] for r in rows(result.stdout)[:-1]] == asked
    assert replay(EXAMPLE, "--every", 0).exit_code == 2


# --list


def test_list_needs_no_service(nothing: None, shared: Path) -> None:
    folder = shared / "data/trajectories"
    result = replay(folder, "--list", "--json", "-")
    assert result.exit_code == 1  # of the files that are broken on purpose
    found: dict[str, tuple[str, list[int]]] = {}
    for row in rows(result.stdout):
        if row["kind"] == "run" and "made-broken" not in row["file"]:
            found.setdefault(Path(row["file"]).name, (row["format"], []))[1].append(row["steps"])
    assert found == STEPS
    last = rows(result.stdout)[-1]
    assert last["problems"] == sum(r["kind"] == "problem" for r in rows(result.stdout)) == 3
    assert last["steps"] == sum(r["steps"] for r in rows(result.stdout) if r["kind"] == "run")
    (row,) = rows(replay(EXAMPLE, "--list", "--json", "-").stdout)[:-1]
    steps = next(r for r in read(EXAMPLE) if isinstance(r, Run)).steps
    assert (row["messages"], row["results"]) == (len(steps[-1].messages), sum(bool(s.result) for s in steps))
    out = replay(EXAMPLE, "--list").output
    assert "20 steps" in out
    assert "1 run, 20 steps, 0 problems (swe-agent-1.1 1)" in out


def test_list_imports_no_torch() -> None:
    code = f"import sys, flide_agent.cli as c\ntry: c.app(['replay', {str(EXAMPLE)!r}, '--list'])\nexcept SystemExit: pass\n"
    code += "heavy = {'torch', 'litestar', 'lmdb', 'transformers'} & set(sys.modules)\nassert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# --dry-run


def test_dry_run_counts_what_the_service_then_computes(tmp_path: Path) -> None:
    """The estimate is the engine's own count, at all three moments, on histories that only grow."""
    given = load(pack(tmp_path))
    (run,) = (r for r in read(EXAMPLE) if isinstance(r, Run))
    with LocalService(Settings(device="cpu")) as local:
        counting = Counting(local.service.decider.prompts, given)
        walk, totals = Walk(local, given.questions, (1, 4), moments=given.moments), Totals()
        for event in walk.over([run]):
            totals.add(event)
        engine = local.service.dispatcher.counters.tokens_computed
    told = counting.count(run, (1, 4), 1)
    assert told.computed == totals.computed == engine
    assert (told.whole, told.requests, told.decisions) == (totals.computed + totals.reused, totals.requests, totals.decisions)
    assert dict(told.moments) == {"before": 4, "proposed": 4, "after": 4}


def test_dry_run_starts_no_engine(nothing: None, tmp_path: Path) -> None:
    result = replay(*copies(tmp_path, 2), "no/such", "--dry-run", "--questions", pack(tmp_path), "--every", 5, "--json", "-")
    assert result.exit_code == 1
    one, two, problem, summary = rows(result.stdout)
    assert {**one, "file": ""} == {**two, "file": ""}
    assert (one["kind"], one["steps"], one["decisions"], one["requests"]) == ("planned", 4, 12, 8)
    assert (problem["kind"], summary["dry_run"]) == ("problem", True)
    assert summary["computed_tokens"] == 2 * one["computed_tokens"] < summary["computed_without_reuse"]
    assert "risky (noul, proposed, " in result.stderr
    assert "Is this action risky?" in result.stderr


def test_a_dry_run_tells_what_would_be_refused(nothing: None, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text('{"a": {"type": "choice", "instructions": "?"}}')
    result = replay(EXAMPLE, "--dry-run", "--questions", tmp_path / "q.json")
    assert result.exit_code == 2
    assert "criteria" in result.output
    assert replay(EXAMPLE, "--dry-run", "--model", "no such model").exit_code == 3


def test_estimates_add_up() -> None:
    total = Estimate()
    for one in (Estimate(1, 2, 3, 4, 5, 6), Estimate(1, 1, 1, 9, 1, 1)):
        total.add(one)
    assert (total.steps, total.decisions, total.requests, total.longest, total.whole, total.computed) == (2, 3, 4, 9, 6, 7)


@pytest.mark.parametrize("more", [("--list", "--dry-run"), ("--resume", "x", "--json", "y"), ("--resume", "x", "--list")])
def test_options_that_do_not_go_together(nothing: None, more: tuple[str, ...]) -> None:
    assert replay(EXAMPLE, *more).exit_code == 2


# --resume


def interrupted(service: CountingService, out: Path, at: int, *more: object) -> None:
    """A replay whose service goes away at a step."""
    steps = next(r for r in read(EXAMPLE) if isinstance(r, Run)).steps
    service.refuse[len(steps[at - 1].messages)] = Unreachable("gone")
    assert replay(EXAMPLE, *more, "--json", out).exit_code == 3
    service.refuse.clear()


@pytest.mark.parametrize("questions", [False, True])
def test_resume_asks_what_is_missing_and_adds_it(service: CountingService, tmp_path: Path, questions: bool) -> None:
    more = ("--questions", pack(tmp_path)) if questions else ()
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    replay(EXAMPLE, *more, "--json", whole)
    interrupted(service, out, 8, *more)
    before, asked = decisions(out), len(service.asked)
    result = replay(EXAMPLE, *more, "--resume", out, "--html", tmp_path / "r.html", "--record", tmp_path / "rec.jsonl")
    assert result.exit_code == 0
    found = decisions(out)
    assert found[: len(before)] == before
    assert sorted(places(found)) == sorted(places(decisions(whole)))
    last = rows(out.read_text())[-1]
    assert last["decisions"] == len(found) == (60 if questions else 20) - (1 if questions else 0)
    assert len(service.asked) - asked == last["requests"] - len({r["request"] for r in before})
    assert last["requests"] == len({r["request"] for r in found})
    assert last["computed_tokens"] == sum({r["request"]: r["computed_tokens"] for r in found}.values())
    assert replay(EXAMPLE, *more, "--verify", tmp_path / "rec.jsonl").exit_code == 0  # the recording is whole
    assert f'"decisions":{len(found)}' in (tmp_path / "r.html").read_text()
    again = len(service.asked)
    assert replay(EXAMPLE, *more, "--resume", out).exit_code == 0  # nothing is left to ask
    assert len(service.asked) == again
    assert decisions(out) == found


def test_resume_of_a_line_that_was_cut(service: CountingService, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    interrupted(service, out, 5)
    lines = out.read_bytes().splitlines(keepends=True)[:4]
    out.write_bytes(b"".join(lines[:3]) + lines[3][:100])
    assert replay(EXAMPLE, "--resume", out).exit_code == 0
    assert [r["step"] for r in decisions(out)] == list(range(1, 21))


def test_resume_gives_refused_steps_another_try_and_repeats_no_problem(service: CountingService, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    steps = next(r for r in read(EXAMPLE) if isinstance(r, Run)).steps
    service.refuse[len(steps[4].messages)] = TooLong("too long")
    assert replay(EXAMPLE, "no/such", "--json", out).exit_code == 1
    assert len(decisions(out)) == 4
    service.refuse.clear()
    assert replay(EXAMPLE, "no/such", "--resume", out).exit_code == 1
    assert len(decisions(out)) == 20
    problems = [r["message"] for r in rows(out.read_text()) if r["kind"] == "problem"]
    assert len(problems) == 2
    assert problems[1] == "no such file"


def test_resume_with_agents(service: CountingService, tmp_path: Path) -> None:
    files, out = copies(tmp_path, 3), tmp_path / "out.jsonl"
    replay(*files, "--json", out)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:33]))
    assert replay(*files, "--agents", 3, "--resume", out).exit_code == 0
    assert sorted(r["step"] for r in decisions(out)) == sorted(list(range(1, 21)) * 3)


def test_resume_scores_what_was_answered_before_with_labels_of_now(service: CountingService, tmp_path: Path) -> None:
    out, labels = tmp_path / "out.jsonl", tmp_path / "labels.csv"
    replay(EXAMPLE, "--json", out)
    labels.write_text(
        "file,step,last_failed\n" + "".join(f"fix_slugify.traj,{i},{'yes' if i > 10 else 'no'}\n" for i in range(1, 21))
    )
    replay(EXAMPLE, "--resume", out, "--labels", labels)
    assert rows(out.read_text())[-1]["scores"]["last_command_failed"]["labels"] == {"false": 10, "true": 10}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r | {"questions": "other"}, "was written with other questions"),
        (lambda r: {k: v for k, v in r.items() if k != "request"}, "without all of its fields"),
        (lambda r: r | {"messages": 99}, "another file or --mode"),
        (lambda r: r | {"model": "older"}, "here answers counting"),
        (lambda r: [r], "is not an object"),
    ],
)
def test_resume_of_what_does_not_fit(service: CountingService, tmp_path: Path, change: Any, says: str) -> None:
    out = tmp_path / "out.jsonl"
    replay(EXAMPLE, "--json", out, "--steps", "1-2")
    out.write_text("".join(json.dumps(change(r)) + "\n" for r in decisions(out)))
    then = out.read_bytes()
    result = replay(EXAMPLE, "--resume", out)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
    assert out.read_bytes().startswith(then)
    assert len(decisions(out)) == 2 if says != "is not an object" else True


def test_resume_of_no_file(service: CountingService, tmp_path: Path) -> None:
    assert replay(EXAMPLE, "--resume", tmp_path / "none").exit_code == 2
    (tmp_path / "empty").touch()
    assert replay(EXAMPLE, "--resume", tmp_path / "empty").exit_code == 0
    (tmp_path / "bad").write_text("x\n")
    assert replay(EXAMPLE, "--resume", tmp_path / "bad").exit_code == 2


def test_a_killed_replay_goes_on_to_the_same_answers(tmp_path: Path) -> None:
    """A real process, kill -9 in the middle, and the answers of one that was never killed."""
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    argv = [
        sys.executable,
        "-m",
        "flide_agent.cli",
        "replay",
        str(EXAMPLE),
        "--steps",
        "1-8",
        "--questions",
        str(pack(tmp_path)),
    ]
    process = subprocess.Popen([*argv, "--json", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while time.monotonic() < end and (not out.exists() or out.read_bytes().count(b"\n") < 4):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    killed = len(decisions_of_whole_lines(out))
    assert 4 <= killed < 24
    subprocess.run([*argv, "--resume", str(out)], check=True, capture_output=True, timeout=120)
    subprocess.run([*argv, "--json", str(whole)], check=True, capture_output=True, timeout=120)
    one = {(r["step"], r["moment"]): r["answers"] for r in decisions(out)}
    assert len(decisions(out)) == 24
    assert one == {(r["step"], r["moment"]): r["answers"] for r in decisions(whole)}


def decisions_of_whole_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in path.read_bytes().split(b"\n")[:-1]]
