"""The clients on a real server where they bring ahead and follow: prefetch and events, both of them."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_process import Running, Start

from flide_agent.client import AsyncClient, Client
from flide_agent.errors import HeadConflict, InvalidRequest, NotFound, UnexpectedReply, Unreachable
from flide_agent.replies import DeletedEvent, DurableEvent, Prefetched, SessionEvent, StepEvent
from flide_agent.wire import EventLines

NOUL: dict[str, Any] = {"q": {"type": "noul", "instructions": "Is it?"}}
HISTORY = [{"role": "user", "content": f"words of a history {i} " * 20} for i in range(8)]


def follow(url: str, session: str, sync: bool) -> tuple[list[SessionEvent], threading.Thread]:
    """What one of the clients reads until the stream ends, filled while the thread runs."""
    got: list[SessionEvent] = []

    def read() -> None:
        with Client(url) as client:
            got.extend(client.events(session))

    async def aread() -> None:
        async with AsyncClient(url) as client:
            async for event in client.events(session):
                got.append(event)

    thread = threading.Thread(target=read if sync else lambda: asyncio.run(aread()))
    thread.start()
    return got, thread


@pytest.mark.parametrize("sync", [True, False])
def test_events(server: Running, sync: bool) -> None:
    name = f"followed-{sync}"
    with server.client() as client:
        client.open_session(name)
        got, thread = follow(server.url, name, sync)
        replies = [client.decide(name, messages=HISTORY[:k], questions=NOUL) for k in (3, 5)]
        for event in client.events(name, after=1):
            assert isinstance(event, StepEvent)
            assert event.number == 2
            break
        end = time.monotonic() + 20
        while not all(s["durable"] for s in client.session(name)["steps"]):
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.5)
        client.decide(name, messages=HISTORY[:6], questions=NOUL)
        client.delete(name)
    thread.join(30)
    steps = [e for e in got if isinstance(e, StepEvent)]
    for step, reply in zip(steps, replies, strict=False):
        assert reply.x_session is not None
        assert (step.id, step.head, step.answers) == (name, reply.x_session.head, reply.answers)
        assert abs(step.at - time.time()) < 60
    assert [s.number for s in steps][:2] == [1, 2]
    durable = [e for e in got if isinstance(e, DurableEvent)]
    assert {d.head for d in durable} >= {s.head for s in steps[:2]}
    assert all(c["durable"] for d in durable for c in d.checkpoints)
    assert isinstance(got[-1], DeletedEvent)
    assert not thread.is_alive()


def test_a_deletion_ends_the_stream_also_when_nothing_is_awaited(server: Running) -> None:
    with server.client() as client:
        client.open_session("idle")
        client.decide("idle", messages=HISTORY[:3], questions=NOUL)
        got, thread = follow(server.url, "idle", True)
        end = time.monotonic() + 20
        while not any(isinstance(e, DurableEvent) for e in got):
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.6)
        client.delete("idle")
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(got[-1], DeletedEvent)


def test_a_stream_ends_with_the_server_and_errors_are_typed(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s")
    with server.client() as client:
        client.open_session("told")
        with pytest.raises(NotFound):
            next(client.events("nobody"))
    got, thread = follow(server.url, "told", True)
    time.sleep(0.5)
    assert server.stop() == 0
    thread.join(10)
    assert not thread.is_alive()
    assert got == []
    with Client(server.url) as client, pytest.raises(Unreachable):
        next(client.events("told"))

    async def gone() -> None:
        async with AsyncClient(server.url) as client:
            async for _ in client.events("told"):
                pass

    with pytest.raises(Unreachable):
        asyncio.run(gone())


def test_prefetch(start: Start, tmp_path: Path) -> None:
    first = start(tmp_path / "s")
    head = first.client().decide("run", messages=HISTORY, questions=NOUL).x_session
    assert head is not None
    assert first.stop() == 0
    again = start(tmp_path / "s")
    more = [{"role": "user", "content": "more"}]

    async def once() -> Prefetched:
        async with AsyncClient(again.url) as client:
            with pytest.raises(InvalidRequest):
                await client.prefetch("run")
            return await client.prefetch("run", messages=[*HISTORY, *more])

    with again.client() as client:
        loaded = client.prefetch("run", append=more, head=head.head)
        assert (loaded.tier, loaded.m) == ("disk", head.history_tokens // 64 * 64)
        assert loaded.loaded_bytes > 0
        with pytest.raises(HeadConflict):
            client.prefetch("run", append=more, head="0" * 32)
        nothing = client.prefetch("new", messages=[{"role": "user", "content": "never seen"}])
        assert (nothing.tier, nothing.m, nothing.loaded_bytes) == (None, 0, 0)
        assert client.session("run")["head"] == head.head, "nothing of the session changed"
    second = asyncio.run(once())
    assert (second.tier, second.m, second.history_tokens) == ("device", loaded.m, loaded.history_tokens)
    step = again.client().decide("run", append=more, head=head.head, questions=NOUL).x_session
    assert step is not None
    assert step.m == loaded.m
    assert again.stop() == 0


def test_lines_become_events() -> None:
    lines = EventLines()
    data = '{"id":"s","head":"h","step":1,"m":0,"reused_tokens":0,"computed_tokens":1,"reason":"new"}'
    text = f": follow\n\nid: 7\nevent: step\ndata: {data}\n\n"
    text += "event: later\ndata: {}\n\nevent:deleted\ndata:{}\n\n"
    got = [event for line in text.split("\n") if (event := lines.take(line)) is not None]
    assert [type(e) for e in got] == [StepEvent, DeletedEvent]
    assert got[0].number == 7  # type: ignore[union-attr]
    lines.take("event: durable")
    lines.take("data: {}")
    with pytest.raises(UnexpectedReply, match="durable"):
        lines.take("")


def test_a_stream_that_breaks_is_unreachable() -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("broken")

    with Client("http://test", transport=httpx.MockTransport(handler)) as client, pytest.raises(Unreachable, match="broken"):
        next(client.events("s"))
