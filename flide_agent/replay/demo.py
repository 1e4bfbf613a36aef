"""`flide-agent demo`: the whole path on real parts, with a check after each claim.

A server process of its own on loopback, a replayed trajectory, one edited message, a cold run to compare with, a kill -9 and
a second server on the same store.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from flide_agent.client import Client
from flide_agent.errors import FlideError
from flide_agent.replay.decision import Decision
from flide_agent.replay.pack import DEFAULT_PACK
from flide_agent.replay.questions import DEFAULT
from flide_agent.replay.reading import read
from flide_agent.replay.records import Problem, Run, Wire
from flide_agent.replay.report import cell
from flide_agent.replay.screen import Screen
from flide_agent.replay.server import ServerDied, ServerProcess
from flide_agent.replay.text import line
from flide_agent.replay.totals import UNTRAINED
from flide_agent.replay.walk import Stopped, Walk
from flide_agent.replies import Reply, StepReply
from flide_agent.settings import Settings

EXAMPLE = Path(__file__).parent / "fix_slugify.traj"
if not EXAMPLE.exists():  # in a checkout; the wheel has it beside this file
    EXAMPLE = Path(__file__).parents[2] / "examples" / "fix_slugify.traj"
FAILED = {6: "tests fail", 8: "tests fail", 11: "an edit is refused", 15: "a test fails"}
"""Steps of the example before which a command failed, and what its output says."""
GRID = 64
DURABLE_SECONDS = 60.0
DEVICE = "cpu"


@dataclass
class Checks:
    """Claims and whether they held."""

    console: Console
    failed: list[str] = field(default_factory=list)

    def say(self, text: str = "", style: str = "") -> None:
        self.console.print(Text(text, style=style), soft_wrap=True)

    def that(self, holds: bool, claim: str) -> None:
        """Print a claim with ok or FAILED."""
        self.say(f"  {'ok    ' if holds else 'FAILED'} {claim}", "green" if holds else "bold red")
        if not holds:
            self.failed.append(claim)


@dataclass(frozen=True, slots=True)
class Edit:
    """One agent message of the last history, to be written anew. below: tokens of the history before it."""

    messages: list[Wire]
    index: int
    below: int

    def with_text(self, text: str) -> list[Wire]:
        return [{**m, "content": text} if i == self.index else m for i, m in enumerate(self.messages)]


def run(file: Path | None, model: str) -> int:
    """Run the demo; returns the exit code: 0 when every claim held, else 1."""
    checks = Checks(Console(highlight=False, markup=False, emoji=False))
    begun = time.perf_counter()
    try:
        recorded = _recorded(file or EXAMPLE)
        with tempfile.TemporaryDirectory(prefix="flide-demo-") as folder:
            _tour(checks, recorded, Path(folder) / "store", model)
    except FlideError as e:
        checks.that(False, line(e.message, 1000))
    except (ServerDied, Stopped, ValueError) as e:
        checks.that(False, str(e))
    checks.say()
    seconds = time.perf_counter() - begun
    checks.say(
        f"{len(checks.failed)} of the claims failed" if checks.failed else f"everything held, in {seconds:.0f} s",
        "bold red" if checks.failed else "bold green",
    )
    return 1 if checks.failed else 0


def _recorded(file: Path) -> Run:
    found = next(iter(read(file)), None)
    if isinstance(found, Run) and len(found.steps) >= 4:
        return found
    raise ValueError(str(found) if isinstance(found, Problem) else f"{file}: the demo needs a run of at least 4 steps")


def _tour(checks: Checks, recorded: Run, store: Path, model: str) -> None:
    with ServerProcess(store, model, DEVICE) as server:
        checks.say(f"1. A server on {server.url}, ready after {server.seconds:.1f} s, and an agent run step by step", "bold")
        with Client(server.url, timeout=300.0) as client:
            decisions = _replay(checks, client, recorded)
            if model == "default" and Path(recorded.file) == EXAMPLE:
                _failures(checks, decisions)
            session = decisions[0].session
            edit = _middle(recorded, decisions)
            checks.say()
            place = f"message {edit.index + 1} of {len(edit.messages)}"
            checks.say(f"2. {place} is written anew: what is before it stays, what follows is computed again", "bold")
            first = edit.with_text("Let me think about this in another way.")
            reply = client.decide(session, messages=first, questions=DEFAULT)
            m = _resumed(checks, reply, edit)
            _like_cold(checks, reply, first, model)
            checks.that(_durable(client, session), "the service lists every step of the session as durable")
        checks.say()
        checks.say("3. kill -9, and a second server on the same store", "bold")
        server.kill()
        server.start()
        checks.say(f"  ready again after {server.seconds:.1f} s")
        with Client(server.url, timeout=300.0) as client:
            second = edit.with_text("I had better begin with the tests.")
            reply = client.decide(session, messages=second, questions=DEFAULT)
            checks.that(_done(reply).m == m, f"another text for the same message goes on from the same m = {_done(reply).m}")
            _like_cold(checks, reply, second, model)


def _replay(checks: Checks, client: Client, recorded: Run) -> list[Decision]:
    with Screen(checks.console, DEFAULT_PACK, 1) as screen:
        decisions: list[Decision] = []
        for event in Walk(client, DEFAULT, needing=DEFAULT_PACK.needing).over([recorded]):
            screen.show(event)
            if isinstance(event, Decision):
                decisions.append(event)
            elif isinstance(event, Problem):
                raise ValueError(str(event))
    screen.summary()
    pairs = list(pairwise(decisions))
    grown = [(a, b) for a, b in pairs if b.step.messages[: len(a.step.messages)] == a.step.messages]
    held = all(b.m == a.history_tokens // GRID * GRID for a, b in grown)
    checks.that(
        held and bool(grown),
        f"{len(grown)} of {len(pairs)} steps only append, and each goes on from the last multiple of {GRID} of the step before",
    )
    return decisions


def _failures(checks: Checks, decisions: list[Decision]) -> None:
    """The model's own answers on the example: where a command failed, it must say so, and nowhere else."""
    said = {d.step.index: p for d in decisions if (p := d.answers["last_command_failed"]["noul"]) >= 0.5}
    for index, p in said.items():
        checks.say(
            f"  before step {index} the last command failed, says the model with {p:.2f}: {FAILED.get(index, 'it did not')}"
        )
    checks.that(said.keys() == FAILED.keys(), f"it says so at the {len(FAILED)} steps where one failed, and at no other")


