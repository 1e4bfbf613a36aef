"""API keys: who gets in, as whom, and how keys come and go while the server runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_process import Running, Start

from flide_agent import keys
from flide_agent.client import Client
from flide_agent.errors import AuthenticationError, NotFound, StartError
from flide_agent.keys import Keys, host_of, is_loopback, keys_of, new_key
from flide_agent.settings import Settings

NOUL = {"q": {"type": "noul", "instructions": "Is it?"}}
HISTORY = [{"role": "user", "content": f"message {i} of a long history " * 8} for i in range(6)]


class Held:
    """A server with keys, and the file that they are in."""

    def __init__(self, start: Start, folder: Path) -> None:
        self.file = folder / "keys"
        self.keys: dict[str, str] = {}
        lines = []
        for name, tenant in (("a1", "a"), ("a2", "a"), ("b", "b"), ("op", "operator")):
            self.keys[name], line = new_key(tenant)
            lines.append(f"{line}  # {name}")
        self.file.write_text("# the keys\n\n" + "\n".join(lines) + "\n")
        self.server: Running = start(folder / "s", "--keys-file", str(self.file))

    def client(self, name: str) -> Client:
        return Client(self.server.url, api_key=self.keys[name], retries=0)

    def get(self, path: str, key: str | None = None, **headers: str) -> httpx.Response:
        given = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.get(self.server.url + path, headers={**given, **headers})


@pytest.fixture(scope="module")
def held(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Held:
    return Held(start, tmp_path_factory.mktemp("held"))


def test_who_gets_in(held: Held) -> None:
    body = {"state": "s", "questions": NOUL}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": held.keys["a1"]}, {"authorization": "Bearer"}):
        reply = httpx.post(held.server.url + "/v1/systemone", json=body, headers=headers)
        assert reply.status_code == 401, headers
        assert reply.json()["detail"]["error_type"] == "authentication_error"
        assert reply.headers["www-authenticate"] == "Bearer"
    for name in held.keys:
        assert held.client(name).systemone("s", NOUL).answers
    assert httpx.post(
        held.server.url + "/v1/systemone", json=body, headers={"authorization": f"bearer {held.keys['b']}"}
    ).is_success


def test_what_needs_no_key_tells_nothing(held: Held) -> None:
    assert held.get("/health").json() == {"status": "ok"}
    assert held.get("/ready").json() == {"ready": True}
    assert "store" in held.get("/ready", held.keys["a1"]).json()
    assert held.get("/schema").is_success
    assert held.get("/v1/models").status_code == 401
    for path in ("/metrics", "/v1/stats", "/metrics/", "/v1/stats/", "//metrics"):
        assert held.get(path).status_code == 401, path
        assert held.get(path, held.keys["a1"]).status_code in (403, 404), path
    for path in ("/metrics", "/v1/stats"):
        assert held.get(path, held.keys["op"]).status_code == 200


def test_tenants_share_nothing(held: Held) -> None:
    """The same history: another tenant computes it again, the same tenant's other key does not."""
    first = held.client("a1").decide("run", messages=HISTORY, questions=NOUL)
    again = held.client("a2").decide("run", messages=HISTORY, questions=NOUL)
    other = held.client("b").decide("run", messages=HISTORY, questions=NOUL)
    assert [r.x_session.m > 0 for r in (first, again, other) if r.x_session] == [False, True, False]
    assert first.answers == again.answers == other.answers
    assert first.x_session is not None
    assert other.x_session is not None
    assert first.x_session.head != other.x_session.head, "not even the names of histories are the same"
    held.client("a1").open_session("only-a")
    with pytest.raises(NotFound):
        held.client("b").session("only-a")
    assert {s["id"] for s in held.client("b").sessions()} == {"run"}
    outside = held.client("a1").systemone("w " * 300, NOUL).usage.x_cached_tokens
    again = held.client("a2").systemone("w " * 300, NOUL)
    other = held.client("b").systemone("w " * 300, NOUL)
    assert (outside, again.usage.x_cached_tokens > 0, other.usage.x_cached_tokens) == (0, True, 0)


