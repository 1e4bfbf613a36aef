"""What a request outside sessions costs the engine process, with front ends before it and a device that only takes time."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import request_cpu

from flide_agent import default_model
from flide_agent.bench.shapes import built_in
from flide_agent.bench.sources import Generated
from flide_agent.bench.texts import Texts
from flide_agent.prompts import Prompts

FRONTS = 2


def spent(workload: str, clients: int, requests: int) -> dict[str, float]:
    """Milliseconds a request, by process and thread."""
    source = Generated(built_in().requests[workload], Texts(Prompts.load(default_model.DIRECTORY)), 0)
    tenants = -(-requests // source.rows) + -(-request_cpu.WARM // source.rows)
    with request_cpu.served(FRONTS, tenants) as server:
        return request_cpu.measure(server, source, clients, requests)


@pytest.mark.bars
@pytest.mark.parametrize(
    ("workload", "requests", "limit"), [("race_one", 1200, 1.0), ("quality_one", 200, 2.5), ("multirc", 300, 3.0)]
)
def test_processor_time_of_a_request(bar: Callable[..., None], workload: str, requests: int, limit: float) -> None:
    ms = spent(workload, 64, requests)
    bar(f"{workload}, 64 clients: processor time of the engine process a request, ms", ms.pop("engine process"), limit=limit,
        load=os.getloadavg()[0], **{name.replace(" ", "_"): value for name, value in ms.items()})  # fmt: skip


def test_it_is_measured() -> None:
    """The short form: all threads are told apart, and what they took is what the process took, about."""
    ms = spent("race_one", 8, 64)
    assert {"engine process", "front ends", "MainThread", "engine", "requests/s", "p50 ms", "a round"} <= set(ms)
    assert 0 < ms["MainThread"] + ms["engine"] <= ms["engine process"] + 1.0
