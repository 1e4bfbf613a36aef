"""Runs of real commands: what is recorded is what happened."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from training import agent, desk_world, intercode, service_desk, toys
from training.calls import Call
from training.facts import KINDS, Action, Episode
from training.observed import told
from training.workplace import Templates, Workplace


@pytest.fixture
def place(templates: Templates, small_packages: list[Path]) -> Workplace:
    with Workplace(templates, small_packages[0], "/testbed", "place") as made:
        yield made


def test_commands_are_real_and_their_paths_neutral(place: Workplace) -> None:
    assert place.run("echo hi") == (0, "hi\n")
    assert place.run("pwd") == (0, "/testbed\n")
    code, output = place.run("cat /testbed/missing.txt")
    assert code == 1
    assert output == "cat: /testbed/missing.txt: No such file or directory\n"
    assert place.run("git log --oneline")[1].endswith("Initial commit\n")
    assert place.run("python -c 'raise SystemExit(7)'") == (7, "")
    assert str(place.here) not in place.run("python -c 'import nothing_here'")[1]


def test_limits_hold(place: Workplace) -> None:
    assert place.run("sleep 5", timeout=0.2)[0] == 124
    assert place.run("python -c 'b = bytearray(9 << 30)'")[0] != 0, "memory"
    assert place.run("head -c 20000000 /dev/zero > big")[0] != 0, "file size"
    code, _ = place.run("python -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 0.2)'")
    assert code != 0


def test_a_snapshot_sees_every_change_and_nothing_else(place: Workplace) -> None:
    before = place.snapshot()
    place.run("ls; cat setup.cfg; git status")
    assert place.snapshot() == before
    place.run("echo x >> setup.cfg; mkdir d; touch d/new; rm README.md")
    after = place.snapshot()
    assert {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)} == {"setup.cfg", "d/new", "README.md"}


@pytest.mark.parametrize("toy", toys.TOYS, ids=lambda toy: toy.name)
def test_every_toy_passes_its_test_when_right_and_fails_when_broken(toy: toys.Toy, tmp_path: Path) -> None:
    def fails(code: str) -> bool:
        scope: dict[str, object] = {}
        exec(code, scope)
        for arguments, result in toy.calls:
            try:
                if eval(f"{toy.name}({arguments}) != {result}", scope):
                    return True
            except Exception:
                return True
        return False

    assert not fails(toy.code)
    assert fails(toy.buggy)


def test_a_seed_gives_the_same_run_again(templates: Templates, small_packages: list[Path], runs: list[Episode]) -> None:
    again = agent.episode(templates, small_packages, 1)

    def shape(e: Episode) -> list[tuple[object, ...]]:
        return [(a.command, a.code, a.edited, a.kind, a.tests) for a in e.actions]

    assert shape(again) == shape(runs[1])
    assert again.task == runs[1].task


def test_runs_hold_failures_edits_and_success(runs: list[Episode]) -> None:
    actions = [a for e in runs for a in e.actions]
    assert {True, False} <= {a.failed for a in actions}
    assert any(a.edited for a in actions)
    assert any(a.tests for a in actions)
    assert {"look", "search", "edit", "run"} <= {a.kind for a in actions} <= set(KINDS)
    assert all(a.code != 0 for a in actions if a.failed), "what failed has a status that says so"


def test_an_observer_is_not_asked_what_only_the_status_tells() -> None:
    def of(command: str, kind: str, code: int, output: str) -> bool | None:
        return told(Call("bash", {}, command, kind, command), code, output)

    assert of("grep -q x y", "search", 1, "") is None
    assert of("python -c 'import sys; sys.exit(3)'", "run", 3, "") is None
    assert of("python x.py", "run", 1, "Traceback (most recent call last):\nKeyError: 1") is True
    assert of("grep -rn Error src", "search", 0, "a.py:1: raise Error  # not found") is False
    assert of("echo error", "other", 0, "error") is False
    assert of("python -m unittest t 2>&1 | tail -3", "run", 0, "FAILED (failures=1)") is None


def test_exceptions_are_those_of_the_last_traceback() -> None:
    output = (
        "Traceback (most recent call last):\nKeyError: 1\nthen\nTraceback (most recent call last):\n  File\nValueError: no\n"
    )
    assert Action("bash", {}, "x", "run", output, 1, True).exception == "ValueError"
    assert Action("bash", {}, "x", "run", "ValueError: no", 1, True).exception == ""


def test_desk_failures_are_real_and_worded_anew() -> None:
    actions = [a for seed in range(200) for a in service_desk.episode(seed).actions]
    bad = [a for a in actions if a.failed]
    assert 0.2 < len(bad) / len(actions) < 0.6
    assert not any(a.edited for a in bad)
    assert len({a.output for a in bad}) > 0.6 * len(bad)
    assert not {a.output for a in bad} & {a.output for a in actions if not a.failed}, "no answer may stand for both"
    assert any("error" in a.output.lower() or "fail" in a.output.lower() for a in actions if not a.failed)


def test_a_desk_is_a_database() -> None:
    """What is refused is refused for the state of the records: a case that was closed cannot be changed any more."""
    desk = service_desk.Desk(random.Random(3), desk_world.DESKS[0])
    key = next(k for k, v in desk.cases.items() if v["status"] == "open")
    assert desk.run("change", {"id": key, "note": "x"})[0] in ("", "down")
    assert desk.run("cancel", {"id": key})[0] == ""
    assert desk.run("change", {"id": key, "note": "y"}) == ("closed", None)
    assert desk.run("case", {"id": key})[1]["status"] == "closed"
    assert desk.run("case", {"id": key + "9"}) == ("missing", None)
    assert desk.run("change", {"id": key, "note": ""}) == ("argument", None)
    assert desk.run("pay", {"id": key, "amount": 1}) == ("closed", None)


def test_recorded_episodes_are_split_by_task(shared: Path) -> None:
    import random

    found = list(intercode.episodes(shared / "data" / "intercode" / "episodes.jsonl.gz"))
    assert len(found) > 4900
    train, held = intercode.split(found, random.Random(0))
    assert held
    assert not {e.task for e in train} & {e.task for e in held}
    assert {True, False, None} == {a.failed for e in found[:500] for a in e.actions}
