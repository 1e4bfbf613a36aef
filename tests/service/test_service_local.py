"""The service in process: the same methods, replies and errors as the client against a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flide_engine.memory import PoolFull
from service_process import Running, Start

from flide_agent.asks import parse_decide
from flide_agent.client import Client
from flide_agent.errors import FlideError, HeadConflict, InvalidRequest, NotFound, StartError, TooLong, UnknownModel
from flide_agent.local import LocalService
from flide_agent.replies import Reply
from flide_agent.settings import Settings

NOUL = {"q": {"type": "noul", "instructions": "Is it?"}}
MESSAGES = [{"role": "user", "content": f"message {i} " * 20} for i in range(6)]
SMALL = Settings(memory_bytes=64 << 20, device="cpu")


@pytest.fixture(scope="module")
def local() -> Iterator[LocalService]:
    with LocalService(SMALL) as service:
        yield service


@pytest.fixture(scope="module")
def client(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Of a server that nobody else asks: what it has computed is compared too."""
    server: Running = start(tmp_path_factory.mktemp("twin") / "s")
    return server.client()


def bare(reply: Reply) -> Reply:
    """Without what may differ: the times, and the head, which is keyed by a secret of the store."""
    assert reply.x_session is not None
    step = msgspec.structs.replace(reply.x_session, latency=None, head="")
    return msgspec.structs.replace(reply, x_session=step)


def test_the_same_steps_give_the_same_replies(local: LocalService, client: Client) -> None:
    for k in (2, 4, 6, 6):
        here = local.decide("same", messages=MESSAGES[:k], questions=NOUL)
        there = client.decide("same", messages=MESSAGES[:k], questions=NOUL)
        assert bare(here) == bare(there)
    assert local.systemone("a state", NOUL) == client.systemone("a state", NOUL)
    names = {"created", "updated", "steps", "head"}
    assert {k: v for k, v in local.session("same").items() if k not in names} == {
        k: v for k, v in client.session("same").items() if k not in names
    }


Call = Callable[[Any], object]
MISTAKES: list[tuple[type[FlideError], Call]] = [
    (InvalidRequest, lambda s: s.systemone(None, NOUL)),
    (InvalidRequest, lambda s: s.systemone("s", {})),
    (InvalidRequest, lambda s: s.decide("x", questions=NOUL)),
    (InvalidRequest, lambda s: s.decide("a/b", messages=MESSAGES, questions=NOUL)),
    (InvalidRequest, lambda s: s.decide("x", messages=[{"role": 1}], questions=NOUL)),
    (UnknownModel, lambda s: s.systemone("s", NOUL, model="other")),
    (TooLong, lambda s: s.systemone("word " * 140_000, NOUL)),
    (NotFound, lambda s: s.session("nobody")),
    (NotFound, lambda s: s.delete("nobody")),
    (HeadConflict, lambda s: s.decide("nobody", append=MESSAGES, head="h", questions=NOUL)),
]


@pytest.mark.parametrize(("kind", "call"), MISTAKES)
def test_the_same_mistakes_give_the_same_errors(
    local: LocalService, client: Client, kind: type[FlideError], call: Call
) -> None:
    said = []
    for service in (local, client):
        if service is client and kind is InvalidRequest and "a/b" in str(call.__code__.co_consts):
            continue  # a slash cannot come through a path
        with pytest.raises(kind) as e:
            call(service)
        said.append(e.value.message)
    assert len(set(said)) == 1


def test_threads_share_one(local: LocalService) -> None:
    def run(i: int) -> list[Any]:
        return [local.decide(f"t{i}", messages=[{"role": "user", "content": f"run {i}"}, *MESSAGES[:k]], questions=NOUL).answers
                for k in range(1, 5)]  # fmt: skip

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(4)))
    for i in range(4):
        local.delete(f"t{i}")
        assert run(i) == together[i]


def test_a_temporary_store_goes_and_a_named_one_stays(tmp_path: Path) -> None:
    with LocalService(SMALL) as service:
        path = Path(service.service.settings.store or "")
        assert path.is_dir()
    assert not path.exists()
    named = msgspec.structs.replace(SMALL, store=tmp_path / "s")
    with LocalService(named) as service:
        first = service.decide("kept", messages=MESSAGES, questions=NOUL)
    with LocalService(named) as service:
        second = service.decide("kept", messages=MESSAGES, questions=NOUL)
    assert second.x_session is not None
    assert second.x_session.m > 0
    assert second.x_session.reason == "repeat"
    assert second.answers == first.answers


