"""The service and its store on the GPU engine: a run of an agent step by step, an edit, a restart, and answers of a cold run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmdb", reason="the store's index needs lmdb: pip install 'flide-agent[serve]'")

TRAJECTORY = Path(__file__).parents[2] / "examples" / "fix_slugify.traj"
DEVICE = "cuda"
QUESTIONS = {
    "failed": {"type": "noul", "instructions": "Did the last command fail?"},
    "next": {
        "type": "choice",
        "instructions": "Which kind of tool is used next?",
        "criteria": {"look": None, "edit": None, "run": None},
    },
    "risk": {"type": "score", "instructions": "How risky is it to go on?", "criteria": ["none", "some", "high"]},
}


def histories() -> list[list[dict[str, Any]]]:
    """What the recorded agent saw before each of its steps."""
    history = json.loads(TRAJECTORY.read_text())["history"]
    messages = [{"role": m["role"], "content": m["content"]} for m in history]
    return [messages[:i] for i, m in enumerate(messages) if m["role"] == "assistant"]


@pytest.mark.parametrize("model", ["default", "dummy:0.8b"])
def test_steps_resume_and_equal_cold_runs(model: str, tmp_path: Path) -> None:
    from flide_agent.local import LocalService
    from flide_agent.settings import Settings

    settings = Settings(model=model, device=DEVICE, store=tmp_path / "store", memory_bytes=4 << 30)
    steps = histories()[:12]
    with LocalService(settings) as service:
        assert service.service.engine.info.device.startswith(DEVICE)
        warm = [service.decide("run", messages=h, questions=QUESTIONS) for h in steps]
        tokens = [r.x_session.history_tokens for r in warm]
        assert [r.x_session.m for r in warm] == [0, *[n // 64 * 64 for n in tokens[:-1]]]
    with LocalService(settings) as service:
        again = service.decide("run", messages=histories()[12], questions=QUESTIONS)
        assert again.x_session.m == tokens[-1] // 64 * 64, "a restart keeps the fork point"
        edited = [*steps[-1][:9], {"role": "user", "content": "something else"}, *steps[-1][10:]]
        changed = service.decide("run", messages=edited, questions=QUESTIONS)
        assert 0 < changed.x_session.m < tokens[-1]
    for i, (history, reply) in enumerate([(steps[-1], warm[-1]), (histories()[12], again), (edited, changed)]):
        fresh = Settings(model=model, device=DEVICE, store=tmp_path / f"cold{i}", memory_bytes=4 << 30)
        with LocalService(fresh) as service:
            cold = service.decide("run", messages=history, questions=QUESTIONS)
            assert cold.x_session.m == 0
            assert cold.answers == reply.answers


def test_steps_resume_from_pinned_host_memory(tmp_path: Path) -> None:
    """What left the device comes back from the host with the same bits, and a budget too small for it all goes on from disk."""
    from flide_engine.memory import PoolFull

    from flide_agent.local import LocalService
    from flide_agent.settings import Settings

    steps = histories()[:8]
    replies = []
    for host_bytes in (1 << 30, 0):
        store = tmp_path / f"store{host_bytes}"
        settings = Settings(model="dummy:0.8b", device=DEVICE, store=store, memory_bytes=4 << 30, host_bytes=host_bytes)
        with LocalService(settings) as service:
            kept = service.service.store
            for history in steps:
                service.decide("run", messages=history, questions=QUESTIONS)
            assert kept.flush(60)
            assert kept.relieve(PoolFull(1 << 20, 1 << 20))
            again = service.decide("run", messages=steps[-1], questions=QUESTIONS)
            assert again.x_session.m > 0
            stats = kept.stats()
            assert (stats.hits_host > 0, stats.hits_disk > 0) == (bool(host_bytes), not host_bytes)
            assert stats.host_pinned is bool(host_bytes)
            assert stats.host_bytes <= host_bytes
            replies.append(again.answers)
    assert replies[0] == replies[1]
