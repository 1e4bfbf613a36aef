"""The server under more than it can do: who is refused and how soon, what the others feel, and what an end loses."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from load import Agent, Got, Wire, share
from service_process import Running, Start

from flide_agent.client import Client

TWO: dict[str, Any] = {
    "failed": {"type": "noul", "instructions": "Did the last command fail?"},
    "next": {"type": "choice", "instructions": "What next?", "criteria": {"edit": None, "test": "run the tests", "stop": None}},
}
SMALL_WORDS = 30
SIXTY_FOUR = {
    f"q{i}": {"type": "noul", "instructions": f"Is it true of what came last that it was number {i}?"} for i in range(64)
}


def agents(url: str, count: int, name: str) -> list[Agent]:
    return [Agent(url, f"{name}{i}", words_=SMALL_WORDS, questions=TWO) for i in range(count)]


def resident(process: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def closed(url: str, clients: int, seconds: float) -> float:
    """Steps a second with so many agents that each wait for their answer."""
    many, count, end = agents(url, clients, "closed"), 0, time.perf_counter() + seconds

    async def go(agent: Agent) -> None:
        nonlocal count
        while time.perf_counter() < end:
            got = await agent.step()
            assert got.status == 200, got.body
            count += 1

    started = time.perf_counter()
    await asyncio.gather(*map(go, many))
    return count / (time.perf_counter() - started)


async def opened(url: str, rate: float, seconds: float, pool: list[Agent]) -> list[Got]:
    """Steps that come at a rate, whatever the server does; each agent has at most one under way."""
    random_, idle, tasks, out = random.Random(5), list(pool), [], []
    at, end = time.perf_counter(), time.perf_counter() + seconds

    async def go(agent: Agent) -> None:
        out.append(await agent.step())
        idle.append(agent)

    while at < end:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        at += random_.expovariate(rate)
        if not idle:
            idle += agents(url, 16, f"more{len(pool)}-{len(tasks)}-")
        tasks.append(asyncio.ensure_future(go(idle.pop(0))))
    await asyncio.gather(*tasks)
    return out


def split(got: list[Got]) -> tuple[list[float], list[float], set[int]]:
    """(milliseconds of the accepted, of the refused, statuses)."""
    return [g.ms for g in got if g.status == 200], [g.ms for g in got if g.status == 429], {g.status for g in got}


async def steps(agent: Agent, count: int) -> list[float]:
    took = []
    for _ in range(count):
        got = await agent.step()
        assert got.status == 200, got.body
        took.append(got.ms)
    return took


@pytest.mark.bars
@pytest.mark.timeout(600)
def test_four_times_too_much(start: Start, tmp_path: Path, bar: Callable[..., None]) -> None:
    calm = start(tmp_path / "calm")
    capacity = asyncio.run(closed(calm.url, 8, 10.0))
    served, refused, _ = split(asyncio.run(opened(calm.url, 0.9 * capacity, 30.0, agents(calm.url, 40, "near"))))
    near = share(served, 0.99)
    assert len(refused) < 0.05 * len(served)
    assert calm.stop(60) == 0
    # The operator promises a time: whoever would wait for more than half of it is refused.
    server = start(tmp_path / "s", "--set", f"max_wait_seconds={near / 2e3:.3f}")
    asyncio.run(closed(server.url, 4, 2.0))
    before, started = resident(server.process.pid), time.perf_counter()
    got = asyncio.run(opened(server.url, 4 * capacity, 60.0, agents(server.url, 200, "flood")))
    grown = resident(server.process.pid) - before
    lasted, load = time.perf_counter() - started, os.getloadavg()[0]
    served, refused, statuses = split(got)
    after = asyncio.run(steps(Agent(server.url, "after", words_=SMALL_WORDS, questions=TWO), 20))
    assert server.stop(60) == 0
    broken: list[str] = []
    assert statuses == {200, 429}
    assert all(int(g.headers["retry-after"]) >= 1 for g in got if g.status == 429)
    told = {"capacity": capacity, "asked": len(got), "served": len(served), "refused": len(refused), "load": load}
    ratio = share(served, 0.99) / near
    for name, value, limits, more in (
        ("refusals, p99 ms", share(refused, 0.99), {"limit": 50}, {"p50": share(refused, 0.5)}),
        ("p99 of the accepted over p99 at 0.9 of capacity", ratio, {"limit": 2.0}, {"near": near}),
        ("served over capacity", len(served) / lasted / capacity, {"at_least": 0.6}, {}),
        ("memory grown, MiB", grown / 2**20, {"limit": 512}, {}),
        ("seconds until a step is as quick as before", recovered(after, near), {"limit": 2.0}, {"after": after[:5]}),
    ):
        try:
            bar(f"4 x overload: {name}", value, **limits, **more, **told)
        except AssertionError as e:
            broken.append(str(e))
    assert not broken


def recovered(after: list[float], near: float) -> float:
    """Seconds from the end of the flood until every further step takes no longer than near capacity."""
    slow = [i for i, ms in enumerate(after) if ms > near]
    return sum(after[: slow[-1] + 1]) / 1e3 if slow else 0.0


async def beside(url: str, count: int) -> tuple[list[float], list[float], int]:
    """(idle, beside a stream of 64-question requests, how many of those were answered)."""
    small = Agent(url, "small", words_=SMALL_WORDS, questions=TWO)
    await steps(small, 5)
    idle = await steps(small, count)
    answered = 0

    async def stream() -> None:
        nonlocal answered
        wire, number = Wire(url), 0
        while True:
            number += 1
            got = await wire.post("/v1/systemone", {"state": f"run {number} " * 40, "questions": SIXTY_FOUR})
            assert got.status == 200, got.body
            answered += 1

    task = asyncio.ensure_future(stream())
    await asyncio.sleep(0.5)
    busy = await steps(small, count)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return idle, busy, answered


@pytest.mark.bars
def test_small_steps_beside_large_ones(start: Start, tmp_path: Path, bar: Callable[..., None]) -> None:
    server = start(tmp_path / "s")
    idle, busy, answered = asyncio.run(beside(server.url, 120))
    assert answered > 3
    bar("p99 of small steps beside 64-question requests over p99 idle", share(busy, 0.99) / share(idle, 0.99), limit=3.0,
        idle=share(idle, 0.99), idle_p50=share(idle, 0.5), busy=share(busy, 0.99), busy_p50=share(busy, 0.5),
        large=answered, load=os.getloadavg()[0])  # fmt: skip
    assert server.stop(60) == 0


def test_small_steps_get_between_large_ones(server: Running) -> None:
    """The short form: a small step is answered while a large request runs."""
    idle, busy, _ = asyncio.run(beside(server.url, 5))
    assert share(busy, 0.5) < 10 * share(idle, 0.5)


async def until_refused(url: str, server: Running, clients: int, seconds: float) -> dict[str, str]:
    """Session -> head of its last answered step, of agents that go on until the server is gone."""
    heads: dict[str, str] = {}

    async def go(agent: Agent) -> None:
        while True:
            try:
                got = await agent.step()
            except (OSError, EOFError):
                return
            if got.status != 200:
                return
            assert agent.head is not None
            heads[agent.name] = agent.head

    tasks = [asyncio.ensure_future(go(agent)) for agent in agents(url, clients, "end")]
    await asyncio.sleep(seconds)
    server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*tasks)
    return heads


def lost(start: Start, folder: Path, clients: int, seconds: float) -> tuple[int, int, float]:
    """(answered sessions, those whose last answered step is not there after a restart, seconds that the end took)."""
    server = start(folder)
    heads = asyncio.run(until_refused(server.url, server, clients, seconds))
    started = time.perf_counter()
    assert server.stop(90) == 0, "".join(server.errors)
    took = time.perf_counter() - started
    assert "Traceback" not in "".join(server.errors)
    again = start(folder)
    with Client(again.url) as client:
        known = {s["id"]: s["head"] for s in client.sessions()}
        durable = {name: all(s["durable"] for s in client.session(name)["steps"]) for name in heads}
    assert again.stop(60) == 0
    return len(heads), sum(known.get(name) != head or not durable[name] for name, head in heads.items()), took


@pytest.mark.bars
def test_sigterm_under_load(start: Start, tmp_path: Path, bar: Callable[..., None]) -> None:
    worst = [lost(start, tmp_path / f"s{i}", 24, 4.0 + i) for i in range(3)]
    bar("SIGTERM under load: answered steps lost", sum(w[1] for w in worst), limit=0, sessions=sum(w[0] for w in worst),
        seconds=max(w[2] for w in worst))  # fmt: skip
