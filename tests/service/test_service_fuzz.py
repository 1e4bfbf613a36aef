"""Requests that nobody meant: generated from our own OpenAPI document, and made by hand. Never a 5xx, always the documented shape."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from service_process import Running, Start

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"
NOUL = {"type": "noul", "instructions": "Is it?"}
CHOICE = {"type": "choice", "criteria": {"a": None, "b": "second"}}
SCORE = {"type": "score", "criteria": ["low", "high"]}
USER = {"role": "user", "content": "hello"}
BAD: list[Any] = [
    None, True, 0, -1, 1.5, 1e300, "", " ", "x" * 2000, [], [[]], [None], {}, {"": None}, {"a": {"b": {}}}, "\x00", "\ud800", "é\u202e",
]  # fmt: skip


def schemathesis(url: str, folder: Path, examples: int, *more: str) -> str:
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/schema", "--url", url, "--checks", CHECKS,
        "--max-examples", str(examples), "--exclude-path", "/v1/sessions/{session}/events", "--seed", "1", "--no-color",
        "--suppress-health-check", "all", "--request-timeout", "60", *more,
    ]  # fmt: skip
    env = os.environ | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=540, cwd=folder)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def answered(server: Running) -> dict[str, int]:
    """Replies so far, by status."""
    out: dict[str, int] = {}
    for status, count in re.findall(
        r'^flide_http_requests_total\{.*status="(\d+)"\} ([\d.]+)$', server.http().get("/metrics").text, re.M
    ):
        out[status] = out.get(status, 0) + int(float(count))
    return out


def test_a_few_generated_requests(server: Running, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    schemathesis(server.url, tmp_path, 2, "--phases", "examples,fuzzing")


@pytest.mark.bars
@pytest.mark.timeout(600)
def test_generated_requests(start: Start, tmp_path: Path, bar: Callable[..., None]) -> None:
    pytest.importorskip("schemathesis")
    server = start(tmp_path / "s")
    schemathesis(server.url, tmp_path, 90)
    seen = answered(server)
    bar("schemathesis: requests, all conformant", sum(seen.values()), at_least=2000, by_status=seen)
    bar("schemathesis: 5xx", sum(n for status, n in seen.items() if status >= "500"), limit=0)
    assert server.stop(60) == 0


# --- made by hand ---


def hand_made() -> Iterator[tuple[str, str, bytes, dict[str, str]]]:
    """(method, path, body, headers), each wrong in its own way."""

    def post(path: str, body: Any, **headers: str) -> tuple[str, str, bytes, dict[str, str]]:
        return "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers

    good = {"state": "s", "questions": {"q": NOUL}}
    step = {"messages": [USER], "questions": {"q": NOUL}}
    decisions = {"input": "s", "questions": [{"type": "predicate", "instructions": "?"}]}
    for path, whole in (("/v1/systemone", good), ("/v1/sessions/bad/decide", step), ("/v1/decisions", decisions)):
        for raw in (
            b"",
            b"{",
            b"[",
            b"nul",
            b'{"a":1,}',
            b"\xff\xfe",
            b"\x00",
            b"{'a': 1}",
            b"NaN",
            b"[" * 5000,
            b'{"a":' * 3000,
        ):
            yield post(path, raw)
        for value in BAD:
            yield post(path, value)
        for field in whole:
            yield post(path, {k: v for k, v in whole.items() if k != field})
            yield from (post(path, {**whole, field: value}) for value in BAD)
        yield from (post(path, {**whole, "x_label_mass": True, "model": value}) for value in (3, [], {}))
        yield post(path, whole, **{"content-encoding": "br"})
        yield post(path, whole, **{"content-encoding": "gzip"})
        yield post(path, gzip.compress(b"{")[:-3], **{"content-encoding": "gzip"})
        yield post(path, b"\x28\xb5\x2f\xfd junk", **{"content-encoding": "zstd"})
        for deadline in ("0", "-5", "soon", "1e99", "nan", "inf", ""):
            yield post(path, {**whole, "model": "no-such-model"}, **{"x-deadline-ms": deadline})
    for question in ({**NOUL, "type": t} for t in ("box", "boolean", "Noul", 1, None, [], {})):
        yield post("/v1/systemone", {**good, "questions": {"q": question}})
    for kind, field in (
        (NOUL, "criteria"),
        (NOUL, "instructions"),
        (CHOICE, "criteria"),
        (SCORE, "criteria"),
        (CHOICE, "misspelt"),
    ):
        yield from (post("/v1/systemone", {**good, "questions": {"ok": NOUL, "q": {**kind, field: value}}}) for value in BAD)
    for field in ("role", "content", "tool_calls", "name", "tool_call_id", "function_call"):
        yield from (post("/v1/sessions/bad/decide", {**step, "messages": [USER, {**USER, field: value}]}) for value in BAD)
    for field in ("append", "head", "x_candidates", "tools", "messages"):
        yield from (post("/v1/sessions/bad/decide", {"head": "h", **step, field: value}) for value in BAD)
    for value in BAD:
        yield post("/v1/systemone", {**good, "x_session": value, "x_candidates": value})
        yield post("/v1/sessions", {"id": value, "metadata": value})
        yield post("/v1/sessions/nobody/fork", {"id": value})
        yield post("/v1/sessions/bad/prefetch", value)
    for path in (
        "/v1/sessions/nobody",
        "/v1/sessions/%00",
        "/v1/sessions/a%2Fb",
        "/v1/sessions/..%2f..",
        "/v1/sessions/" + "x" * 600,
    ):
        yield from ((method, path, b"", {}) for method in ("GET", "DELETE", "PUT", "PATCH", "POST"))
        yield "POST", f"{path}/decide", json.dumps({"append": [USER], "head": "h", "questions": {"q": NOUL}}).encode(), {}
        yield "GET", f"{path}/events", b"", {}
    for query in (
        "limit=0",
        "limit=x",
        "limit=1001",
        "limit=-1",
        "limit=1e3",
        "limit=²",
        "cursor=x",
        "cursor=%00",
        "limit=" + "9" * 5000,
    ):
        yield "GET", f"/v1/sessions?{query}", b"", {}
    for path in (
        "/",
        "/v1",
        "/v1/systemone/",
        "/v2/systemone",
        "/ui/../keys",
        "/ui/x",
        "/v1/sessions/a/b/c",
        "/%ff",
        "//",
        "/metrics/x",
    ):
        yield from ((method, path, b"", {}) for method in ("GET", "POST", "HEAD", "OPTIONS"))


def wrong_shape(reply: httpx.Response, method: str) -> str:
    """What is wrong with a reply to a bad request, or nothing."""
    if reply.status_code >= 500:
        return "5xx"
    if not reply.headers.get("x-request-id"):
        return "no request id"
    if reply.status_code < 400 or method == "HEAD":
        return ""
    if not reply.headers["content-type"].startswith("application/json"):
        return f"media type {reply.headers['content-type']}"
    body = msgspec.json.decode(reply.content)
    if set(body) - {"error"} != {"detail"}:
        return f"keys {set(body)}"
    detail = body["detail"]
    if reply.status_code == 422:
        fine = isinstance(detail, list) and detail and all({"loc", "msg", "type"} <= set(item) for item in detail)
        return "" if fine else "no list of what is wrong"
    fine = isinstance(detail, dict) and isinstance(detail["error_type"], str) and isinstance(detail["message"], str)
    return "" if fine else "no error_type and message"


def test_hand_made_bad_requests(server: Running) -> None:
    made = list(hand_made())
    assert len(made) > 300
    faults: list[str] = []
    statuses: dict[int, int] = {}
    http = server.http()
    for method, path, body, headers in made:
        reply = http.request(method, path, content=body, headers=headers)
        statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
        if fault := wrong_shape(reply, method):
            faults.append(f"{fault}: {method} {path[:80]} {body[:200]!r} -> {reply.status_code} {reply.text[:300]}")
    assert not faults, "\n".join(faults[:10]) + f"\n{len(faults)} of {len(made)}"
    assert statuses[422] > 300, statuses
    assert http.get("/ready").json()["ready"] is True
    assert "Traceback" not in "".join(server.errors)
