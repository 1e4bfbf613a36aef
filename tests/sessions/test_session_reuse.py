"""How much of a recorded run is reused, against the best there is: floor64 of what a history has in common with an earlier one.

Real sessions, prompts and store; the states are made up, so thousands of steps take seconds. `test_session_exact` has the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from session_house import House

from flide_agent.messages import Message, canonical_all
from flide_agent.prompts import Prompts
from flide_agent.replay.reading import read
from flide_agent.replay.records import Run
from flide_agent.sessions.history import common_tokens

GRID = 64
WAYS = ("raw", "as-sent", "last-5")
SHORT = ("mini-v2-GENERATED-toolcall.traj.json", "sweagent-10-marshmallow-elided.traj")
Build = Callable[..., House]


def elided(messages: Sequence[Message], last: int = 5) -> list[Message]:
    """All observations but the first (the task) and the last ones replaced by a line, as SWE-agent's history processor does."""
    observations = [i for i, m in enumerate(messages) if m.role in ("user", "tool")][1:]
    old = set(observations[:-last])
    return [
        msgspec.structs.replace(m, content=f"Old environment output: ({m.content.count(chr(10)) + 1} lines omitted)") if i in old else m
        for i, m in enumerate(messages)
    ]  # fmt: skip


def histories(run: Run, way: str) -> list[list[Message]]:
    out = [canonical_all(step.messages, ()) for step in run.steps]
    return [elided(h) for h in out] if way == "last-5" else out


@dataclass
class Reuse:
    """Tokens. best: sum over steps of floor64 of the longest prefix in common with any earlier step. again: of a second replay, of
    `trunks` tokens, of which the grid of 64 allows `whole`."""

    best: int = 0
    reused: int = 0
    again: int = 0
    trunks: int = 0
    whole: int = 0
    losses: list[tuple[int, int]] = field(default_factory=list)

    def add(self, other: Reuse) -> None:
        self.best, self.reused = self.best + other.best, self.reused + other.reused
        self.again, self.trunks, self.whole = self.again + other.again, self.trunks + other.trunks, self.whole + other.whole

    @property
    def share(self) -> float:
        return self.reused / self.best if self.best else 1.0

    @property
    def second(self) -> float:
        return self.again / self.trunks if self.trunks else 1.0


def replayed(house: House, steps: Sequence[Sequence[Message]], first: int = 1) -> Reuse:
    """One session over the histories, then another. first: the step from which reuse counts."""
    out = Reuse()
    seen: list[object] = []
    for number, messages in enumerate(steps, 1):
        step, m = house.step("first", messages=messages)
        if seen and number >= first:
            best = max(common_tokens(old, step.tokens) for old in seen[-40:]) // GRID * GRID  # type: ignore[arg-type]
            out.best, out.reused = out.best + best, out.reused + m
            assert m <= best
            if m < best:
                out.losses.append((number, best - m))
        seen.append(step.tokens)
    for messages in steps:
        step, m = house.step("second", messages=messages)
        out.again, out.trunks = out.again + m, out.trunks + len(step.tokens)
        out.whole += len(step.tokens) // GRID * GRID
    return out


def of_file(build: Build, prompts: Prompts, path: Path, way: str, limit: int | None = None) -> Reuse:
    total = Reuse()
    for run in read(path, "as-sent" if way == "as-sent" else "raw"):
        if isinstance(run, Run) and run.steps:
            house = build(prompts)
            total.add(replayed(house, histories(run, way)[:limit], 5 if way == "last-5" else 1))
            house.store.close()
    return total


@pytest.mark.parametrize("way", WAYS)
def test_reuse_of_recorded_runs(build: Build, prompts: Prompts, shared: Path, way: str) -> None:
    for name in SHORT:
        got = of_file(build, prompts, shared / "data" / "trajectories" / name, way)
        assert got.best > 5000
        assert got.share >= 0.95, (name, got)
        assert got.second >= 0.95, (name, got)


def test_without_learning_elision_is_not_reused(
    build: Build, prompts: Prompts, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: with only the prefix and the end of a step saved, the bar fails."""
    import flide_agent.sessions.sessions as module

    def ends_only(history: object, habits: object, junction: int) -> dict[int, object]:
        kept = {p: k for p, k in module_places(history, (), 0).items() if k >= 4}  # type: ignore[arg-type]
        return dict(kept)

    module_places = module.places
    monkeypatch.setattr(module, "places", ends_only)
    got = of_file(build, prompts, shared / "data" / "trajectories" / SHORT[1], "last-5")
    assert got.share < 0.95


@pytest.mark.bars
def test_reuse_of_every_file(build: Build, prompts: Prompts, shared: Path, bar: Callable[..., None]) -> None:
    worst = dict.fromkeys(WAYS, (1.0, ""))
    again = allowed = (1.0, "")
    files = 0
    for path in sorted((shared / "data" / "trajectories").iterdir()):
        if not path.is_file() or path.suffix in (".parquet", ".md"):
            continue
        for way in WAYS:
            got = of_file(build, prompts, path, way)
            files += way == "raw" and got.trunks > 0
            if got.best:
                worst[way] = min(worst[way], (got.share, path.name))
            if got.whole:
                allowed = min(allowed, (got.again / got.whole, f"{path.name} {way}"))
            if got.whole >= 0.95 * got.trunks:  # trunks of a few hundred tokens end too far beyond the grid
                again = min(again, (got.second, f"{path.name} {way}"))
    assert files >= 12
    for way, (share, name) in worst.items():
        bar(f"sessions: reuse over the best possible, {way}, worst file", share, at_least=0.95, file=name, files=files)
    name = "sessions: tokens on the grid reused by a second replay, worst file"
    bar(name, allowed[0], at_least=0.95, file=allowed[1], files=files)
    bar(
        "sessions: trunk tokens reused by a second replay, worst file of long trunks",
        again[0],
        at_least=0.95,
        file=again[1],
        files=files,
    )