def test_small_memory_evicts_and_stays_exact() -> None:
    """Far more sessions than the pool holds: everything is answered, and with the bits of a pool that holds all."""
    tiny = Settings(memory_bytes=6 << 20, device="cpu")
    want: dict[int, Any] = {}
    with LocalService(SMALL) as service:
        for i in range(25):
            want[i] = service.systemone(f"state {i} " * 60, NOUL).answers
    with LocalService(tiny) as service:
        for i in [*range(25), *range(5)]:
            assert service.systemone(f"state {i} " * 60, NOUL).answers == want[i]
        stats = service.service.stats()
    assert stats["store"]["evicted_device"] > 0, "the pool was big enough, so nothing was tested"
    assert stats["engine"]["failed"] == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(model="no such model"), "no such model"),
        (Settings(device="cpu", dtype="bfloat16"), "bfloat16"),
        (Settings(device="cpu", memory_bytes=1000), "memory"),
        (
            Settings(device="cpu", model="dummy:tiny", memory_bytes=64 << 20),
            "tests of the engine alone, serve 'default' or .* dummy:0.8b",
        ),
    ],
)
def test_start_errors_say_what_to_change(settings: Settings, words: str) -> None:
    with pytest.raises(StartError, match=words), LocalService(settings):
        pass


def test_settings_are_checked() -> None:
    for bad in (
        {"port": 70000},
        {"dtype": "int8"},
        {"device": "tpu"},
        {"max_queue": 0},
        {"model": ""},
        {"max_state_tokens": -1},
        {"front_ends": 65},
    ):
        (name,) = bad
        with pytest.raises(ValueError, match=name):
            Settings(**bad)  # type: ignore[arg-type]


def test_nothing_is_left_behind() -> None:
    """Answered, cancelled at any moment, refused: afterwards every page and slot of the engine is free again."""
    with LocalService(SMALL) as service:
        inside = service.service
        decider, memory = inside.decider, inside.engine.memory

        async def ask(i: int) -> None:
            body = {"messages": [*MESSAGES[: 1 + i % 5], {"role": "user", "content": f"{i} " * 200}], "questions": NOUL}
            task = asyncio.ensure_future(decider.decide("default", parse_decide(body, f"s{i % 3}", SMALL)))
            if i % 4:  # most of them hang up, wherever they are by then
                await asyncio.sleep(0.01 * i)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def all_of_them() -> None:
            await asyncio.gather(*(ask(i) for i in range(40)))

        service._wait(all_of_them())
        assert 10 <= inside.stats()["engine"]["requests"] < 40
        for i in range(4):
            service.decide("kept", messages=MESSAGES[: i + 1], questions=NOUL)
            service.systemone(f"state {i} " * 50, NOUL)
        service._wait(decider.settle())
        assert all(service.systemone(f"state {i} " * 50, NOUL).usage.x_cached_tokens for i in range(4))
        for listed in service.sessions():
            service.delete(listed["id"])
        assert inside.store.flush(30)
        while inside.store.relieve(PoolFull(memory.pages, memory.slots)):
            pass
        assert memory.free() == (memory.pages, memory.slots)


def test_a_state_outside_sessions_is_written_when_it_comes_back(tmp_path: Path) -> None:
    """What was asked about once is not worth the disk: only a state that came again is there after a restart."""
    settings = msgspec.structs.replace(SMALL, store=tmp_path / "store")
    once, twice = (f"{name} was seen. " * 40 for name in ("One", "Two"))
    with LocalService(settings) as service:
        assert service.systemone(once, NOUL).usage.x_cached_tokens == 0
        assert service.systemone(twice, NOUL).usage.x_cached_tokens == 0
        again = service.systemone(twice, NOUL).usage.x_cached_tokens
        assert again > 0
        assert service.systemone(once[: len(once) // 2], NOUL).usage.x_cached_tokens == 0
    with LocalService(settings) as service:
        assert service.systemone(twice, NOUL).usage.x_cached_tokens == again
        assert service.systemone(once, NOUL).usage.x_cached_tokens == 0
