"""Decisions for threads: the same as over the event loop, one session's after the other, and whole when the main thread is interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from flide_agent import views
from flide_agent.asks import parse_decide
from flide_agent.direct import Hand
from flide_agent.errors import UnknownModel
from flide_agent.local import LocalService
from flide_agent.settings import Settings

NOUL = {"q": {"type": "noul", "instructions": "Is it?"}}
MESSAGES = [{"role": "user", "content": f"message {i} " * 20} for i in range(6)]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalService]:
    with LocalService(Settings(memory_bytes=64 << 20, device="cpu")) as service:
        yield service


def test_the_same_as_over_the_event_loop(local: LocalService) -> None:
    for k in (2, 4, 4):
        here = local.decide("here", messages=MESSAGES[:k], questions=NOUL)
        ask = parse_decide({"messages": MESSAGES[:k], "questions": NOUL}, "loop", local.settings)
        there = local._wait(local.service.decider.decide(local.tenant, ask)).reply
        assert here.answers["q"].noul == there["answers"]["q"]["noul"]  # type: ignore[union-attr]
        assert here.x_session is not None
        assert (here.x_session.step, here.x_session.reason) == (there["x_session"]["step"], there["x_session"]["reason"])
    with pytest.raises(UnknownModel):
        local.systemone("a state", NOUL, model="another")


def test_steps_of_one_session_come_one_after_the_other(local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    decider = local.service.decider
    inside: list[int] = []
    most: list[int] = []
    prepare = decider._prepare

    def counted(*given: Any) -> Any:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        try:
            return prepare(*given)
        finally:
            inside.pop()

    monkeypatch.setattr(decider, "_prepare", counted)
    threads = [
        threading.Thread(target=local.decide, args=("turns",), kwargs={"messages": MESSAGES[: 1 + i], "questions": NOUL})
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    local.delete("here")  # over the event loop meanwhile
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert local.session("turns")["step"] == 4


def test_an_interrupted_main_thread_leaves_nothing_half_done(request: pytest.FixtureRequest) -> None:
    # A process that a shell starts in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    hand, done = Hand(), []
    hand.start()

    def work() -> str:
        time.sleep(1.0)
        done.append(threading.current_thread().name)
        return "whole"

    main = threading.get_ident()
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        hand(work)
    assert not done
    assert hand(work) == "whole"
    assert done == ["hand", "hand"]
    with pytest.raises(ZeroDivisionError):
        hand(lambda: 1 // 0)
    hand.close(5.0)
    assert not hand._thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        hand(work)


def test_other_threads_work_for_themselves() -> None:
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.append(Hand()(lambda: threading.current_thread().name)), name="own")
    thread.start()
    thread.join()
    assert names == ["own"]


def test_deletions_that_wait_for_the_disk_hold_up_no_step(local: LocalService, monkeypatch: pytest.MonkeyPatch) -> None:
    decider, disk = local.service.decider, Future[int]()
    monkeypatch.setattr(decider.sessions, "deleting", lambda *_: disk)
    ask = parse_decide({"messages": MESSAGES, "questions": NOUL}, "beside", local.settings)

    async def both() -> bool:
        deletions = [asyncio.create_task(views.delete(decider, local.tenant, f"gone-{i}")) for i in range(20)]
        await asyncio.sleep(0.2)
        answered = await asyncio.wait_for(decider.decide(local.tenant, ask), 30)
        waiting = not any(d.done() for d in deletions)
        disk.set_result(0)
        await asyncio.gather(*deletions)
        return waiting and bool(answered.reply["answers"])

    assert local._wait(both())
