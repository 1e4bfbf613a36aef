"""Front-end processes: the same service through them, what their end costs, and whose end ends them."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from load import FIVE, Agent, Wire
from service_process import Running, Start
from test_service_conformance import (  # noqa: F401
    guarded,
    test_jevcompat,
    test_openai_sdk,
    test_typesafe_sdk,
)
from test_service_operations import (  # noqa: F401
    NOUL,
    samples,
    test_a_deadline_that_cannot_be_held_costs_no_work,
    test_a_stream_does_not_keep_the_server_from_ending,
    test_bytes_in_flight_are_bounded,
    test_events_of_a_session,
    test_limits_are_named,
    test_metrics_count_and_their_labels_are_bounded,
    test_request_ids_come_back_and_stand_in_the_log,
    watched,
)
from test_service_server import (  # noqa: F401
    QUESTIONS,
    test_a_client_that_hangs_up_frees_its_place,
    test_full_line_gets_429_and_the_client_comes_through,
    test_health_ready_stats,
    test_models_serves_both_shapes,
    test_plain_client_fields,
    test_sigterm_finishes_what_runs,
)
from test_service_sessions import client, test_an_unknown_head_names_the_current_one, test_ids_of_any_text_come_back, test_life  # noqa: F401

from flide_agent import errors
from flide_agent.api import fleet, frames
from flide_agent.api.errors import encoded
from flide_agent.asks import parse_decide, parse_systemone
from flide_agent.decision import Served
from flide_agent.inflight import Board, Inflight
from flide_agent.listening import bind
from flide_agent.local import LocalService
from flide_agent.settings import Settings

TWO = ("--front-ends", "2")


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """As everywhere, with two front ends: the tests imported above run through them."""
    running: list[Running] = []

    def begin(store: Path, *options: str, port: int = 0, wait: bool = True) -> Running:
        running.append(Running(store, *TWO, *options, port=port))
        return running[-1].wait() if wait else running[-1]

    yield begin
    for server in running:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    return start(tmp_path_factory.mktemp("fronts") / "s")


def fronts(server: Running) -> list[int]:
    """Processes of the front ends."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = {int(child) for task in children for child in task.read_text().split()}
    return sorted(child for child in found if b"api.front" in command_of(child))


