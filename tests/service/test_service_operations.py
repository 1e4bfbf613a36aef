"""What operators and careful clients rely on: metrics, logs, request ids, deadlines, limits, events, prefetch, expiry."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from service_process import Running, Start

from flide_agent.client import Client
from flide_agent.decision import Decision
from flide_agent.errors import DeadlineExceeded, Overloaded
from flide_agent.events import LARGEST, MOST_EVENTS, Feed
from flide_agent.telemetry import watcher

NOUL: dict[str, Any] = {"q": {"type": "noul", "instructions": "Is it?"}}
SECRET = "the-secret-words-of-a-history"
HISTORY = [{"role": "user", "content": f"{SECRET} {i} " * 20} for i in range(8)]


@pytest.fixture(scope="module")
def watched(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    """A server that logs every request, with small limits."""
    limits = (
        "body_seconds=2",
        "max_body_bytes=60000",
        "max_inflight_bytes=100000",
        "max_sessions=6",
        "max_options=5",
        "max_messages=50",
    )
    more = [option for limit in ("access_log=true", "log_format=json", *limits) for option in ("--set", limit)]
    return start(tmp_path_factory.mktemp("watched") / "s", *more)


def samples(server: Running) -> dict[str, float]:
    text = server.http().get("/metrics").text
    return {name: float(value) for name, value in re.findall(r"^(flide_\S+) (\S+)$", text, re.MULTILINE)}


def test_metrics_count_and_their_labels_are_bounded(watched: Running) -> None:
    before = samples(watched)
    client = watched.client()
    for session in ("m1", "m2"):
        client.decide(session, messages=HISTORY[:4], questions=NOUL)
        client.decide(session, messages=HISTORY[:6], questions=NOUL)
        client.delete(session)
    for i in range(20):
        watched.http().get(f"/v1/sessions/nobody-{i}")
        watched.http().get(f"/nowhere/{i}")
    after = samples(watched)

    def more(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    decide = 'route="/v1/sessions/{session}/decide",status="200"'
    assert more(f'flide_http_requests_total{{method="POST",{decide}}}') == 4
    assert more('flide_http_requests_total{method="GET",route="/v1/sessions/{session}",status="404"}') == 20
    assert more('flide_http_requests_total{method="GET",route="unmatched",status="404"}') == 20
    assert more('flide_steps_total{reason="append"}') == 2
    assert more('flide_prompt_tokens_total{source="device"}') > 0
    assert more('flide_decision_seconds_count{part="engine"}') == 4
    assert more("flide_engine_requests_total") == 4
    assert after["flide_store_writable"] == 1
    text = watched.http().get("/metrics").text
    assert "nobody-" not in text
    assert "nowhere" not in text
    assert len(text.splitlines()) < 600


def test_request_ids_come_back_and_stand_in_the_log(watched: Running) -> None:
    http = watched.http()
    given = http.get("/health", headers={"x-request-id": "abc.DEF-1_2"})
    assert given.headers["x-request-id"] == given.headers["x-typesafe-request-id"] == "abc.DEF-1_2"
    for odd in ("a b", "x" * 65, "a;b"):
        made = http.get("/health", headers={"x-request-id": odd}).headers["x-request-id"]
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", made)
        assert made != odd
    assert http.get("/nowhere").headers["x-request-id"]
    bad = http.post("/v1/systemone", content=b"{", headers={"x-request-id": "bad-1"})
    assert bad.status_code == 422
    time.sleep(0.3)
    lines = [json.loads(line) for line in "".join(watched.errors).splitlines()]
    logged = {line["request_id"]: line for line in lines if line["message"] == "request"}
    assert logged["abc.DEF-1_2"].items() >= {"route": "/health", "status": 200, "method": "GET"}.items()
    assert logged["bad-1"]["status"] == 422
    assert all(line["ms"] >= 0 for line in logged.values())


def test_no_text_of_a_request_is_logged(watched: Running) -> None:
    client = watched.client()
    client.decide(f"session-{SECRET}", messages=HISTORY[:3], questions=NOUL)
    watched.http().post("/v1/systemone", json={"state": SECRET, "questions": {SECRET: {"type": SECRET}}})
    watched.http().get(f"/v1/sessions/{SECRET}")
    client.delete(f"session-{SECRET}")
    time.sleep(0.3)
    assert SECRET not in "".join(watched.errors)


def test_limits_are_named(watched: Running) -> None:
    http = watched.http()
    options = {"type": "choice", "criteria": {f"o{i}": None for i in range(6)}}
    too_many = http.post("/v1/systemone", json={"state": "s", "questions": {"q": options}})
    assert "at most 5 options" in too_many.json()["detail"][0]["msg"]
    many = [{"role": "user", "content": "m"}] * 51
    assert "at most 50 messages" in http.post("/v1/sessions/x/decide", json={"messages": many, "questions": NOUL}).text
    assert http.post("/v1/systemone", content=b"x" * 60_001).status_code == 413
    mass = http.post("/v1/systemone", json={"state": "s", "questions": NOUL, "x_label_mass": "yes"})
    assert mass.json()["detail"] == [
        {"loc": ["body", "x_label_mass"], "msg": "x_label_mass is true or false", "type": "bool_type"}
    ]


def test_a_tenant_s_sessions_are_limited(watched: Running) -> None:
    client = Client(watched.url, retries=0)
    for i in range(6):
        client.open_session(f"s{i}")
    client.open_session("s3")
    with pytest.raises(Overloaded, match="has 6 sessions") as refused:
        client.open_session("s6")
    assert refused.value.retry_after
    with pytest.raises(Overloaded):
        client.decide("s7", messages=HISTORY[:1], questions=NOUL)
    with pytest.raises(Overloaded):
        client.fork("s1", "s8")
    client.decide("s1", messages=HISTORY[:1], questions=NOUL)
    client.delete("s2")
    client.decide("s7", messages=HISTORY[:1], questions=NOUL)
    for name in ("s0", "s1", "s3", "s4", "s5", "s7"):
        client.delete(name)
    assert samples(watched)['flide_refused_total{reason="sessions"}'] >= 3


def test_bytes_in_flight_are_bounded(watched: Running) -> None:
    """Two bodies of 60,000 bytes that are slow to come do not both fit into 100,000."""
    host, port = watched.url.removeprefix("http://").split(":")

    with socket.create_connection((host, int(port)), timeout=10) as slow:
        slow.sendall(b"POST /v1/systemone HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\n\r\n" + b"x" * 100)
        time.sleep(0.3)
        refused = httpx.post(watched.url + "/v1/systemone", content=b"y" * 59_000)
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        assert "bytes of requests" in refused.json()["detail"]["message"]
    end = time.monotonic() + 10
    while httpx.post(watched.url + "/v1/systemone", content=b"y" * 59_000).status_code == 429:
        assert time.monotonic() < end, "a client that hangs up gives its bytes back"
        time.sleep(0.1)


def test_probes_may_ask_for_the_head_alone(watched: Running) -> None:
    for path in ("/health", "/ready"):
        reply = watched.http().head(path)
        assert (reply.status_code, reply.content) == (200, b"")


def test_a_body_that_does_not_arrive_is_given_up(watched: Running) -> None:
    host, port = watched.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as slow:
        slow.sendall(b"POST /v1/systemone HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        answer = b""
        while part := slow.recv(4096):  # until the server closes
            answer += part
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 2 s" in answer


def test_a_deadline_that_cannot_be_held_costs_no_work(server: Running) -> None:
    http = server.http()
    done = http.post("/v1/systemone", json={"state": "s", "questions": NOUL}, headers={"x-deadline-ms": "60000"})
    assert done.status_code == 200
    before = http.get("/v1/stats").json()["engine"]
    late = http.post("/v1/systemone", json={"state": "never read", "questions": NOUL}, headers={"x-deadline-ms": "0.001"})
    assert late.status_code == 408
    assert late.json()["detail"]["error_type"] == "deadline_exceeded"
    assert http.get("/v1/stats").json()["engine"]["requests"] == before["requests"]
    for odd in ("0", "soon", "-1", "nan", "1e12"):
        reply = http.post("/v1/systemone", json={"state": "s", "questions": NOUL}, headers={"x-deadline-ms": odd})
        assert reply.status_code == 422, odd
        assert reply.json()["detail"][0]["loc"] == ["header", "x-deadline-ms"]
    with pytest.raises(DeadlineExceeded):
        server.client().systemone("x " * 3000, NOUL, deadline=0.02)


def test_sessions_that_nobody_uses_expire(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s", "--set", "session_seconds=1.5")
    client = server.client()
    client.decide("old", messages=HISTORY, questions=NOUL)
    client.open_session("kept")
    end = time.monotonic() + 20
    while {s["id"] for s in client.sessions()} != {"kept"}:
        client.open_session("kept", metadata={"at": time.time()})
        assert time.monotonic() < end
        time.sleep(0.2)
    assert server.http().get("/v1/stats").json()["store"]["device_count"] == 0, "its checkpoints went with it"


def read_events(server: Running, path: str, wanted: int) -> list[tuple[str, int, dict[str, Any]]]:
    """(kind, id or 0, data) of the first so many events."""
    out: list[tuple[str, int, dict[str, Any]]] = []
    with httpx.stream("GET", server.url + path, timeout=30) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in reply.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "event" in fields:
                out.append((fields["event"], int(fields.get("id", 0)), json.loads(fields["data"])))
                fields = {}
                if len(out) == wanted:
                    break
    return out


def test_events_of_a_session(server: Running) -> None:
    client, got = server.client(), []
    client.open_session("told")
    follower = threading.Thread(target=lambda: got.extend(read_events(server, "/v1/sessions/told/events", 4)))
    follower.start()
    replies = [client.decide("told", messages=HISTORY[:k], questions=NOUL) for k in (3, 5)]
    follower.join(30)
    kinds = sorted(kind for kind, _, _ in got)
    assert kinds == ["durable", "durable", "step", "step"]
    steps = {number: data for kind, number, data in got if kind == "step"}
    for number, reply in enumerate(replies, 1):
        assert reply.x_session is not None
        assert steps[number]["head"] == reply.x_session.head
        assert steps[number]["answers"]["q"]["noul"] == reply.answers["q"].noul
    durable = [data for kind, _, data in got if kind == "durable"]
    assert [d["step"] for d in durable] == [1, 2]
    assert all("disk" in c["tiers"] for d in durable for c in d["checkpoints"])
    (again,) = read_events(server, "/v1/sessions/told/events?after=1", 1)
    assert again[1] == 2, "it goes on after the last number seen"
    assert server.http().get("/v1/sessions/nobody/events").status_code == 404
    assert server.http().get("/v1/sessions/told/events?after=x").status_code == 422


def test_a_stream_does_not_keep_the_server_from_ending(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path / "s")
    server.client().open_session("told")
    follower = threading.Thread(target=lambda: read_events(server, "/v1/sessions/told/events", 9))
    follower.start()
    time.sleep(0.5)
    started = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started < 10
    follower.join(10)


def decision(session: str, number: int, size: int = 10) -> Decision:
    reply = {
        "x_session": {"head": f"h{number}", "step": number},
        "answers": {"q": {"type": "noul", "noul": 0.5, "x": "x" * size}},
    }
    return Decision("t", reply, {"engine": 1.0}, 0.0, 0.0, 0, 0, 0, "", session)


def test_the_feed_is_bounded() -> None:
    feed = Feed()
    for i in range(MOST_EVENTS + 10):
        feed.take(decision("a", i))
    kept = feed.since("t", "a", 0)
    assert [e.number for e in kept] == list(range(11, MOST_EVENTS + 11))
    feed.take(decision("b", 1, LARGEST))
    assert json.loads(feed.since("t", "b", 0)[0].data)["answers_left_out"] is True
    assert feed.since("other", "a", 0) == []
    for i in range(2000):
        feed.take(decision(f"s{i}", 1, LARGEST // 2))
    assert feed.since("t", "a", 0) == []
    assert feed.since("t", "s1999", 0)


def test_spans_of_a_decision() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from flide_agent.logs import traceparent

    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    parts = {"render": 1.0, "find": 0.5, "engine": 7.0, "queue": 2.0, "keep": 0.25}
    made = Decision("t", {"answers": {"q": {}}}, parts, 100.0, 0.011, 64, 128, 30, "device", "s", "append", 70)
    token = traceparent.set("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    watcher(provider)(made)
    traceparent.reset(token)
    spans = {span.name: span for span in kept.get_finished_spans()}
    assert set(spans) == {"decide", *parts}
    whole = spans["decide"]
    assert f"{whole.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert whole.attributes["flide.m"] == 64
    assert all(spans[p].parent.span_id == whole.context.span_id for p in parts)
    assert spans["queue"].start_time >= spans["find"].end_time
    assert round((spans["engine"].end_time - spans["engine"].start_time) / 1e6, 3) == 7.0
    assert SECRET not in str(SimpleNamespace(spans=spans))
