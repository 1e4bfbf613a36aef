"""What a step costs beside the engine: the service with an engine that computes nothing."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from load import FIVE, Agent, Wire, share, words
from null_engine import NullEngine, open_null

from flide_agent import asks
from flide_agent.api import body as bodies
from flide_agent.local import Service
from flide_agent.settings import Settings

HISTORY = 12_000
MESSAGE_WORDS = 270
"""About 300 tokens."""


EACH = 10
"""Steps on one copy of the history, which grows by them."""


async def submitting(folder: Path, history: int, copies: int) -> tuple[list[float], int]:
    """(milliseconds from body read to round submitted of each step, tokens of a step)."""
    service = cast(Service, open_null(Settings(store=folder)))
    engine, decider = cast(NullEngine, service.engine), service.decider
    random_ = random.Random(history)

    async def step(session: str, head: str | None, count: int) -> tuple[float, dict[str, Any]]:
        body: dict[str, Any] = {"questions": FIVE}
        new = [{"role": "tool", "content": words(random_, count)}]
        raw = msgspec.json.encode(body | ({"messages": new} if head is None else {"append": new, "head": head}))
        await asyncio.sleep(0.005)  # what ran behind the last answer is not this step's
        started = time.perf_counter()
        decision = await decider.decide("t", asks.parse_decide(bodies.decode(raw), session, service.settings))
        return 1e3 * (engine.ran - started), decision.reply["x_session"]

    said: dict[str, Any] = {"head": None, "history_tokens": 0}
    while (left := history - said["history_tokens"]) > 0:
        _, said = await step("base", said["head"], max(20, min(MESSAGE_WORDS, int(0.85 * left))))
    took: list[float] = []
    for copy in range(copies):
        service.sessions.fork("t", "base", f"copy-{copy}")
        now = said
        for _ in range(EACH):
            ms, now = await step(f"copy-{copy}", now["head"], MESSAGE_WORDS)
            took.append(ms)
    await service.close()
    return took, (now["history_tokens"] - said["history_tokens"]) // EACH


def measure(folder: Path, history: int, copies: int) -> tuple[float, int]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as the server does
    try:
        took, tokens = asyncio.run(submitting(folder, history, copies))
    finally:
        sys.setswitchinterval(before)
    return share(took, 0.5), tokens


def test_a_step_is_submitted_soon(tmp_path: Path) -> None:
    ms, tokens = measure(tmp_path / "s", 2_000, 2)
    assert 250 < tokens < 400
    assert ms < 20, "ten times the bar: what it should be is measured by the bars"


@pytest.mark.bars
def test_host_time(tmp_path: Path, bar: Callable[..., None]) -> None:
    short, _ = measure(tmp_path / "a", 2_000, 10)
    ms, tokens = measure(tmp_path / "b", HISTORY, 20)
    long, _ = measure(tmp_path / "c", 42_000, 10)
    load = os.getloadavg()[0]
    bar("host time of a step, 12k tokens, one of 300, 5 questions: body read to round submitted, ms",
        ms, limit=2.0, tokens=tokens, load=load)  # fmt: skip
    bar(
        "host time of a step: growth per 1,000 tokens, ms", (long - short) / 40, limit=0.05, at_2k=short, at_42k=long, load=load
    )


@contextmanager
def null(folder: Path, fronts: int = 0) -> Iterator[tuple[str, int]]:
    """(url, process) of a server with an engine that computes nothing."""
    command = [sys.executable, str(Path(__file__).with_name("null_engine.py")), str(folder), str(fronts)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    try:
        yield next(word for word in process.stdout.readline().split() if word.startswith("http://")), process.pid
    finally:
        process.terminate()
        process.stdout.close()
        code = process.wait(90)
    assert code == 0


@pytest.fixture
def null_server(tmp_path: Path) -> Iterator[str]:
    with null(tmp_path / "s") as (url, _):
        yield url


async def one_client(url: str, copies: int) -> list[float]:
    base = Agent(url, "base", words_=MESSAGE_WORDS)
    await base.grow(HISTORY)
    took = []
    for i in range(copies):
        agent = Agent(url, f"copy-{i}", words_=MESSAGE_WORDS)
        assert (await base.wire.post("/v1/sessions/base/fork", {"id": agent.name})).status == 201
        agent.head = base.head
        for _ in range(EACH):
            got = await agent.step()
            assert got.status == 200, got.body
            took.append(got.ms)
    return took


async def many_clients(url: str, clients: int, seconds: float) -> tuple[float, list[float]]:
    """(steps a second, milliseconds of each)."""
    agents = [Agent(url, f"a{i}", words_=MESSAGE_WORDS) for i in range(clients)]
    for agent in agents:
        await agent.grow(4_000)
    took: list[float] = []
    started = time.perf_counter()

    async def go(agent: Agent) -> None:
        while time.perf_counter() - started < seconds:
            got = await agent.step()
            assert got.status == 200, got.body
            took.append(got.ms)

    await asyncio.gather(*map(go, agents))
    return len(took) / (time.perf_counter() - started), took


@pytest.mark.bars
def test_http_overhead(null_server: str, bar: Callable[..., None]) -> None:
    took = asyncio.run(one_client(null_server, 30))
    load = os.getloadavg()[0]
    bar("HTTP round trip of a step, one client, p50 ms", share(took, 0.5), limit=4.0, p90=share(took, 0.9), load=load)
    # The median of three spans: single ones vary by a tenth on a virtual machine.
    spans = [asyncio.run(many_clients(null_server, 32, 8.0)) for _ in range(3)]
    rate, many = sorted(spans, key=lambda span: span[0])[1]
    load = os.getloadavg()[0]
    bar("32 clients, steps a second", rate, at_least=400, p50=share(many, 0.5), p99=share(many, 0.99), load=load,
        spans=[round(r, 1) for r, _ in spans])  # fmt: skip


def processor_seconds(pid: int) -> float:
    """That a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.bars
@pytest.mark.parametrize("fronts", [0, 1, 2])
def test_front_ends(tmp_path: Path, bar: Callable[..., None], fronts: int) -> None:
    """What front ends take off the engine process; only the times say something where other work runs beside."""
    with null(tmp_path / "s", fronts) as (url, pid):
        asyncio.run(many_clients(url, 32, 0.5))
        children = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        before = {each: processor_seconds(each) for each in (pid, *children)}
        rate, took = asyncio.run(many_clients(url, 32, 8.0))
        ms = {each: 1e3 * (processor_seconds(each) - then) / len(took) for each, then in before.items()}
    assert len(children) == fronts
    bar(f"{fronts} front ends: processor time of the engine process a step, ms", ms[pid], limit=5.0, steps_a_second=rate,
        front_ends=sum(ms[c] for c in children), p50=share(took, 0.5), load=os.getloadavg()[0])  # fmt: skip


def test_the_null_server_serves(null_server: str) -> None:
    async def go() -> int:
        agent = Agent(null_server, "x")
        assert (await agent.step(10)).status == 200
        assert (await agent.step(400)).json["x_session"]["step"] == 2
        return (await Wire(null_server).send("GET", "/health")).status

    assert asyncio.run(go()) == 200
