"""Several agents, pace, the same asked elsewhere, recordings: around a counting service."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from counting_service import EXAMPLE, CountingService, copies
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.errors import NotFound, TooLong, Unreachable
from flide_agent.replay import command
from flide_agent.replay.compare import Other, apart
from flide_agent.replay.decision import Decision, Ended, Started
from flide_agent.replay.leaving import THREADS
from flide_agent.replay.load import Pace, Rate, over
from flide_agent.replay.moments import Asked
from flide_agent.replay.questions import DEFAULT
from flide_agent.replay.reading import read
from flide_agent.replay.records import Problem, Run, Step
from flide_agent.replay.walk import Stopped, Walk


def replay(*arguments: object) -> Any:
    return CliRunner().invoke(cli.app, ["replay", *map(str, arguments)], catch_exceptions=False)


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in text.splitlines()]


def runs(n: int) -> list[Run]:
    return [r for _ in range(n) for r in read(EXAMPLE) if isinstance(r, Run)]


class Slow(CountingService):
    """Counts how many decisions are under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def decide(self, *arguments: Any, **named: Any) -> Any:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.002)
        with self.lock:
            self.now -= 1
            return super().decide(*arguments, **named)


def test_agents_run_side_by_side_and_each_run_in_its_order() -> None:
    service = Slow()
    walk = Walk(service, DEFAULT, steps=(1, 6))
    events = list(over(walk, [*runs(6), Problem("f", "bad")], 3))
    assert service.most == 3
    assert sum(isinstance(e, Problem) for e in events) == 1
    by_run: dict[int, list[Any]] = {}
    for event in events:
        if not isinstance(event, Problem):
            by_run.setdefault(id(event.run), []).append(event)
    assert len(by_run) == 6
    for some in by_run.values():
        assert isinstance(some[0], Started)
        assert isinstance(some[-1], Ended)
        assert [e.step.index for e in some[1:-1]] == [1, 2, 3, 4, 5, 6]
        assert len({e.session for e in some[1:-1]}) == 1
    assert len({e.session for e in events if isinstance(e, Decision)}) == 6


def test_an_agent_that_cannot_go_on_stops_all() -> None:
    service = Slow()
    service.refuse[len(runs(1)[0].steps[3].messages)] = Unreachable("gone")
    with pytest.raises(Stopped, match="gone"):
        list(over(Walk(service, DEFAULT), runs(8), 4))
    before = len(service.asked)
    time.sleep(0.05)
    assert len(service.asked) == before  # nobody asks any more
    assert threading.active_count() < 10


