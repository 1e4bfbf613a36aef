"""What is done behind answers: when it is done, and that a request sees what the one before it left."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flide_engine.memory import PoolFull
from null_engine import open_null

from flide_agent.asks import parse_systemone
from flide_agent.behind import FEW, LATEST, Behind
from flide_agent.settings import Settings
from flide_agent.store import CheckpointStore
from flide_agent.waiting import Waits

QUESTION = {"failed": {"type": "noul", "instructions": "Did the last command fail?"}}


class Noting:
    """A store that writes down what it is told. failing: what of that it refuses."""

    def __init__(self, failing: str = "") -> None:
        self.log: list[tuple[str, Any]] = []
        self._failing = failing

    def resumed(self, share_key: bytes, tokens: Any, m: int, session: None) -> None:
        self.log.append(("resumed", tokens))
        if tokens == self._failing:
            raise OSError("no")

    def publish(self, share_key: bytes, tokens: Any, checkpoint: Any, session: None, kind: object) -> None:
        self.log.append(("published", checkpoint))


def answered(tokens: str, m: int = 16) -> Waits:
    return cast(Waits, SimpleNamespace(share_key=b"", tokens=tokens, m=m))


def behind(store: Noting, threads: ThreadPoolExecutor) -> Behind:
    return Behind(cast(CheckpointStore, store), threads)


async def test_it_waits_for_the_reply_and_comes_before_the_next_request() -> None:
    with ThreadPoolExecutor(1) as threads:
        b = behind(store := Noting(), threads)
        b.publish(answered("a"), cast(Any, {16: "first", 32: "second"}))
        b.publish(answered("nothing", 0), {})
        assert not store.log, "the reply has not left yet"
        b.replied()
        asyncio.get_running_loop().call_soon(lambda: store.log.append(("next request", "")))
        assert not store.log
        await asyncio.sleep(0)
        assert store.log == [("resumed", "a"), ("published", "first"), ("published", "second"), ("next request", "")]
        await asyncio.sleep(2 * LATEST)
        assert len(store.log) == 4, "the clock does not do it once more"


async def test_without_a_word_of_the_reply_it_is_done_soon() -> None:
    with ThreadPoolExecutor(1) as threads:
        b = behind(store := Noting(), threads)
        b.publish(answered("a"), {})
        await asyncio.sleep(LATEST / 5)
        assert not store.log
        for _ in range(200):
            await asyncio.sleep(0.01)
            if store.log:
                break
        assert store.log == [("resumed", "a")]


async def test_many_are_done_by_a_thread_and_settling_waits_for_it() -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(time.sleep, 0.1)  # the loop goes on meanwhile
        b = behind(store := Noting(), threads)
        for i in range(FEW + 1):
            b.publish(answered(str(i)), {})
        b.replied()
        await asyncio.sleep(0.01)
        assert not store.log
        await b.settle()
        assert store.log == [("resumed", str(i)) for i in range(FEW + 1)]
        b.publish(answered("last"), {})
        await b.settle()
        assert store.log[-1] == ("resumed", "last")


class Held(ThreadPoolExecutor):
    """Runs nothing. asked: what it was asked for."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked: list[tuple[Any, Future[None]]] = []

    def submit(self, work: Any, *_: Any, **__: Any) -> Any:
        self.asked.append((work, Future()))
        return self.asked[-1][1]


async def test_what_comes_as_a_thread_ends_is_not_left() -> None:
    with Held() as threads:
        b = behind(store := Noting(), threads)
        for i in range(FEW + 1):
            b.publish(answered(str(i)), {})
        b.replied()
        await asyncio.sleep(0)
        b.replied()
        await asyncio.sleep(0)
        ((_, thread),) = threads.asked
        thread.set_result(None)  # it had seen the last before these came
        for _ in range(200):
            await asyncio.sleep(0.01)
            if len(threads.asked) > 1:
                break
        threads.asked[1][0]()
        assert store.log == [("resumed", str(i)) for i in range(FEW + 1)]


def test_a_thread_without_a_loop_publishes_itself() -> None:
    with ThreadPoolExecutor(1) as threads:
        b = behind(store := Noting(), threads)
        b.publish(answered("a"), cast(Any, {16: "first"}))
        assert store.log == [("resumed", "a"), ("published", "first")]


async def test_one_that_fails_takes_no_other_along() -> None:
    with ThreadPoolExecutor(1) as threads:
        b = behind(store := Noting("bad"), threads)
        for name in ("bad", "good"):
            b.publish(answered(name), {})
        b.catch_up()
        assert store.log == [("resumed", "bad"), ("resumed", "good")]
        await b.settle()


@pytest.mark.parametrize("caught_up", [True, False])
async def test_a_request_right_behind_another_goes_on_from_its_state(
    tmp_path: Path, caught_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a moment between them, and without a reply that says so. Not caught up, it finds nothing."""
    service = open_null(Settings(store=tmp_path))
    if not caught_up:
        monkeypatch.setattr(Behind, "catch_up", lambda self: None)
    decider = service.decider
    try:
        found = []
        for number in range(5):
            state = f"{number}: " + "the tests ran and one of them failed; " * 20
            for _ in range(2):
                decision = await decider.decide("t", parse_systemone({"state": state, "questions": QUESTION}, service.settings))
                found.append(decision.m > 0)
        assert found == [False, caught_up] * 5
    finally:
        monkeypatch.undo()
        await service.close()


@pytest.mark.parametrize("ours", [True, False])
async def test_what_waits_can_make_way_for_a_round(tmp_path: Path, ours: bool) -> None:
    """The store's own relief does not know of it."""
    service = open_null(Settings(store=tmp_path))
    decider, memory = service.decider, service.engine.memory
    try:
        state = "the tests ran and one of them failed; " * 20
        await decider.decide("t", parse_systemone({"state": state, "questions": QUESTION}, service.settings))
        assert memory.free() != (memory.pages, memory.slots), "a checkpoint waits to be published"
        full = PoolFull(memory.pages, memory.slots)
        assert (service.dispatcher.relieve(full) if ours else decider.store.relieve(full)) == ours
        assert (memory.free() == (memory.pages, memory.slots)) == ours
    finally:
        await service.close()
