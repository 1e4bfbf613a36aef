"""A service that never stops sending, byte by byte, does not hold a step beyond its deadline."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from integration_agents import RISKY, Body, agent, calling, results, says
from langchain_core.messages import HumanMessage
from langchain_flide import FailPolicy, FlideDecisionModel, FlideMiddleware, GuardPolicy
from langchain_flide.errors import FlideTimeoutError
from langchain_flide.testing import call

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"


class Trickling:
    """Answers every request with one byte each 20 ms: from the status line on, or of the body after whole headers."""

    def __init__(self, part: str) -> None:
        self.whole, self.slow = (b"", HEAD + b" " * 1000) if part == "headers" else (HEAD, b" " * 1000)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sent = 0
        self.over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(self.whole)
                for byte in self.slow:
                    if self.over.wait(0.02):
                        return
                    connection.sendall(bytes([byte]))
                    self.sent += 1
            except OSError:
                return

    def close(self) -> None:
        self.over.set()
        self.listener.close()


@pytest.fixture(params=["headers", "body"])
def trickling(request: pytest.FixtureRequest) -> Iterator[Trickling]:
    server = Trickling(request.param)
    yield server
    server.close()


def ask(model: FlideDecisionModel, mode: str) -> Any:
    request: Any = {"state": [HumanMessage("Go.")], "questions": RISKY}
    return model.invoke(request) if mode == "sync" else asyncio.run(model.ainvoke(request))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_deadline_holds_against_a_trickle(trickling: Trickling, mode: str) -> None:
    start = time.monotonic()
    with pytest.raises(FlideTimeoutError):
        ask(FlideDecisionModel(base_url=trickling.url, timeout=0.5), mode)
    assert 0.4 < time.monotonic() - start < 2  # the whole trickle would take 20 s
    assert trickling.sent > 5  # it was sending all the time: no single read timed out


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_guard_that_meets_a_trickle_follows_its_fail_policy(trickling: Trickling, mode: str) -> None:
    body = Body()
    judge = FlideMiddleware(
        decisions=FlideDecisionModel(base_url=trickling.url),
        guard=GuardPolicy(questions=RISKY, risk={"look": "read", "drop": "irreversible"}),
        fail=FailPolicy(timeout=0.5),
    )
    acts = agent([calling(call("look"), call("drop")), "Done."], body.tools("look", "drop"), judge)
    start = time.monotonic()
    found = acts.invoke(says("Go.")) if mode == "sync" else asyncio.run(acts.ainvoke(says("Go.")))
    assert time.monotonic() - start < 3
    assert [name for name, _ in body.ran] == ["look"]
    assert [m.status for m in results(found["messages"])] == ["success", "error"]