def test_agents_through_the_command(service: CountingService, tmp_path: Path) -> None:
    service.refuse[len(runs(1)[0].steps[4].messages)] = TooLong("too long")
    result = replay(*copies(tmp_path, 3), "--agents", 2, "--json", "-", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    found = rows(result.stdout)
    assert sum(r["kind"] == "decision" for r in found) == 12
    assert sum(r["kind"] == "problem" for r in found) == 3
    assert result.stderr.count("through: ") == 3
    assert sorted(service.deleted) == sorted({s for s, _, _ in service.asked})


def test_sessions_beyond_a_window_are_deleted_on_the_way(service: CountingService) -> None:
    walk = Walk(service, DEFAULT, steps=(1, 1), window=2)
    list(walk.over(runs(5)))
    assert len(walk.sessions) == 2
    first = [s for s, _, _ in service.asked]
    end = time.monotonic() + 10
    while len(service.deleted) < 3 and time.monotonic() < end:
        time.sleep(0.001)
    assert sorted(service.deleted) == sorted(first[:3])
    walk.forget()
    assert sorted(service.deleted) == sorted(first)


class Sluggish(CountingService):
    """Deleting takes until somebody lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()

    def delete(self, session: str) -> None:
        assert self.let.wait(30.0)
        super().delete(session)


def test_decisions_do_not_wait_for_deletions() -> None:
    service = Sluggish()
    walk = Walk(service, DEFAULT, steps=(1, 1), window=1)
    list(walk.over(runs(6)))  # would never end
    assert len(service.asked) == 6
    service.let.set()
    walk.forget()
    assert len(service.deleted) == 6


def test_what_waits_to_be_deleted_is_dropped_when_a_replay_leaves() -> None:
    service = Sluggish()
    walk = Walk(service, DEFAULT, steps=(1, 1), window=1)
    list(walk.over(runs(THREADS + 4)))
    threading.Timer(0.05, service.let.set).start()
    walk.leave()
    assert len(service.deleted) <= THREADS
    assert len(walk.sessions) == 1


def test_a_session_that_was_never_opened_need_not_be_deleted(service: CountingService, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(session: str) -> None:
        raise NotFound("no such session")

    monkeypatch.setattr(service, "delete", gone)
    walk = Walk(service, DEFAULT, steps=(1, 1), window=1)
    assert sum(isinstance(e, Decision) for e in walk.over(runs(3))) == 3
    walk.forget()


def test_warm_walks_each_run_once_beforehand(service: CountingService) -> None:
    result = replay(EXAMPLE, "--warm", "--steps", "1-3", "--json", "-")
    assert [r["step"] for r in rows(result.stdout)[:-1]] == [1, 2, 3]
    assert len(service.asked) == 6
    assert len({s for s, _, _ in service.asked}) == 2


@pytest.mark.parametrize(
    ("text", "rate"), [("5", Rate(5.0)), ("recorded", Rate(recorded=1.0)), ("recorded*10", Rate(recorded=10.0))]
)
def test_rates(text: str, rate: Rate) -> None:
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["0", "-1", "nan", "x", "recorded*0", "recordedly", "inf", "recorded 2"])
def test_rates_that_are_none(service: CountingService, text: str) -> None:
    with pytest.raises(ValueError):
        Rate.parse(text)
    assert replay(EXAMPLE, f"--rate={text}").exit_code == 2


def test_a_rate_spaces_decisions_and_recorded_times_space_a_run(service: CountingService) -> None:
    begun = time.perf_counter()
    list(Walk(service, DEFAULT, steps=(1, 5), wait=Pace(Rate(per_second=50.0))).over(runs(1)))
    assert 0.08 <= time.perf_counter() - begun < 2.0
    steps = [
        Step(i + 1, [{"role": "user", "content": str(i)}], "history", "", {}, at)
        for i, at in enumerate([100.0, 101.0, 101.0, 103.0])
    ]
    begun = time.perf_counter()
    list(Walk(service, DEFAULT, wait=Pace(Rate(recorded=50.0))).over([Run("f", 1, "", "x", steps)]))
    assert 0.06 <= time.perf_counter() - begun < 2.0


# The same elsewhere


def test_how_far_answers_are_apart() -> None:
    noul = {"q": {"type": "noul", "noul": 0.25}}
    choice = {"q": {"type": "choice", "choice": "a", "probabilities": {"a": 0.75, "b": 0.25}, "confidence": 1.0}}
    other = {"q": {"type": "choice", "choice": "a", "probabilities": {"a": 0.5, "b": 0.5}, "confidence": 1.0}}
    assert apart(noul, noul) == 0.0
    assert apart(choice, other) == 0.25
    assert apart(noul, choice) == 1.0
    assert apart(noul, {}) == 1.0


class Beside:
    def ask(self, run: Run, asked: Asked, answers: dict[str, Any]) -> Other:
        index = asked.step.index
        if index == 3:
            return Other({}, 1.0, None, False, 0.0, "it is down")
        return Other(answers, 50.0, 1000, index != 2, 0.125 if index == 2 else 0.0)


def test_what_is_compared_is_counted(service: CountingService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_side", lambda *_: Beside())
    result = replay(EXAMPLE, "--compare", "no-cache", "--steps", "1-4", "--json", "-")
    summary = rows(result.stdout)[-1]["compared"]
    assert (summary["asked"], summary["same"], summary["failed"], summary["apart"]) == (4, 2, 1, 0.125)
    assert summary["computed_tokens"] == 3000
    assert rows(result.stdout)[2]["other"]["error"] == "it is down"
    assert "2 of 4 requests equal to the last bit, at most 0.125 apart, 1 not answered" in result.stderr


@pytest.mark.parametrize("more", [("--compare", "no-cache", "--url", "http://x"), ("--compare", "ftp://x")])
def test_comparisons_that_cannot_be(more: tuple[str, ...]) -> None:
    assert replay(EXAMPLE, *more).exit_code == 2


# Recordings


def test_a_recording_verifies_and_drift_is_told(
    service: CountingService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = tmp_path / "r.jsonl"
    assert replay(EXAMPLE, "--record", recording, "--steps", "1-5").exit_code == 0
    result = replay(EXAMPLE, "--verify", recording, "--steps", "1-5", "--json", "-")
    assert result.exit_code == 0
    assert "verified: 5 decisions as recorded, to the last bit" in result.stderr
    assert rows(result.stdout)[-1]["verification"] == {"checked": 5, "worst": 0.0, "drifts": {}}

    fewer = replay(EXAMPLE, "--verify", recording, "--steps", "1-4", "--json", "-")
    assert (fewer.exit_code, rows(fewer.stdout)[-1]["verification"]["drifts"]) == (4, {"missing": 1})
    more = replay(EXAMPLE, "--verify", recording, "--steps", "1-6", "--json", "-")
    assert (more.exit_code, rows(more.stdout)[-1]["verification"]["drifts"]) == (4, {"new": 1})

    lines = recording.read_text().splitlines()
    changed = json.loads(lines[3])
    changed["answers"]["empty_output"]["noul"] += 1e-6
    recording.write_text("\n".join([*lines[:3], json.dumps(changed), *lines[4:]]))
    drifted = replay(EXAMPLE, "--verify", recording, "--steps", "1-5", "--json", "-")
    assert (drifted.exit_code, rows(drifted.stdout)[-1]["verification"]["drifts"]) == (4, {"answers": 1})
    assert "DRIFT: answers 1" in drifted.stderr
    assert replay(EXAMPLE, "--verify", recording, "--steps", "1-5", "--tolerance", "1e-5").exit_code == 0

    changed = json.loads(lines[3]) | {"history": "0" * 64, "model": "other"}
    recording.write_text("\n".join([*lines[:3], json.dumps(changed), *lines[4:]]))
    drifted = replay(EXAMPLE, "--verify", recording, "--steps", "1-5", "--json", "-")
    assert rows(drifted.stdout)[-1]["verification"]["drifts"] == {"history": 1, "model": 1}
    recording.write_text("\n".join(lines))
    monkeypatch.setattr(command, "_identity", lambda _: {"weights": "new"})
    assert replay(EXAMPLE, "--verify", recording, "--steps", "1-5").exit_code == 0  # the recording tells nothing of weights
    assert replay(EXAMPLE, "--record", recording, "--steps", "1-5").exit_code == 0
    monkeypatch.setattr(command, "_identity", lambda _: {"weights": "newer"})
    assert replay(EXAMPLE, "--verify", recording, "--steps", "1-5").exit_code == 4


@pytest.mark.parametrize("text", ["", "{}", "[]", "x", '{"kind": "recording", "version": 1}\n{"file": 1}'])
def test_what_is_no_recording(service: CountingService, tmp_path: Path, text: str) -> None:
    path = tmp_path / "r"
    path.write_text(text)
    assert replay(EXAMPLE, "--verify", path).exit_code == 2
    assert not service.asked


def test_failures_are_listed_for_machines(service: CountingService, shared: Path, tmp_path: Path) -> None:
    out = tmp_path / "failures.jsonl"
    result = replay(shared / "data/trajectories/made-broken", "--failures", out)
    assert result.exit_code == 1
    found = rows(out.read_text())
    assert sorted(Path(r["file"]).name for r in found) == ["empty.traj", "last-line-cut.jsonl", "truncated.traj"]
    assert all(r["kind"] == "problem" and r["message"] for r in found)


def test_tools_of_a_run_are_sent(service: CountingService, shared: Path) -> None:
    assert replay(shared / "data/trajectories/openai-messages-listparts-claude.json", "--steps", "1").exit_code == 0
    assert len(service.tools[0]) == 3
    assert replay(EXAMPLE, "--steps", "1").exit_code == 0
    assert service.tools[1] is None


def test_a_whole_folder_of_all_formats(service: CountingService, shared: Path, tmp_path: Path) -> None:
    from test_replay_readers import STEPS

    result = replay(shared / "data/trajectories", "--agents", 3, "--json", tmp_path / "out", "--html", tmp_path / "report.html")
    assert result.exit_code == 1  # of the files that are broken on purpose
    counted: dict[str, int] = {}
    for row in rows((tmp_path / "out").read_text()):
        if row["kind"] == "decision" and "made-broken" not in row["file"]:
            name = Path(row["file"]).name
            counted[name] = counted.get(name, 0) + 1
    assert counted == {name: sum(steps) for name, (_, steps) in STEPS.items()}
