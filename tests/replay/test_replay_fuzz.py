"""Every reader, fed with broken variants of real files: runs that can be sent or problems, nothing is raised."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from made_formats import MADE
from mutations import mutated, rows

from flide_agent.replay.reading import read
from flide_agent.replay.records import Problem, Run

FILES = {
    "swe-agent-0.x": "sweagent-0x-marshmallow-default.traj",
    "swe-agent-history": "sweagent-10-history-only.traj",
    "swe-agent-1.0": "sweagent-10-marshmallow-elided.traj",
    "swe-agent-1.0.1": "sweagent-101-pandas-claude-cachecontrol.traj",
    "swe-agent-1.1": "sweagent-11-DERIVED-query.traj",
    "mini-swe-agent-1": "mini-v1-GENERATED-textbased.traj.json",
    "mini-swe-agent-1.1": "mini-v2-GENERATED-toolcall.traj.json",
    "responses": "mini-v2-GENERATED-responses-api.traj.json",
    "nebius": "nebius-6rows.jsonl",
    "openhands": "openhands-events-cli-0.58.json",
    "openhands-gui": "openhands-events-gui.json",
    "openhands-output": "openhands-resolver-output.jsonl",
    "openhands-sdk": "openhands-sdk-events.jsonl",
    "chat": "openai-messages-listparts-claude.json",
    "claude-code": "claude-code-session.jsonl",
    "atif": "atif-1.5-openhands.json",
    "atif-summary": "atif-1.5-terminus2-summarization.json",
    "langchain": "langchain-GENERATED-messages_to_dict.json",
    "langchain-dumpd": "langchain-GENERATED-dumpd.json",
    "inspect": "inspect-ai-log-images.json",
}


GENERATED = {
    f"made-{name}": made for name, made in MADE.items() if not name.startswith("atif") or name in ("atif-1.0", "atif-1.8")
}
NAMES = [*FILES, *GENERATED]


def wrong(path: Path, data: bytes, mode: str) -> str | None:
    """What is not as it must be when these bytes are read."""
    path.write_bytes(data)
    try:
        for item in read(path, mode):
            if isinstance(item, Run):
                sent = [[s.messages, s.proposed, s.result, s.labels, s.then] for s in item.steps]
                json.dumps([sent, item.tools], ensure_ascii=False, allow_nan=False).encode()
                if [s.index for s in item.steps] != list(range(1, len(item.steps) + 1)):
                    return "steps out of order"
                if any("\n" in note for note in item.notes):
                    return "a note of several lines"
            elif not isinstance(item, Problem) or "\n" in str(item) or "\x1b" in str(item):
                return f"{item!r}"
    except Exception as e:  # the very thing that must not be
        return f"{type(e).__name__}: {e}"
    return None


def failures(shared: Path, tmp_path: Path, name: str, count: int, seed: int) -> list[str]:
    values = GENERATED[name].lines if name in GENERATED else rows(shared / "data/trajectories" / FILES[name])
    rng = random.Random(f"{name}-{seed}")
    out = []
    for n in range(count):
        data = mutated(values, rng)
        for mode in ("as-sent", "raw"):
            said = wrong(tmp_path / "file", data, mode)
            if said is not None:
                out.append(f"{name} {n} {mode}: {said}")
    return out


@pytest.mark.parametrize("name", NAMES)
def test_broken_variants_raise_nothing(shared: Path, tmp_path: Path, name: str) -> None:
    assert not failures(shared, tmp_path, name, 50, 1)


@pytest.mark.bars
def test_a_thousand_broken_variants_of_each_format(shared: Path, tmp_path: Path, bar: Callable[..., None]) -> None:
    found = [f for name in NAMES for f in failures(shared, tmp_path, name, 1000, 2)]
    print("\n".join(found[:20]))
    bar("replay: mutated files that raise or cannot be sent", len(found), limit=0, formats=len(NAMES), each=1000)


def test_the_check_can_fail(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flide_agent.replay import atif

    def careless(value: dict[str, object], depth: int = 0) -> object:
        return iter(value["subagent_trajectories"] or [value])  # type: ignore[call-overload]

    monkeypatch.setattr(atif, "all_of", careless)
    assert failures(shared, tmp_path, "atif", 3, 1)