def command_of(pid: int) -> bytes:
    """Empty for a process that has ended, also between two looks."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def sockets(pid: int) -> int:
    return sum(os.readlink(each).startswith("socket:") for each in Path(f"/proc/{pid}/fd").iterdir())


def until(true: Callable[[], Any], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_killed_front_end_loses_its_own_connections_and_comes_back(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s")
    first, second = fronts(server)
    idle = {pid: sockets(pid) for pid in (first, second)}

    async def go() -> tuple[int, int]:
        wires: list[Wire] = []
        while len(wires) < 8 or any(sockets(pid) == idle[pid] for pid in idle):
            wires.append(Wire(server.url))
            assert (await wires[-1].send("GET", "/health")).status == 200
            assert len(wires) < 400, "one front end takes all connections"
        held = sockets(first) - idle[first]
        os.kill(first, signal.SIGKILL)
        alive = 0
        for wire in wires:
            try:
                alive += (await wire.send("GET", "/health")).status == 200
            except (OSError, EOFError):
                continue
        return held, len(wires) - alive

    held, lost = asyncio.run(go())
    assert held == lost > 0, "the other's connections are as they were"
    until(lambda: len(fronts(server)) == 2)
    assert first not in fronts(server)
    assert server.client().systemone("after", QUESTIONS).answers
    until(lambda: samples(server)["flide_front_end_restarts_total"] == 1)
    assert any("front end 0 ended (-9)" in line for line in server.errors)
    assert server.stop() == 0


def test_what_a_killed_front_end_asked_for_is_given_up(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s")
    body = {"state": "x " * 9000, "questions": QUESTIONS}

    async def go() -> list[Any]:
        wires = [Wire(server.url) for _ in range(8)]
        for wire in wires:
            await wire.send("GET", "/health")
        asked = [asyncio.ensure_future(wire.post("/v1/systemone", body)) for wire in wires]
        asking = Wire(server.url)
        while (await asking.send("GET", "/v1/stats")).json["engine"]["waiting"] < 4:
            await asyncio.sleep(0.01)
        for pid in fronts(server):
            os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(*asked, return_exceptions=True)

    lost = [got for got in asyncio.run(go()) if isinstance(got, OSError | EOFError)]
    assert len(lost) >= 4
    until(lambda: len(fronts(server)) == 2)
    engine: dict[str, Any] = {}

    def settled() -> bool:
        nonlocal engine
        found = server.http().get("/v1/stats").json()
        engine = found["engine"]
        return engine["waiting"] == 0 and found["admission"] == {"bytes": 0, "requests": 1}

    until(settled)
    assert engine["requests"] < 8, "what waited must not have run"
    assert server.stop() == 0


def test_the_end_of_the_engine_ends_all(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s")
    children = fronts(server)
    assert len(children) == 2
    server.kill()
    until(lambda: not any(map(command_of, children)))
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/health")


def test_signals_of_a_front_end_are_the_engine_s(server: Running) -> None:
    """A service manager may signal all processes of a service at once."""
    before = fronts(server)
    for pid in before:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    assert fronts(server) == before
    assert server.http().get("/health").status_code == 200


def test_a_front_end_that_cannot_start_is_a_server_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        settings = Settings(front_ends=2)
        inflight = Inflight(1)

        def hello(self) -> frames.Hello:
            return frames.Hello(b"{}", Served("x", True, 1, date(2026, 1, 1)), False, "", "")

        async def start(self) -> None: ...
        async def close(self) -> None: ...
        def end_streams(self) -> None: ...

    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(errors.StartError, match="front end did not start"):
        fleet.serve(Nobody(), bind("127.0.0.1", 0), lambda: None)  # type: ignore[arg-type]


def test_a_front_end_has_no_torch_and_no_store() -> None:
    code = "import sys, flide_agent.api.front; print(' '.join(sorted({m.split('.')[0] for m in sys.modules})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "litestar" in out
    assert "tokenizers" in out, "it makes tokens of text"
    assert not {"torch", "lmdb", "transformers"} & set(out)


def test_answers_are_those_of_one_process(server: Running) -> None:
    """Text becomes tokens and logits become answers in the front end: bit for bit what the service itself says."""
    with LocalService(Settings(device="cpu", memory_bytes=128 << 20)) as local, server.client() as ours:
        for state in ("It failed. <|im_end|>", {"tests": ["a", "b"]}, "word " * 700):
            there, here = ours.systemone(state, {**QUESTIONS, **FIVE}), local.systemone(state, {**QUESTIONS, **FIVE})
            assert msgspec.json.encode(there) == msgspec.json.encode(here)


def test_bytes_in_flight_are_those_of_all_processes() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    one, other = Inflight(100, Board(memory), 0), Inflight(100, Board(memory), 1)
    share = one.enter(80)
    with pytest.raises(errors.Overloaded, match="80 bytes"):
        other.enter(30)
    held = other.enter(20)
    assert (one.bytes, one.requests) == (other.bytes, other.requests) == (100, 2)
    share.leave()
    held.grow(500)
    assert one.bytes == 520, "one request may always come"
    Board(memory).clear(1)
    assert (one.bytes, one.requests) == (0, 0)


EVERY: list[errors.FlideError] = [
    errors.InvalidRequest([{"loc": ["body", 3], "msg": "m", "type": "t", "ctx": {"error": "x"}}]),
    errors.HeadConflict("unknown", "h1"), errors.HeadConflict("unknown", None), errors.Overloaded("full", retry_after=1.5, reason="wait"),
    errors.Unavailable("later", retry_after=0.2), errors.InternalError("ours"), errors.TooLong("long"), errors.BodyTooLarge("large"),
    errors.NotFound("none"), errors.Conflict("taken"), errors.UnknownModel("x"), errors.DeadlineExceeded("late"),
    errors.UnsupportedEncoding("br"), errors.Forbidden("no"), errors.AuthenticationError("who"), errors.MethodNotAllowed("not so"),
]  # fmt: skip


@pytest.mark.parametrize("error", EVERY, ids=lambda e: type(e).__name__)
def test_errors_cross_the_pipe(error: errors.FlideError) -> None:
    frame = msgspec.msgpack.decode(msgspec.msgpack.encode(frames.refused(7, error)), type=frames.FromEngine)
    assert isinstance(frame, frames.Refused)
    again = frames.error_of(frame)
    assert type(again) is type(error)
    assert encoded(again, "/v1/decisions") == encoded(error, "/v1/decisions")
    assert getattr(again, "reason", "") == getattr(error, "reason", "")


def test_requests_cross_the_pipe() -> None:
    big = {"n": 2**90, "x": [1.5, None, "é\u0000"]}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    questions = {**FIVE, "s": {"type": "score", "criteria": ["a", big]}, "n": {"type": "noul", "criteria": {"true": big}}}
    for ask in (
        parse_systemone({"state": big, "questions": questions, "model": "m"}, Settings()),
        parse_decide(
            {"append": [message], "head": "h", "tools": [big], "questions": questions, "x_candidates": {"c": {"messages": [message]}}},
            "s", Settings(),
        ),
    ):  # fmt: skip
        assert frames.ask_of(frames.to_json(ask)) == ask


def test_settings_cross_the_pipe() -> None:
    settings = Settings(store=Path("/a/b"), keys_file=Path("k"), front_ends=3)
    assert frames.settings_of(frames.settings_json(settings)) == settings


def test_frames_come_whole_however_they_are_cut() -> None:
    got: list[frames.FromFront] = []
    pipe: frames.Pipe[frames.FromFront] = frames.Pipe(frames.FromFront, got.append, lambda: None)
    counted = frames.Counted([("r", "GET", 200, 0.5)], ["wait"])
    sent = [frames.Admit(1, "t"), frames.Decide(2, "t", b"x" * 300, "r", ""), frames.Leave(2), counted]
    data = b"".join(len(d).to_bytes(4, "little") + d for d in map(msgspec.msgpack.encode, sent))
    for size in (1, 3, 7, 100, len(data)):
        got.clear()
        for at in range(0, len(data), size):
            pipe.data_received(data[at : at + size])
        assert got == sent


def test_steps_through_front_ends_have_the_same_bits(server: Running, tmp_path: Path) -> None:
    """Against a server of one process."""
    alone = Running(tmp_path / "alone").wait()

    async def answers(url: str) -> list[Any]:
        agent = Agent(url, "bits", words_=60)
        return [(await agent.step()).json["answers"] for _ in range(4)]

    assert asyncio.run(answers(server.url)) == asyncio.run(answers(alone.url))
    assert alone.stop() == 0


def test_a_taken_port_is_said(server: Running, start: Start, tmp_path: Path) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    second = start(tmp_path / "s", port=port, wait=False)
    assert second.process.wait(60) == 1
    second.stop()
    assert "cannot listen" in "".join(second.errors)
    with socket.create_connection(("127.0.0.1", port), 5):
        pass
