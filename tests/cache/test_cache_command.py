"""`flide-agent cache`: what it shows, what it refuses, and that what it writes is what a server finds again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session_house import House
from typer.testing import CliRunner

from flide_agent.cache.command import app
from flide_agent.default_model import DIRECTORY
from flide_agent.errors import HeadConflict, NotFound
from flide_agent.messages import Message
from flide_agent.prompts import Prompts

GRID = 64


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts.load(DIRECTORY)


@pytest.fixture
def house(tmp_path: Path, prompts: Prompts) -> Iterator[House]:
    house = House(tmp_path / "store", prompts)
    yield house
    house.store.close()


def text(what: str, words: int = 80) -> str:
    return " ".join(f"{what}-{i}" for i in range(words))


def fill(house: House, tenant: str = "default") -> None:
    """Three sessions: b is a fork of a that went on, c is alone."""
    shared = [Message("system", text("system")), Message("user", text("task"))]
    house.step("a", tenant, messages=shared)
    house.step("a", tenant, append=[Message("assistant", text("secretive"))])
    house.sessions.fork(tenant, "a", "b")
    house.step("b", tenant, append=[Message("user", text("fork"))])
    house.step("lonely-session", tenant, messages=[Message("user", text("aloneness"))])
    assert house.store.flush(20)


def run(*arguments: Any, code: int | None = 0) -> str:
    """Its output. code: None for any."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert code is None or result.exit_code == code, (result.output, result.exception)
    return result.output


def told(*arguments: Any, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code))


