"""The demo holds on the real parts, and says so when something does not."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest
from counting_service import EXAMPLE, CountingService
from rich.console import Console

from flide_agent.replay import demo
from flide_agent.replay.decision import Decision
from flide_agent.replay.demo import Checks, Edit
from flide_agent.replay.questions import DEFAULT
from flide_agent.replay.walk import Walk
from flide_agent.replies import Noul, Reply, StepReply, Usage


def test_the_demo_holds() -> None:
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "flide_agent.cli", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=280,
        check=False,
    )
    out = done.stdout.decode()
    print(out, f"{time.perf_counter() - begun:.1f} s")
    assert done.returncode == 0
    assert "FAILED" not in out
    assert out.count("  ok     ") == 7
    assert "before step 6 the last command failed, says the model with " in out
    assert sum(row[:4].strip().isdigit() for row in out.splitlines()) >= 20
    assert "untrained" not in out
    assert "out of scope" not in out, "all that is asked by default is in the model's card"
    assert "\x1b" not in out


@pytest.mark.parametrize("name", ["no/such/file", "examples"])
def test_a_file_that_is_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.run(Path(name), "default") == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_wrong_fork_point_is_a_failed_claim() -> None:
    checks = Checks(Console(quiet=True))
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    def reply(m: int) -> Reply:
        step = StepReply("s", "h", 2, m, m, 300 - m, "edit", 250)
        return Reply("m", {"a": Noul(0.5)}, Usage(300, 0), step)

    demo._resumed(checks, reply(128), Edit(messages, 1, 191))
    assert not checks.failed
    demo._resumed(checks, reply(64), Edit(messages, 1, 191))
    assert len(checks.failed) == 1


@pytest.mark.parametrize(
    ("said", "holds"), [((6, 8, 11, 15), True), ((6, 8, 15), False), ((6, 8, 11, 15, 17), False), ((), False)]
)
def test_a_failure_that_the_model_does_not_see_is_a_failed_claim(
    said: tuple[int, ...], holds: bool, service: CountingService
) -> None:
    checks = Checks(Console(quiet=True))
    decisions = [
        dataclasses.replace(d, answers=d.answers | {"last_command_failed": {"type": "noul", "noul": 0.9 if i in said else 0.1}})
        for i, d in enumerate((e for e in Walk(service, DEFAULT).over([demo._recorded(EXAMPLE)]) if isinstance(e, Decision)), 1)
    ]
    demo._failures(checks, decisions)
    assert (not checks.failed) == holds


def test_the_steps_of_the_example_before_which_a_command_failed() -> None:
    """From its recording: a test runner that says FAILED, or a tool that says Error."""
    steps = demo._recorded(EXAMPLE).steps
    outputs = {s.index: s.messages[-1]["content"].removeprefix("OBSERVATION:\n") for s in steps}
    assert {i for i, o in outputs.items() if "\nFAILED (" in o or o.startswith("Error")} == demo.FAILED.keys()


def test_the_edit_lies_in_the_middle_and_right_after_a_history_that_was_asked_about() -> None:
    recorded = demo._recorded(EXAMPLE)
    last = recorded.steps[-1].messages
    index = min((len(s.messages) for s in recorded.steps[:-1]), key=lambda i: abs(2 * i - len(last)))
    assert last[index]["role"] == "assistant"
    edit = Edit(last, index, 0)
    changed = edit.with_text("new")
    assert [i for i, (a, b) in enumerate(zip(last, changed, strict=True)) if a != b] == [index]
