"""What a long run leaves behind: sessions come and go under small budgets, and memory and disk stay where they were."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flide_agent.local import LocalService
from flide_agent.settings import Settings

QUESTIONS = {"q": {"type": "noul", "instructions": "Is the agent stuck?"}}


def resident() -> int:
    """Bytes of this process in memory."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def words(rng: random.Random, n: int) -> str:
    return " ".join(str(rng.randrange(10**4)) for _ in range(n))


def come_and_go(service: LocalService, seconds: float, seed: int) -> int:
    """Sessions are opened, go on by appends, edits and forks, and are deleted; at most eight live. Returns the number of steps."""
    rng, steps = random.Random(seed), 0
    live: dict[str, list[dict[str, Any]]] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if len(live) < 8:
            live[f"s{rng.randrange(1 << 40)}"] = [{"role": "system", "content": words(rng, 20)}]
        name = rng.choice(list(live))
        messages = live[name]
        messages.append({"role": "user", "content": words(rng, rng.randrange(2, 30))})
        if rng.random() < 0.2:
            messages[rng.randrange(len(messages))] = {"role": "user", "content": words(rng, 10)}
        service.decide(name, questions=QUESTIONS, messages=messages)
        steps += 1
        if rng.random() < 0.05:
            copy = f"f{rng.randrange(1 << 40)}"
            service.fork(name, copy)
            live[copy] = list(messages)
        if len(messages) > 14 or rng.random() < 0.03 or len(live) > 8:
            service.delete(name)
            del live[name]
    for name, messages in live.items():
        if len(messages) > 1:  # else it was never asked about
            service.delete(name)
    return steps


def small(path: Path) -> Settings:
    return Settings(device="cpu", store=path, memory_bytes=24 << 20, disk_bytes=24 << 20)


def test_nothing_of_deleted_sessions_is_left(tmp_path: Path) -> None:
    with LocalService(small(tmp_path / "store")) as service:
        assert come_and_go(service, 4.0, 1) > 10
        store = service.service.store
        assert store.flush(20)
        assert store.stats().disk_bytes == store.stats().disk_count == store.stats().device_count == 0
        assert [len(store.index.scan(db)) for db in ("node", "ids", "hold", "session", "head", "block")] == [0] * 6
        assert not store._nodes.by_key
        assert service.sessions() == []
    assert not list((tmp_path / "store").glob("objects/*/*"))


@pytest.mark.bars
@pytest.mark.timeout(3000)
def test_memory_stays_where_it_was(tmp_path: Path, bar: Callable[..., None]) -> None:
    minutes = float(os.environ.get("FLIDE_SOAK_MINUTES", "10"))
    with LocalService(small(tmp_path / "store")) as service:
        come_and_go(service, 120, 1)  # pools are touched, caches and the allocator's arenas fill
        before, steps = resident(), 0
        series = []
        for part in range(10):
            steps += come_and_go(service, 6 * minutes, 2 + part)
            series.append(resident() >> 20)
        after = resident()
        index = (tmp_path / "store" / "index" / "data.mdb").stat().st_size
        stats = service.service.store.stats()
    growth = after / before - 1
    details = {"minutes": minutes, "steps": steps, "before_mib": before >> 20, "after_mib": after >> 20, "series_mib": series}
    bar(
        "sessions: growth of resident memory in a soak",
        growth,
        limit=0.05,
        index_bytes=index,
        evicted=stats.evicted_disk,
        **details,
    )