def beside(*arguments: Any, code: int = 0) -> str:
    """The same in a process of its own, as it runs beside a server."""
    command = [sys.executable, "-c", "from flide_agent.cache.command import app; app()", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def closed(house: House) -> Iterator[None]:
    """Nobody has the store meanwhile."""
    house.store.flush(20)
    house.store.close()
    yield
    house.start()


def test_what_reads_runs_beside_a_running_store(house: House, tmp_path: Path) -> None:
    fill(house)
    found = {line["id"]: line for line in json.loads(beside("ls", "--store", house.path, "--json"))}
    assert found.keys() == {"a", "b", "lonely-session"}
    assert "0 are bad, 0 belong to nobody" in beside("verify", "--store", house.path)
    assert "2 heads" in beside("export", "a", tmp_path / "a.flide", "--store", house.path)
    house.step("a", "default", append=[Message("user", "it still writes")])
    assert house.store.flush(10)


def test_what_writes_refuses_while_the_store_is_open(house: House, tmp_path: Path) -> None:
    fill(house)
    (tmp_path / "a.flide").write_bytes(b"")
    for arguments in (("gc",), ("forget", "a"), ("import", tmp_path / "a.flide")):
        output = run(*arguments, "--store", house.path, code=1)
        assert f"process {os.getpid()}" in output
    assert house.sessions.get("default", "a").step == 2


def test_ls_and_stat(house: House) -> None:
    fill(house)
    stats = house.store.stats()
    with closed(house):
        found = {line["id"]: line for line in told("ls", "--store", house.path)}
        assert [line["tenant"] for line in found.values()] == ["default"] * 3
        assert found["a"]["steps"] == 2
        assert found["a"]["shared"] > 0
        assert found["lonely-session"]["shared"] == 0
        assert 0 < found["a"]["checkpoints"] <= stats.disk_count
        total = told("stat", "--store", house.path)
        assert total["bytes"]["states"] + total["bytes"]["kv"] == stats.disk_bytes == total["tenants"]["default"]
        assert total["checkpoints"] == sum(total["kinds"].values()) == stats.disk_count
        assert total["sessions"] == 3
        assert total["counters"]["hits_device"] == stats.hits_device
        assert "lonely-session" in run("ls", "--store", house.path)
        assert "hit_rates" in run("stat", "--store", house.path)


def test_verify_finds_what_is_damaged(house: House) -> None:
    fill(house)
    stats = house.store.stats()
    house.store.close()
    good = told("verify", "--store", house.path)
    assert good["files"] == len(list(house.path.glob("objects/*/*")))
    assert good["bytes"] == stats.disk_bytes
    assert (good["bad"], good["orphans"]) == ([], 0)
    victim = sorted(house.path.glob("objects/*/*.state"))[0]
    data = bytearray(victim.read_bytes())
    data[4100] ^= 1
    victim.write_bytes(data)
    gone = sorted(house.path.glob("objects/*/*.kv"))[-1]
    gone.unlink()
    (house.path / "objects" / "aa" / "aastray.kv").write_bytes(b"x")
    bad = told("verify", "--store", house.path, code=1)
    assert len(bad["bad"]) == 2
    assert bad["orphans"] == 1
    assert bad["files"] == good["files"] - 2


def test_gc_removes_what_is_of_no_use(house: House) -> None:
    fill(house)
    house.store.close()
    (house.path / "objects" / "aa" / "aastray.kv").write_bytes(b"x" * 5000)
    sorted(house.path.glob("objects/*/*.state"))[0].unlink()
    swept = told("gc", "--store", house.path)
    assert swept["files"] >= 1
    assert told("verify", "--store", house.path) | {"files": 0, "bytes": 0} == {"files": 0, "bytes": 0, "bad": [], "orphans": 0}
    again = told("gc", "--store", house.path)
    assert (again["files"], again["notes"]) == (0, [])
    house.start()
    assert house.store.notes == ()
    assert house.store.stats().corrupt == 0
    _, m = house.step("b", "default", append=[Message("user", "on")])
    assert m > 0


@pytest.mark.parametrize("session", ["lonely-session", "a"])
def test_forget_leaves_nothing(house: House, session: str) -> None:
    fill(house)
    house.store.close()
    before = b"".join(p.read_bytes() for p in house.path.rglob("*") if p.is_file())
    assert b"lonely-session" in before
    done = told("forget", session, "--store", house.path)
    assert done["left"] == []
    assert done["sessions"] == 1
    assert (done["kept"] > 0) == (session == "a")
    assert {line["id"] for line in told("ls", "--store", house.path)} == {"a", "b", "lonely-session"} - {session}
    assert told("verify", "--store", house.path)["bad"] == []
    run("forget", session, "--store", house.path, code=1)
    after = b"".join(p.read_bytes() for p in house.path.rglob("*") if p.is_file())
    assert (b"lonely-session" in after) == (session == "a")
    house.start()
    with pytest.raises(NotFound):
        house.sessions.get("default", session)
    _, m = house.step("b", "default", append=[Message("user", "on")])
    assert m > GRID


def test_the_proof_would_see_what_is_left(house: House) -> None:
    """Negative control: something of it lies in the directory still."""
    fill(house)
    house.store.close()
    (house.path / "backup.txt").write_text("copied: lonely-session")
    done = told("forget", "lonely-session", "--store", house.path, code=1)
    assert done["left"] == ["session id 'lonely-session' in backup.txt"]


def test_forget_a_tenant(house: House) -> None:
    fill(house)
    fill(house, "other")
    house.store.close()
    done = told("forget", "--all", "--tenant", "other", "--store", house.path)
    assert (done["sessions"], done["left"], done["kept"]) == (3, [], 0)
    total = told("stat", "--store", house.path)
    assert list(total["tenants"]) == ["default"]
    assert total["sessions"] == 3
    assert told("verify", "--store", house.path)["bad"] == []
    house.start()


def test_a_session_goes_to_another_store_and_on(house: House, tmp_path: Path, prompts: Prompts) -> None:
    fill(house)
    before = house.sessions.get("default", "b")
    house.store.close()
    run("export", "b", tmp_path / "b.flide", "--store", house.path)
    run("export", "b", tmp_path / "b.flide", "--store", house.path, code=1)  # it exists
    run("export", "nobody", tmp_path / "n.flide", "--store", house.path, code=1)
    assert not (tmp_path / "n.flide").exists()
    other = House(tmp_path / "other", prompts)
    other.store.close()
    run("import", tmp_path / "b.flide", "--tenant", "u", "--as", "moved", "--store", other.path)
    run("import", tmp_path / "b.flide", "--tenant", "u", "--as", "moved", "--store", other.path, code=1)  # it exists
    assert told("verify", "--store", other.path)["bad"] == []
    other.start()
    info = other.sessions.get("u", "moved")
    assert (info.messages, info.tokens, len(info.steps)) == (before.messages, before.tokens, len(before.steps))
    assert [[c.m for c in s.checkpoints] for s in info.steps] == [[c.m for c in s.checkpoints] for s in before.steps]
    assert all(s.durable for s in info.steps)
    for number in range(len(info.steps)):  # every head can be gone on from, with the right bits (House.step looks)
        _, m = other.step("moved", "u", append=[Message("user", f"on {number}")], head=info.steps[number].head)
        assert m >= info.steps[number].tokens // GRID * GRID
    with pytest.raises(HeadConflict):
        other.sessions.begin("u", "moved", append=[], head=before.head)  # heads are keyed by store and tenant
    other.store.close()
    assert told("forget", "moved", "--tenant", "u", "--store", other.path)["left"] == []
    assert not list(other.path.glob("objects/*/*"))
    # back where it came from the heads are the same
    run("forget", "b", "--store", house.path)
    run("import", tmp_path / "b.flide", "--store", house.path)
    house.start()
    assert house.sessions.get("default", "b").head == before.head
    assert house.step("b", "default", append=[Message("user", "x")])[1] == before.tokens // GRID * GRID


def test_damaged_bundles_are_refused_whole(house: House, tmp_path: Path, prompts: Prompts) -> None:
    fill(house)
    with closed(house):
        run("export", "a", tmp_path / "a.flide", "--store", house.path)
    good = (tmp_path / "a.flide").read_bytes()
    other = House(tmp_path / "other", prompts)
    other.store.close()
    for at in (*range(100, len(good), len(good) // 25), len(good) - 10):
        data = bytearray(good)
        data[at] ^= 0xFF
        (tmp_path / "bad.flide").write_bytes(data)
        result = CliRunner().invoke(app, ["import", str(tmp_path / "bad.flide"), "--store", str(other.path)])
        assert result.exit_code in (0, 1), result.exception
        if result.exit_code:
            assert told("ls", "--store", other.path) == []
            assert not list(other.path.glob("objects/*/*"))
        else:  # a byte that nothing reads, such as padding between entries
            assert told("verify", "--store", other.path)["bad"] == []
            run("forget", "a", "--store", other.path)
    (tmp_path / "bad.flide").write_bytes(b"no archive")
    assert "cannot be imported" in run("import", tmp_path / "bad.flide", "--store", other.path, code=1)


def test_what_cannot_be_written_or_named_is_a_clear_line(house: House, tmp_path: Path) -> None:
    fill(house)
    with closed(house):
        assert "cannot be written" in run("export", "a", tmp_path / "none" / "a.flide", "--store", house.path, code=1)
        run("export", "a", tmp_path / "a.flide", "--store", house.path)
        for wrong in (("--as", "a/b"), ("--as", ""), ("--as", "x\ny"), ("--tenant", "../x")):
            run("import", tmp_path / "a.flide", *wrong, "--store", house.path, code=1)
        assert len(told("ls", "--store", house.path)) == 3
        victim = max(house.path.glob("objects/*/*.state"), key=lambda p: p.stat().st_size)
        victim.write_bytes(victim.read_bytes()[:-1])
        names = ("a", "b", "lonely-session")
        found = [run("export", name, tmp_path / f"{name}.2", "--store", house.path, code=None) for name in names]
        assert any("are damaged" in each for each in found)


def test_another_model_is_refused(house: House, tmp_path: Path) -> None:
    fill(house)
    with closed(house):
        run("export", "a", tmp_path / "a.flide", "--store", house.path)
    prompts = Prompts.load(DIRECTORY)
    prompts.digest = "another wording"
    other = House(tmp_path / "other", prompts)
    other.store.close()
    assert "was written by" in run("import", tmp_path / "a.flide", "--store", other.path, code=1)


def test_no_store_is_a_clear_line(tmp_path: Path) -> None:
    for command in ("ls", "stat", "verify", "gc"):
        assert "there is no store" in run(command, "--store", tmp_path, code=1)
    assert not list(tmp_path.iterdir())
    run("forget", "--store", tmp_path, code=2)
