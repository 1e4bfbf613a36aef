"""Replay through the real service with the embedded model: every step goes on from where it must, and computes no token more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_service import EXAMPLE

from flide_agent.local import LocalService
from flide_agent.messages import canonical_all
from flide_agent.questions import parse_questions
from flide_agent.replay.decision import Decision, Ended, Started
from flide_agent.replay.questions import DEFAULT
from flide_agent.replay.reading import read
from flide_agent.replay.walk import Walk
from flide_agent.settings import Settings

GRID = 64
FILES = (
    "sweagent-0x-marshmallow-default.traj",
    "sweagent-0x-pydicom-demo-in-history.traj",
    "sweagent-10-history-only.traj",
    "sweagent-10-marshmallow-elided.traj",
    "sweagent-101-pandas-claude-cachecontrol.traj",
    "sweagent-11-DERIVED-query.traj",
    "nebius-6rows.jsonl",
)

RECORDED = FILES[3:6]
"""Files that hold the prompts as they were sent."""


@pytest.fixture(scope="module")
def local() -> Iterator[LocalService]:
    with LocalService(Settings(device="cpu")) as service:
        yield service


@dataclass
class Seen:
    """What a replay did: steps in all, steps that only append, and those whose m or count is not what it must be."""

    decisions: list[Decision]
    appending: int
    wrong: list[str]


def common(a: Any, b: Any) -> int:
    """Equal tokens at the start of two int32 arrays."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def replayed(local: LocalService, path: Path, mode: str = "as-sent", steps: tuple[int, int | None] = (1, None)) -> Seen:
    """Replay a file. Trunks and branches are tokenised here once more, whole, and the engine's own counter is read at each step."""
    decider, counters = local.service.decider, local.service.dispatcher.counters
    branches = sum(len(decider.prompts.question(q).tokens) for q in parse_questions(DEFAULT, ()).values())
    before, rows, seen = None, counters.tokens_computed, Seen([], 0, [])
    walk = Walk(local, DEFAULT, steps)
    for event in walk.over(read(path, mode)):
        if isinstance(event, Started):
            before = None
            continue
        if isinstance(event, Ended):
            continue
        assert isinstance(event, Decision), event
        d = event
        trunk = decider.prompts.history(d.run.tools, canonical_all(d.step.messages, ())).tokens
        computed, rows = counters.tokens_computed - rows, counters.tokens_computed
        place = f"{path.name}:{d.run.row} step {d.step.index}"
        if not d.history_tokens - d.m + branches == d.computed_tokens == computed or d.history_tokens != len(trunk):
            seen.wrong.append(
                f"{place}: P {len(trunk)}, m {d.m}, branches {branches}, said {d.computed_tokens}, computed {computed}"
            )
        if before is not None:
            reach = common(before, trunk)
            if reach == len(before):
                seen.appending += 1
                if d.m != reach // GRID * GRID:
                    seen.wrong.append(f"{place}: m {d.m} with {reach} tokens in common")
            elif d.m > reach:
                seen.wrong.append(f"{place}: m {d.m} beyond the {reach} tokens in common")
        before = trunk
        seen.decisions.append(d)
    walk.forget()  # or the next file could go on from this one's checkpoints
    return seen


def test_the_own_example(local: LocalService) -> None:
    seen = replayed(local, EXAMPLE, steps=(1, 10))
    assert not seen.wrong
    assert (len(seen.decisions), seen.appending) == (10, 9)
    assert [d.reason for d in seen.decisions] == ["new"] + ["append"] * 9
    assert all(set(d.answers) == set(DEFAULT) for d in seen.decisions)
    assert not any(d.untrained for d in seen.decisions)
    assert not any(d.out_of_scope for d in seen.decisions), "the card holds every default question"


@pytest.mark.parametrize(
    "name", ["sweagent-0x-marshmallow-default.traj", "sweagent-10-history-only.traj", "openhands-events-cli-0.58.json"]
)
def test_the_first_steps_of_shared_files(local: LocalService, shared: Path, name: str) -> None:
    seen = replayed(local, shared / "data/trajectories" / name, steps=(1, 2))
    assert not seen.wrong
    assert seen.appending


def test_a_rewritten_history_falls_back_to_what_it_shares(local: LocalService, shared: Path) -> None:
    seen = replayed(local, shared / "data/trajectories/sweagent-10-marshmallow-elided.traj", steps=(7, 8))
    assert not seen.wrong
    assert "edit" in {d.reason for d in seen.decisions}


@pytest.mark.bars
@pytest.mark.timeout(3600)
def test_every_step_of_every_shared_file(shared: Path, bar: Callable[..., None]) -> None:
    appending, decisions, wrong, milliseconds = 0, 0, [], []
    for name in FILES:
        for mode in ("as-sent", "raw") if name in RECORDED else ("raw",):
            with LocalService(Settings(device="cpu")) as local:
                seen = replayed(local, shared / "data/trajectories" / name, mode)
            appending += seen.appending
            decisions += len(seen.decisions)
            wrong += seen.wrong
            milliseconds += [d.milliseconds for d in seen.decisions]
    print("\n".join(wrong[:20]))
    bar(
        "replay: steps whose m or computed tokens are not what they must be",
        len(wrong),
        limit=0,
        decisions=decisions,
        appending=appending,
        median_ms=round(float(np.median(milliseconds)), 2),
    )
    assert decisions == 14 + 12 + 5 + 372 + 2 * (13 + 17 + 13)


def test_the_checks_can_fail(local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.service.store, "find", lambda *_, **more: None)
    seen = replayed(local, EXAMPLE, steps=(1, 3))
    assert len(seen.wrong) == 2
    assert all("tokens in common" in text for text in seen.wrong)
