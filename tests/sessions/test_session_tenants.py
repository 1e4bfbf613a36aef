"""Two tenants with equal histories know nothing of each other: not by tokens, not by time, on no tier. The real path."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flide_engine.memory import PoolFull

from flide_agent import asks, wire
from flide_agent.local import LocalService
from flide_agent.settings import Settings

QUESTIONS = {"q": {"type": "noul", "instructions": "Is the agent stuck?"}}
Wire = dict[str, Any]


def history(seed: int, messages: int = 4, words: int = 25) -> list[Wire]:
    rng = random.Random(seed)
    roles = ["system", *["user", "assistant"] * messages]
    return [{"role": roles[i], "content": " ".join(str(rng.randrange(10**4)) for _ in range(words))} for i in range(messages)]


class House:
    """A service that is asked as any tenant."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start()

    def start(self) -> None:
        self.local = LocalService(Settings(device="cpu", store=self.path, memory_bytes=256 << 20, host_bytes=256 << 20))
        self.local.__enter__()

    def restart(self) -> None:
        self.local.close()
        self.start()

    def decide(self, tenant: str, session: str, messages: list[Wire]) -> tuple[dict[str, Any], float]:
        """(x_session, seconds)."""
        body = wire.decide_body(QUESTIONS, messages=messages, append=None, head=None, candidates=None, tools=None)
        ask = asks.parse_decide(body, session, self.local.settings)
        start = time.perf_counter()
        answered = self.local._wait(self.local.service.decider.decide(tenant, ask))
        seconds = time.perf_counter() - start
        reply: Any = answered if isinstance(answered, dict) else answered.reply
        done: dict[str, Any] = reply["x_session"]
        return done, seconds

    def to_host(self) -> None:
        """Nothing is on the device."""
        store = self.local.service.store
        assert store.flush(30)
        store.relieve(PoolFull(1 << 20, 1 << 20))
        assert store.stats().device_count == 0
        assert store.stats().host_count > 0

    def to_disk(self) -> None:
        """Nothing is on the device and the host."""
        self.to_host()
        store = self.local.service.store
        store._host.drop(list(store._host._entries))
        assert store.stats().host_bytes == 0


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "store")
    yield house
    house.local.close()


def compared(house: House, seed: int) -> None:
    """On every tier: B computes what a cold run computes, A again does not (else the first would show nothing)."""
    first = history(seed)
    cold, _ = house.decide("a", f"run-{seed}", first)
    assert cold["m"] == 0
    moves = {"device": lambda: None, "host": house.to_host, "disk": house.to_disk, "restarted": house.restart}
    for n, move in enumerate(moves.values()):
        move()
        stranger, _ = house.decide(f"b{n}", f"run-{seed}", first)
        assert (stranger["m"], stranger["reason"]) == (0, "new")
        assert stranger["computed_tokens"] == cold["computed_tokens"]
        assert stranger["head"] != cold["head"]
        again, _ = house.decide("a", f"run-{seed}", first)
        assert again["m"] > 0
        assert again["computed_tokens"] < cold["computed_tokens"]


def test_another_tenant_computes_everything(house: House) -> None:
    compared(house, 1)


def auc(ones: list[float], others: list[float]) -> float:
    """Probability that one of `ones` took less time than one of `others`."""
    wins = sum((a < b) + (a == b) / 2 for a in ones for b in others)
    return wins / (len(ones) * len(others))


@pytest.mark.bars
@pytest.mark.timeout(3000)
def test_time_tells_nothing(house: House, bar: Callable[..., None]) -> None:
    """B asks about pairs of a history that A has asked about and one that nobody has, one right after the other in random order, with
    A's on the device, the host and the disk. Only B's times count. Positive control: A's own second questions are told apart."""
    known, unknown, own = [], [], []
    rng = random.Random(5)
    for part in range(8):
        seeds = [1000 * part + i for i in range(25)]
        for seed in seeds:
            house.decide("a", f"run-{seed}", history(seed))
        (lambda: None, house.to_host, house.to_disk)[part % 3]()
        for seed in seeds:
            pair = [(seed, known), (seed + 500, unknown)]
            rng.shuffle(pair)
            for asked, times in pair:
                done, seconds = house.decide("b", f"guess-{asked}", history(asked))
                assert done["m"] == 0
                times.append(seconds)
        own += [house.decide("a", f"again-{seed}", history(seed))[1] for seed in seeds]
    assert len(known) == len(unknown) == 200
    control = auc(own, unknown)
    value = auc(known, unknown)
    bar("sessions: AUC of another tenant's latency, distance from 0.5", abs(value - 0.5), limit=0.1, auc=value, control=control)
    assert control > 0.9
