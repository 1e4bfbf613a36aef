"""What a request outside sessions costs the engine process, with front ends before it and a device that only takes time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
import request_cpu

from flide_agent import default_model
from flide_agent.bench.shapes import Shape, built_in
from flide_agent.bench.sources import Generated
from flide_agent.bench.texts import Texts
from flide_agent.prompts import Prompts

FRONTS = 2


MANY = [Shape(2000, (89,) * 64)] * 65
"""As `flide-agent bench questions` asks; more of them than the branches of 4,096 questions that are kept, so all are new."""


def spent(shapes: Sequence[Shape], clients: int, requests: int, fronts: int = FRONTS) -> dict[str, float]:
    """Milliseconds a request, by process and thread."""
    source = Generated(shapes, Texts(Prompts.load(default_model.DIRECTORY)), 0)
    tenants = -(-requests // source.rows) + -(-max(request_cpu.WARM, 2 * source.rows) // source.rows)
    with request_cpu.served(fronts, tenants) as server:
        return request_cpu.measure(server, source, clients, requests)


@pytest.mark.bars
@pytest.mark.parametrize(
    ("workload", "requests", "limit"), [("race_one", 1200, 1.0), ("quality_one", 200, 2.5), ("multirc", 300, 3.0)]
)
def test_processor_time_of_a_request(bar: Callable[..., None], workload: str, requests: int, limit: float) -> None:
    ms = spent(built_in().requests[workload], 64, requests)
    bar(f"{workload}, 64 clients: processor time of the engine process a request, ms", ms.pop("engine process"), limit=limit,
        load=os.getloadavg()[0], **{name.replace(" ", "_"): value for name, value in ms.items()})  # fmt: skip


@pytest.mark.bars
def test_processor_time_of_a_request_of_64_questions(bar: Callable[..., None]) -> None:
    """One client, no front ends, a cold state of 2,000 tokens and 64 questions that nobody has asked yet."""
    ms = spent(MANY, 1, len(MANY), fronts=0)
    bar("64 questions, one client: processor time of the engine process a request, ms", ms.pop("engine process"), limit=30.0,
        load=os.getloadavg()[0], **{name.replace(" ", "_"): value for name, value in ms.items()})  # fmt: skip


def test_it_is_measured() -> None:
    """The short form: all threads are told apart, and what they took is what the process took, about."""
    ms = spent(built_in().requests["race_one"], 8, 64)
    assert {"engine process", "front ends", "MainThread", "engine", "requests/s", "p50 ms", "a round"} <= set(ms)
    assert 0 < ms["MainThread"] + ms["engine"] <= ms["engine process"] + 1.0
