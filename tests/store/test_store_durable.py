"""How long after its answer a step would survive a crash, on a real server that has nothing else to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "service"))

from service_process import Running

QUESTIONS = {"q": {"type": "noul", "instructions": "Is it done?"}}


def seconds_until_durable(path: Path, steps: int) -> list[float]:
    """From a step's answer until `GET /v1/sessions/{id}` lists the step and all its checkpoints as durable."""
    server = Running(path).wait()
    try:
        out = []
        with server.client() as client:
            for step in range(steps):
                messages = [{"role": "user", "content": f"{n} went well. " * 30} for n in range(1 + step)]
                done = client.decide("idle", questions=QUESTIONS, messages=messages).x_session
                assert done is not None
                start = time.perf_counter()
                while True:
                    seen = client.session("idle")["steps"][-1]
                    assert seen["head"] == done.head
                    if seen["durable"] and all(c["durable"] for c in seen["checkpoints"] if c["tiers"]):
                        break
                    assert time.perf_counter() - start < 30, seen
                    time.sleep(0.005)
                out.append(time.perf_counter() - start)
                assert any(c["durable"] for c in seen["checkpoints"])
                time.sleep(0.3)
        return out
    finally:
        server.kill()


def test_a_step_becomes_durable_by_itself(tmp_path: Path) -> None:
    assert max(seconds_until_durable(tmp_path / "store", 3)) < 10


@pytest.mark.bars
def test_at_idle_a_step_is_durable_within_a_second(tmp_path: Path, bar: Callable[..., None]) -> None:
    times = seconds_until_durable(tmp_path / "store", 20)
    bar("store: a step's answer until it is durable at idle, worst of 20 (s)", max(times), limit=1.0, median=sorted(times)[10])
