"""The server as a process: start, models, readiness, many clients at once, an orderly end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_process import Running, Start

from flide_agent.client import Client
from flide_agent.errors import FlideError

QUESTIONS = {
    "failed": {"type": "noul", "instructions": "Did the last command fail?"},
    "next": {"type": "choice", "instructions": "What next?", "criteria": {"edit": None, "test": "run the tests", "stop": None}},
}
SYSTEM = {"role": "system", "content": "You are an agent that fixes bugs. " * 12}


def step(session: int, i: int) -> list[dict[str, str]]:
    """What session `session` says at step i; lengths differ between sessions and steps."""
    text = " ".join(f"s{session} step {i} line {j}" for j in range(3 + (7 * session + 5 * i) % 20))
    first = [SYSTEM, {"role": "user", "content": f"Task {session}"}] if i == 0 else []
    return [*first, {"role": "assistant", "content": f"run {i}"}, {"role": "tool", "content": text}]


def run_session(client: Client, session: int, steps: int, name: str) -> list[Any]:
    answers, head = [], client.open_session(name)["head"]
    for i in range(steps):
        reply = client.decide(name, append=step(session, i), head=head, questions=QUESTIONS)
        assert reply.x_session is not None
        head = reply.x_session.head
        answers.append(reply.answers)
    return answers


def rounds(server: Running) -> dict[int, int]:
    """Requests in a round -> rounds."""
    counted = server.http().get("/v1/stats").json()["engine"]["requests_per_round"]
    return {int(n): c for n, c in counted.items()}


def together(server: Running, alone: Running, sessions: int, steps: int) -> tuple[dict[int, int], int]:
    """The sessions side by side on one server, one after the other on another, compared float for float.

    Returns (requests in a round -> rounds of the first, answers that differ).
    """
    before = rounds(server)
    with ThreadPoolExecutor(sessions) as pool, server.client() as shared:
        jobs = [pool.submit(run_session, shared, s, steps, f"t{s}") for s in range(sessions)]
        side_by_side = [job.result() for job in jobs]
    with alone.client() as client:
        one_by_one = [run_session(client, s, steps, f"t{s}") for s in range(sessions)]
    assert set(rounds(alone)) == {1}, "the comparison ran one at a time"
    pairs = [(a, b) for x, y in zip(side_by_side, one_by_one, strict=True) for a, b in zip(x, y, strict=True)]
    assert len({a["failed"].noul for a, _ in pairs}) > len(pairs) // 2, "answers that say nothing cannot differ either"
    return {n: c - before.get(n, 0) for n, c in rounds(server).items()}, sum(a != b for a, b in pairs)


def test_start_to_first_answer(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s")
    with server.client() as client:
        reply = client.systemone("s", QUESTIONS)
    assert time.perf_counter() - server.started < 10
    assert not reply.x_untrained, "the embedded model is trained"
    assert set(reply.x_out_of_scope) == set(QUESTIONS) - {"failed"}, "its card holds one of these, and the other answers say so"
    assert reply.x_prompt_format
    assert server.stop() == 0


def test_models_serves_both_shapes(server: Running) -> None:
    body = server.http().get("/v1/models").json()
    (entry,) = body["models"]
    assert all(isinstance(entry[k], str) for k in ("name", "description", "release_date"))
    time.strptime(entry["release_date"], "%Y-%m-%d")
    assert body["object"] == "list"
    assert body["data"][0]["id"] == entry["name"]
    for model in (entry["name"], "jev-latest", None):
        reply = server.client().systemone("s", QUESTIONS, model=model)
        assert reply.model == entry["name"]


def test_health_ready_stats(server: Running) -> None:
    http = server.http()
    assert http.get("/health").json() == {"status": "ok"}
    ready = http.get("/ready").json()
    assert ready["ready"] is True
    assert ready["self_test"]["stable"] is True
    assert ready["probe_ms"] > 0
    assert ready["store"]["mode"] == "rw"
    stats = http.get("/v1/stats").json()
    assert stats["engine"]["rounds"] >= 1
    assert stats["engine"]["tokens_computed"] > 0
    assert "device_bytes" in stats["store"]


def test_plain_client_fields(server: Running) -> None:
    """Unknown fields and an unneeded key are accepted; only x_ fields go beyond the contract; usage is exact."""
    http = server.http()
    body = {"model": "jev-latest", "state": {"a": ["é", 1]}, "questions": QUESTIONS, "temperature": 0, "x_nonce": "1"}
    reply = http.post("/v1/systemone", json=body, headers={"authorization": "Bearer sk-anything"})
    assert reply.status_code == 200
    answer = reply.json()
    extra = set(answer) - {"model", "answers", "usage"}
    assert all(name.startswith("x_") for name in extra)
    assert set(answer["answers"]["failed"]) == {"type", "noul"}
    assert set(answer["answers"]["next"]) == {"type", "choice", "probabilities", "confidence"}
    assert abs(sum(answer["answers"]["next"]["probabilities"].values()) - 1) < 1e-9
    assert isinstance(answer["usage"]["input_tokens"], int)
    fewer = http.post("/v1/systemone", json={**body, "questions": {"failed": QUESTIONS["failed"]}}).json()
    assert fewer["answers"]["failed"] == answer["answers"]["failed"]
    assert fewer["usage"]["input_tokens"] < answer["usage"]["input_tokens"]


def test_255_options(server: Running) -> None:
    criteria = {f"option {i}": None for i in range(255)}
    reply = server.client().systemone("s", {"q": {"type": "choice", "criteria": criteria}})
    assert list(reply.answers["q"].probabilities) == list(criteria)


def test_text_that_spells_an_added_token_is_escaped(server: Running) -> None:
    client = server.client()
    assert client.systemone("a <|im_end|> b", QUESTIONS).x_escaped
    assert not client.systemone("a b", QUESTIONS).x_escaped


def test_eight_sessions_at_once_have_the_bits_of_one_at_a_time(server: Running, start: Start, tmp_path: Path) -> None:
    counted, differ = together(server, start(tmp_path / "alone"), sessions=8, steps=4)
    assert differ == 0
    assert sum(c for n, c in counted.items() if n >= 4) >= 1, counted


@pytest.mark.bars
def test_bar_eight_sessions_of_twenty_steps(start: Start, tmp_path: Path, bar: Any) -> None:
    counted, differ = together(start(tmp_path / "busy"), start(tmp_path / "alone"), sessions=8, steps=20)
    bar("8 sessions x 20 steps: rounds of 4 or more requests", sum(c for n, c in counted.items() if n >= 4), at_least=1)
    bar("8 sessions x 20 steps: answers unlike one at a time", differ, limit=0, requests=8 * 20)


def test_a_client_that_hangs_up_frees_its_place(server: Running) -> None:
    before = server.http().get("/v1/stats").json()["engine"]
    body = {"state": "x " * 9000, "questions": QUESTIONS}

    def leave() -> None:
        with pytest.raises(httpx.TimeoutException):
            httpx.post(server.url + "/v1/systemone", json=body, timeout=0.15)

    threads = [threading.Thread(target=leave) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    reply = server.client().systemone("after", QUESTIONS)
    assert reply.answers
    end = time.monotonic() + 20
    while (after := server.http().get("/v1/stats").json()["engine"])["waiting"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert after["requests"] - before["requests"] <= 8, "12 left and one stayed; those that waited must not have run"


def test_full_line_gets_429_and_the_client_comes_through(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s", "--max-queue", "1")
    statuses: list[int] = []

    def ask(i: int) -> None:
        response = httpx.post(
            server.url + "/v1/systemone", json={"state": f"{i} word " * 1200, "questions": QUESTIONS}, timeout=60
        )
        statuses.append(response.status_code)
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["detail"]["error_type"] == "rate_limit_error"

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(12)))
    assert set(statuses) == {200, 429}, statuses
    with ThreadPoolExecutor(4) as pool, server.client() as client:
        replies = list(pool.map(lambda i: client.systemone(f"{i}", QUESTIONS), range(8)))
    assert len(replies) == 8, "the client waits as it is told"
    assert server.stop() == 0


def test_sigterm_finishes_what_runs(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s")
    got: list[Any] = []

    def ask(i: int) -> None:
        try:
            got.append(
                Client(server.url, retries=0).decide(f"s{i}", messages=[*step(i, 0), *step(i, 1)] * 3, questions=QUESTIONS)
            )
        except FlideError as e:
            got.append(e)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    time.sleep(0.3)
    assert server.stop() == 0, "".join(server.errors)
    for t in threads:
        t.join(30)
    answered = [g for g in got if not isinstance(g, FlideError)]
    assert answered, got
    assert "Traceback" not in "".join(server.errors)
    again = start(tmp_path / "s")
    with again.client() as client:
        known = {s["id"]: s["head"] for s in client.sessions()}
    assert again.stop() == 0
    for reply in answered:
        assert known[reply.x_session.id] == reply.x_session.head, "an answered step survives an orderly end"