def test_keys_change_without_a_restart(held: Held) -> None:
    fresh, line = new_key("a")
    before = held.file.read_text()

    def until(key: str, status: int) -> None:
        end = time.monotonic() + 10
        while held.get("/v1/models", key).status_code != status:
            assert time.monotonic() < end, f"still not {status}"
            time.sleep(0.1)

    assert held.get("/v1/models", fresh).status_code == 401
    held.file.write_text(before + line + "\n")
    until(fresh, 200)
    assert Client(held.server.url, api_key=fresh).session("run")["id"] == "run", "a further key of the same tenant"
    held.file.write_text("not a keys file\n")
    time.sleep(keys.LOOK_SECONDS + 0.3)
    assert held.get("/v1/models", fresh).status_code == 200, "a broken file takes nobody's key away"
    held.file.write_text(before)
    until(fresh, 401)
    assert held.get("/v1/models", held.keys["a1"]).status_code == 200
    assert not any(key in "".join(held.server.errors) for key in [*held.keys.values(), fresh]), "no key is in the log"


def test_start_without_keys_beyond_loopback_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(keys.ENVIRONMENT, raising=False)
    assert keys_of(Settings()) is None
    assert keys_of(Settings(host="::1")) is None
    assert keys_of(Settings(host="0.0.0.0", auth="off")) is None
    for settings in (Settings(host="0.0.0.0"), Settings(host="10.1.2.3"), Settings(host="example.org"), Settings(auth="on")):
        with pytest.raises(StartError, match="API keys"):
            keys_of(settings)
    monkeypatch.setenv(keys.ENVIRONMENT, "a=0123456789abcdef")
    found = keys_of(Settings(host="0.0.0.0"))
    assert found is not None
    assert found.tenant("Bearer 0123456789abcdef") == "a"
    with pytest.raises(StartError, match="auth is off"):
        keys_of(Settings(auth="off"))
    with pytest.raises(StartError, match="keys file"):
        keys_of(Settings(keys_file=tmp_path / "none"))
    assert [is_loopback(h) for h in ("127.0.0.1", "localhost", "127.9.9.9", "::1", "0.0.0.0", "::")] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    "text",
    ["a", "a sha256:12", "a b c", f"a/b sha256:{'0' * 64}", f"a sha256:{'0' * 64}\nb sha256:{'0' * 64}", f"a md5:{'0' * 64}"],
)
def test_a_faulty_keys_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(StartError, match="keys file"):
        Keys(tmp_path / "keys")


@pytest.mark.parametrize("text", ["a", "a=short", "=0123456789abcdef0", "a=0123456789abcdef,b=0123456789abcdef", ","])
def test_faulty_keys_of_the_environment(text: str) -> None:
    with pytest.raises(StartError):
        Keys(None, text)


def test_without_keys_only_the_names_of_this_machine_are_answered(server: Running) -> None:
    """A page of another site whose name points to this machine gets nothing."""
    port = server.url.rsplit(":", 1)[1]
    for host, status in (
        ("localhost", 200),
        (f"127.0.0.1:{port}", 200),
        (f"[::1]:{port}", 200),
        ("evil.example", 403),
        ("", 403),
    ):
        reply = server.http().get("/v1/models", headers={"host": host})
        assert reply.status_code == status, host
    assert [host_of(h) for h in ("a:1", "[::1]:80", "a")] == ["a", "::1", "a"]


def test_every_known_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever matches, first, last or none: the same number of comparisons, of digests, by compare_digest."""
    given = [f"key-number-{i:06d}-abcdef" for i in range(5)]
    held = Keys(None, ",".join(f"t{i}={key}" for i, key in enumerate(given)))
    compared: list[tuple[int, int]] = []
    real = keys.hmac.compare_digest

    def count(a: Any, b: Any) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(keys.hmac, "compare_digest", count)
    for key, tenant in [(given[0], "t0"), (given[4], "t4"), ("x", None), ("x" * 9999, None)]:
        compared.clear()
        assert held.tenant(f"Bearer {key}") == tenant
        assert compared == [(32, 32)] * 5


def test_the_client_says_what_is_wrong(held: Held) -> None:
    with pytest.raises(AuthenticationError):
        Client(held.server.url, api_key="wrong").systemone("s", NOUL)
    assert "FLIDE_AGENT_API_KEYS" not in os.environ
