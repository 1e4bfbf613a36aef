"""Replays that are ended from outside, real processes: what they leave behind, what they say, their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from counting_service import EXAMPLE, CountingService
from test_replay_options import replay
from test_replay_server import server  # noqa: F401  (a fixture)

from flide_agent.client import Client
from flide_agent.replay.server import ServerProcess

SECONDS = 120.0


def started(folder: Path, *arguments: object, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """A command whose temporary files go to a folder. SIGINT ends it also where the tests themselves were started in the background, by a
    shell that has what it starts so ignore it (a program that ignores it from its start goes on doing so)."""
    argv = [sys.executable, "-m", "flide_agent.cli", *map(str, arguments)]
    environment = {**os.environ, "TMPDIR": str(folder), "COLUMNS": "80"}
    return subprocess.Popen(
        argv,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def when(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_replay_in_this_process_leaves_no_store(tmp_path: Path, number: signal.Signals, code: int) -> None:
    temporary, out = tmp_path / "tmp", tmp_path / "out.jsonl"
    temporary.mkdir()
    process = started(temporary, "replay", EXAMPLE, "--rate", 1, "--json", out)
    when(lambda: lines(out) >= 2, process)
    assert list(temporary.glob("flide-agent-*"))
    process.send_signal(number)
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert f"interrupted; to go on, give --resume {out} in place of --json" in said.replace("\n", " ")
    assert not list(temporary.glob("flide-agent-*"))
    assert json.loads(out.read_text().splitlines()[-1])["kind"] == "summary"


@pytest.mark.parametrize("agents", [1, 2])
def test_a_replay_leaves_no_session_on_a_server(server: ServerProcess, tmp_path: Path, agents: int) -> None:  # noqa: F811
    out = tmp_path / "out.jsonl"
    process = started(tmp_path, "replay", EXAMPLE, "--rate", 1, "--json", out, "--url", server.url, "--agents", agents)
    when(lambda: lines(out) >= 2, process)
    with Client(server.url) as client:
        assert any(s["id"].startswith("replay-") for s in client.sessions())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
        assert process.returncode == 143
        assert not any(s["id"].startswith("replay-") for s in client.sessions())


def test_a_replay_that_is_ended_while_it_starts(tmp_path: Path) -> None:
    process = started(tmp_path, "replay", EXAMPLE)
    when(lambda: bool(list(tmp_path.glob("flide-agent-*"))), process)
    time.sleep(0.2)  # the model is loaded now; a signal in the very call that makes the folder would leave it
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 143
    assert "Traceback" not in told
    assert not list(tmp_path.glob("flide-agent-*"))


def test_a_bench_leaves_no_server_and_no_folder(tmp_path: Path) -> None:
    process = started(tmp_path, "bench", "server", "--device", "cpu")
    when(lambda: bool(list(tmp_path.glob("flide-bench-*/store"))), process)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 143
    assert "Traceback" not in told
    assert not list(tmp_path.glob("flide-bench-*"))


@pytest.mark.parametrize("arguments", [("--rate", "4"), ("--rate", "4", "--json", "-"), ("--list",), ("--dry-run",)])
def test_nobody_reads_the_output(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    process = started(tmp_path, "replay", EXAMPLE, *arguments, stdout=write)
    os.close(write)
    if arguments[0] == "--rate":
        os.read(read, 10)
    os.close(read)
    _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 141
    assert "Broken pipe" not in told
    assert "Exception" not in told
    assert not list(tmp_path.glob("flide-agent-*"))


def test_summaries_that_no_terminal_shows_are_not_wrapped(tmp_path: Path) -> None:
    process = started(tmp_path, "replay", EXAMPLE, "--dry-run")
    out, _ = process.communicate(timeout=SECONDS)
    assert sum("20 decisions in 20 requests" in row and "with it" in row for row in out.splitlines()) == 2


# What was asked for and did not come about


def test_steps_that_are_not_there(service: CountingService, tmp_path: Path) -> None:
    result = replay(EXAMPLE, "--steps", "30-40", "--json", "-")
    assert (result.exit_code, "nothing was asked: of 1 run, --steps" in result.stderr) == (0, True)
    assert "nothing was asked: there is no run" in replay(tmp_path).stderr
    assert "nothing was asked" not in replay(EXAMPLE, "--steps", "1").stderr


def test_runs_without_steps_are_told_as_such(service: CountingService, tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.json").write_text(json.dumps({"messages": [{"role": "user", "content": "go"}]}))
    told = replay(tmp_path / "0.json").output
    assert (
        f"nothing was asked: there is no step, that is no action of an agent, in the 1 run of {tmp_path / '0.json'}\n" in told
    )
    assert "--steps" not in told + replay(tmp_path / "0.json", "--steps", "2-").output
    assert f"in the 5 runs of {tmp_path / '0.json'}, " in replay(tmp_path).output
    assert f"{tmp_path / '2.json'} and 2 more files\n" in replay(tmp_path).output
    assert "nothing was asked" not in replay(tmp_path / "0.json", EXAMPLE).output


def test_questions_at_a_moment_that_no_step_has(service: CountingService, tmp_path: Path) -> None:
    run, pack = tmp_path / "run.json", tmp_path / "pack.json"
    run.write_text(json.dumps({"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "ls"}]}))
    pack.write_text(json.dumps({"q": {"type": "noul", "instructions": "?", "moment": "after"}}))
    told = "nothing was asked: of 1 step, none has a moment that these questions are asked at\n"
    assert told in replay(run, "--questions", pack).output
    assert "of 1 run, --steps and --every choose no step" in replay(run, "--questions", pack, "--every", 2).output


def test_recorded_times_that_are_not_there(service: CountingService) -> None:
    assert "no step has a recorded time" in replay(EXAMPLE, "--steps", "1-2", "--rate", "recorded").stderr
    assert "no step has a recorded time" not in replay(EXAMPLE, "--steps", "1-2", "--rate", "1000").stderr