def _middle(recorded: Run, decisions: list[Decision]) -> Edit:
    """The agent message in the middle of the last history; a history that was asked about ends right before it.

    Raises ValueError when the run's histories are rewritten so often that none is there.
    """
    last = decisions[-1].step.messages
    before = {len(d.step.messages): d for d in decisions if d.step.messages == last[: len(d.step.messages)]}
    places = [i for i, m in enumerate(last) if m["role"] == "assistant" and i in before]
    if not places:
        raise ValueError(f"{recorded.file}: no agent message in its last history to edit")
    index = min(places, key=lambda i: abs(2 * i - len(last)))
    return Edit(last, index, before[index].history_tokens)


def _resumed(checks: Checks, reply: Reply, edit: Edit) -> int:
    """Print where an edited history was resumed, check it, return m."""
    done = _done(reply)
    checks.say(f"  reason {done.reason}, {done.history_tokens} tokens of history, {edit.below} of them before the edit")
    checks.say(f"  {done.reused_tokens} reused, {done.computed_tokens} computed, {done.latency.total:.1f} ms")
    expected = edit.below // GRID * GRID
    checks.that(done.m == expected, f"m = {done.m}: the last multiple of {GRID} below the edit at {edit.below}")
    return done.m


def _like_cold(checks: Checks, reply: Reply, messages: list[Wire], model: str) -> None:
    """Ask the same in this process with an empty store, and compare."""
    from flide_agent.local import LocalService

    with LocalService(Settings(model=model, device=DEVICE)) as service:
        cold = service.decide("cold", messages=messages, questions=DEFAULT)
    answers, again = _answers(reply), _answers(cold)
    if reply.x_untrained:
        checks.say(f"  {UNTRAINED}", "yellow")
    checks.say("  " + ", ".join(f"{name} {cell(answer)}" for name, answer in answers.items()))
    done = _done(cold)
    checks.that(
        answers == again and done.m == 0,
        f"equal, to the last bit, to a cold run in an empty store ({done.computed_tokens} tokens computed)",
    )


def _answers(reply: Reply) -> dict[str, Any]:
    answers: dict[str, Any] = msgspec.to_builtins(reply.answers)
    return answers


def _done(reply: Reply) -> StepReply:
    if reply.x_session is None:
        raise ValueError("the reply has no x_session")
    return reply.x_session


def _durable(client: Client, session: str) -> bool:
    """Wait until every step of the session is on stable storage."""
    end = time.monotonic() + DURABLE_SECONDS
    while time.monotonic() < end:
        steps = client.session(session)["steps"]
        if steps and all(s["durable"] for s in steps):
            return True
        time.sleep(0.1)
    return False
