"""The engine process's side of a front end, frame by frame: whose work a frame ends, in whatever order frames come."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from flide_agent.api import frames as f
from flide_agent.api.backend import Answer
from flide_agent.api.desk import Desk
from flide_agent.asks import parse_systemone
from flide_agent.errors import NotFound
from flide_agent.line import Admission
from flide_agent.settings import Settings

ASK = f.to_json(parse_systemone({"state": "s", "questions": {"q": {"type": "noul", "instructions": "?"}}}, Settings()))


class Slow:
    """A backend whose decisions and events never come."""

    def __init__(self) -> None:
        self.deciding = self.cancelled = self.admitted = self.following = 0

    async def admit(self, tenant: str, size: int) -> Admission:
        self.admitted += 1

        def leave() -> None:
            self.admitted -= 1

        return Admission(leave)

    async def decide(self, tenant: str, ask: object, admitted: object) -> Answer:
        self.deciding += 1
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Answer(b"")

    async def follow(self, tenant: str, session: str, after: int) -> AsyncGenerator[bytes, None]:
        if session == "none":
            raise NotFound("no such session")
        return self._events()

    async def _events(self) -> AsyncGenerator[bytes, None]:
        self.following += 1
        try:
            yield b"first"
            await asyncio.sleep(1000)
        finally:
            self.following -= 1


def decide(id: int) -> f.Decide:
    return f.Decide(id, "t", ASK, "r", "")


async def some() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> tuple[Desk, Slow, list[Any]]:
    slow, sent = Slow(), list[Any]()
    desk = Desk(slow)  # type: ignore[arg-type]
    monkeypatch.setattr(desk.pipe, "send", sent.append)
    return desk, slow, sent


async def test_a_decision_that_comes_before_its_admission_s_task_has_ended_can_be_left(
    desk: tuple[Desk, Slow, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, slow, _ = desk
    # As when the front end is quicker than this loop's next turn.
    monkeypatch.setattr(at.pipe, "send", lambda frame: at._take(decide(frame.id)))
    at._take(f.Admit(1, "t"))
    await some()
    assert (slow.deciding, slow.admitted) == (1, 1), "it used the admission that it had"
    at._take(f.Leave(1))
    await some()
    assert (slow.cancelled, slow.admitted) == (1, 0)


async def test_what_is_left_at_once_never_begins_and_an_unused_admission_goes(desk: tuple[Desk, Slow, list[Any]]) -> None:
    at, slow, sent = desk
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        at._take(decide(1))
        at._take(f.Leave(1))
        await some()
    at._take(f.Admit(2, "t"))
    await some()
    assert slow.admitted == 1
    at._take(f.Leave(2))
    at._take(f.Leave(99))
    await some()
    assert (slow.deciding, slow.admitted) == (0, 0)
    assert [type(frame) for frame in sent] == [f.Answered]


async def test_the_end_of_a_front_end_ends_all_that_it_asked_for(desk: tuple[Desk, Slow, list[Any]]) -> None:
    at, slow, sent = desk
    for frame in (decide(1), f.Admit(2, "t"), f.Follow(3, "t", "s", 0), f.Follow(4, "t", "s", 0), f.Follow(5, "t", "none", 0)):
        at._take(frame)
    await some()
    assert [frame.id for frame in sent if isinstance(frame, f.Refused)] == [5]
    at._take(f.Next(6, 3))
    at._take(f.Next(7, 99))
    await some()
    bodies = {frame.id: frame.answer.body for frame in sent if isinstance(frame, f.Answered)}
    assert (bodies[6], bodies[7]) == (b"first", b""), "an unknown stream is one that has ended"
    at._take(f.Next(8, 3))
    await some()
    assert (slow.deciding, slow.admitted, slow.following) == (1, 2, 1)
    flush = asyncio.ensure_future(at.flush())
    await some()
    at._lost()
    await some()
    assert (slow.cancelled, slow.admitted, slow.following) == (1, 0, 0)
    assert at.gone.is_set()
    assert flush.done()
    assert not at._tasks
