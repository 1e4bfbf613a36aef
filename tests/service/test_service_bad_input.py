"""What bad input gets: the status, the shape and the place of the mistake, over a real socket. Never a 5xx, always JSON."""

from __future__ import annotations

import gzip
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_process import Running, Start

NOUL = {"type": "noul", "instructions": "Is it?"}
GOOD = {"state": "s", "questions": {"q": NOUL}}
USER = {"role": "user", "content": "hello"}


def asked(**question: Any) -> dict[str, Any]:
    return {"state": "s", "questions": {"q": question}}


def at(*loc: Any) -> list[Any]:
    return ["body", *loc]


# name: (body, where the first mistake is)
SYSTEMONE: dict[str, tuple[Any, list[Any]]] = {
    "not an object": ([1], at()),
    "a string": ("x", at()),
    "no state": ({"questions": {"q": NOUL}}, at("state")),
    "null state": ({**GOOD, "state": None}, at("state")),
    "number as state": ({**GOOD, "state": 5}, at("state")),
    "no questions": ({"state": "s"}, at("questions")),
    "empty questions": ({"state": "s", "questions": {}}, at("questions")),
    "list of questions": ({"state": "s", "questions": [NOUL]}, at("questions")),
    "question without type": (asked(instructions="x"), at("questions", "q", "type")),
    "unknown type": (asked(type="boolean", instructions="x"), at("questions", "q", "type")),
    "type is no string": (asked(type=["noul"]), at("questions", "q", "type")),
    "question is text": ({"state": "s", "questions": {"q": "noul"}}, at("questions", "q")),
    "empty id": ({"state": "s", "questions": {"": NOUL}}, at("questions", "")),
    "choice without options": (asked(type="choice", criteria={}), at("questions", "q", "choice", "criteria")),
    "choice without criteria": (asked(type="choice", instructions="x"), at("questions", "q", "choice", "criteria")),
    "256 options": (
        asked(type="choice", criteria={f"o{i}": None for i in range(256)}),
        at("questions", "q", "choice", "criteria"),
    ),
    "options that collide": (
        asked(type="choice", criteria={"a b": None, "a  b": None}),
        at("questions", "q", "choice", "criteria", "a  b"),
    ),
    "score as a map": (asked(type="score", criteria={"0": "low"}), at("questions", "q", "score", "criteria")),
    "null level": (asked(type="score", criteria=["low", None]), at("questions", "q", "score", "criteria", 1)),
    "11 levels": (asked(type="score", criteria=["x"] * 11), at("questions", "q", "score", "criteria")),
    "noul about nothing": (asked(type="noul"), at("questions", "q", "noul", "instructions")),
    "misspelt field": (asked(type="noul", instruction="x"), at("questions", "q", "noul", "instruction")),
    "number as instructions": (asked(type="noul", instructions=5), at("questions", "q", "noul", "instructions")),
    "images": ({**GOOD, "assets": {"a": {"type": "image"}}}, at("assets")),
    "model is no string": ({**GOOD, "model": 3}, at("model")),
    "session of a number": ({**GOOD, "x_session": 3}, at("x_session")),
    "session without id": ({**GOOD, "state": [USER], "x_session": {}}, at("x_session", "id")),
    "session id with a slash": ({**GOOD, "state": [USER], "x_session": {"id": "a/b"}}, at("x_session", "id")),
    "session with a text state": ({**GOOD, "x_session": {"id": "a"}}, at("state")),
    "session with a bad message": ({**GOOD, "state": [{"content": "x"}], "x_session": "a"}, at("state", 0, "role")),
    "candidates without session": ({**GOOD, "x_candidates": {"c": {"messages": [USER]}}}, at("x_candidates")),
}
DECIDE: dict[str, tuple[Any, list[Any]]] = {
    "neither messages nor append": ({"questions": {"q": NOUL}}, at("messages")),
    "both": ({"messages": [USER], "append": [USER], "head": "h", "questions": {"q": NOUL}}, at("append")),
    "append without head": ({"append": [USER], "questions": {"q": NOUL}}, at("head")),
    "head is no string": ({"append": [USER], "head": 3, "questions": {"q": NOUL}}, at("head")),
    "messages are text": ({"messages": "hello", "questions": {"q": NOUL}}, at("messages")),
    "message without role": ({"messages": [{"content": "x"}], "questions": {"q": NOUL}}, at("messages", 0, "role")),
    "message without content": ({"messages": [USER, {"role": "user"}], "questions": {"q": NOUL}}, at("messages", 1, "content")),
    "content is a number": (
        {"messages": [{"role": "user", "content": 5}], "questions": {"q": NOUL}},
        at("messages", 0, "content"),
    ),
    "tool call without name": (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}], "questions": {"q": NOUL}},
        at("messages", 0, "tool_calls", 0, "name"),
    ),
    "tools are text": ({"messages": [USER], "tools": "x", "questions": {"q": NOUL}}, at("tools")),
    "candidates are a list": ({"messages": [USER], "x_candidates": [1], "questions": {"q": NOUL}}, at("x_candidates")),
    "candidate without messages": (
        {"messages": [USER], "x_candidates": {"c": {}}, "questions": {"q": NOUL}},
        at("x_candidates", "c", "messages"),
    ),
    "no questions": ({"messages": [USER]}, at("questions")),
}


@pytest.fixture(scope="module")
def http(server: Running) -> httpx.Client:
    return server.http()


def refused(response: httpx.Response, status: int) -> Any:
    """The detail of a refusal, its envelope checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    assert list(body) == ["detail"]
    if status == 422:
        assert isinstance(body["detail"], list)
        assert body["detail"]
        for item in body["detail"]:
            assert isinstance(item["loc"], list)
            assert isinstance(item["msg"], str)
            assert isinstance(item["type"], str)
    else:
        assert isinstance(body["detail"]["error_type"], str)
        assert isinstance(body["detail"]["message"], str)
    return body["detail"]


@pytest.mark.parametrize("name", SYSTEMONE)
def test_systemone(http: httpx.Client, name: str) -> None:
    body, loc = SYSTEMONE[name]
    assert refused(http.post("/v1/systemone", json=body), 422)[0]["loc"] == loc


@pytest.mark.parametrize("name", DECIDE)
def test_decide(http: httpx.Client, name: str) -> None:
    body, loc = DECIDE[name]
    assert refused(http.post("/v1/sessions/bad/decide", json=body), 422)[0]["loc"] == loc
    refused(http.get("/v1/sessions/bad"), 404)  # a refused step opens no session


def test_every_mistake_is_named_at_once(http: httpx.Client) -> None:
    body = {"questions": {"a": {"type": "boolean"}, "b": {"type": "score", "criteria": {}}}, "model": 1}
    locs = [d["loc"] for d in refused(http.post("/v1/systemone", json=body), 422)]
    assert at("state") in locs
    assert at("model") in locs
    assert at("questions", "a", "type") in locs
    assert at("questions", "b", "score", "criteria") in locs


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"state": "s", ', b"\xff\xfe\x00", b'{"state": NaN}', b"[" * 50_000, b"nonsense"]
)
@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/sessions/x/decide"])
def test_no_json(http: httpx.Client, path: str, body: bytes) -> None:
    (item,) = refused(http.post(path, content=body), 422)
    assert item["type"] == "json_invalid"
    assert item["loc"][0] == "body"
    assert isinstance(item["loc"][1], int)


def test_deep_but_legal_json_is_no_fault_of_ours(http: httpx.Client) -> None:
    state: Any = "x"
    for _ in range(900):
        state = [state]
    response = http.post("/v1/systemone", content=json.dumps({**GOOD, "state": state}).encode())
    assert response.status_code in (200, 422), response.text


def test_unknown_model(http: httpx.Client) -> None:
    detail = refused(http.post("/v1/systemone", json={**GOOD, "model": "gpt-9"}), 400)
    assert detail["error_type"] == "api_usage_error"
    assert "gpt-9" in detail["message"]


def test_unknown_route_and_method(http: httpx.Client) -> None:
    assert refused(http.get("/v1/nothing"), 404)["error_type"] == "not_found"
    response = http.get("/v1/systemone")
    assert refused(response, 405)["error_type"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]
    refused(http.delete("/v1/sessions/nobody"), 404)
    refused(http.post("/v1/sessions/nobody/fork", json={}), 404)


def test_unknown_head_is_a_conflict(http: httpx.Client) -> None:
    body = {"append": [USER], "head": "nonsense", "questions": {"q": NOUL}}
    detail = refused(http.post("/v1/sessions/none/decide", json=body), 409)
    assert detail["error_type"] == "unknown_head"
    assert detail["head"] is None


def test_session_listing_parameters(http: httpx.Client) -> None:
    for bad in ("0", "1001", "x", "-1"):
        refused(http.get("/v1/sessions", params={"limit": bad}), 422)
    detail = refused(http.get("/v1/sessions", params={"cursor": "not a cursor"}), 422)
    assert detail[0]["loc"] == ["query", "cursor"]


@pytest.mark.parametrize(
    "questions",
    [
        '{"q": {"type": "noul", "instructions": "?"}, "q": {"type": "noul", "instructions": "!"}}',
        '{"q": {"type": "choice", "criteria": {"a": "one", "b": null, "a": "two"}}}',
        '{"\\udcb2": {"type": "noul", "instructions": "?"}, "\\udcb3": {"type": "noul", "instructions": "!"}}',
        '{"q": {"type": "choice", "criteria": {"\\udcb2": null, "\\udcb3": null}}}',
    ],
)
def test_a_name_that_stands_twice_is_refused_not_dropped(http: httpx.Client, questions: str) -> None:
    body = '{"state": "s", "questions": ' + questions + "}"
    detail = refused(http.post("/v1/systemone", content=body, headers={"content-type": "application/json"}), 422)
    assert detail[0]["type"] == "duplicate_name"
    assert detail[0]["loc"] == ["body", "questions"]


@pytest.mark.parametrize("name", ['"a"', '"\\udcb2"'])
def test_a_candidate_that_stands_twice_is_refused(http: httpx.Client, name: str) -> None:
    one = '{"messages": [{"role": "assistant", "content": "x"}]}'
    body = '{"messages": [{"role": "user", "content": "go"}], "questions": {"q": {"type": "noul", "instructions": "?"}}, "x_candidates": {'
    body += f"{name}: {one}, {name.replace('b2', 'b3')}: {one}" + "}}"
    content = {"content-type": "application/json"}
    detail = refused(http.post("/v1/sessions/twice/decide", content=body, headers=content), 422)
    assert detail[0]["type"] == "duplicate_name"
    assert detail[0]["loc"] == ["body", "x_candidates"]


def test_opening_mistakes(http: httpx.Client) -> None:
    for body in ({"id": 5}, {"id": ""}, {"id": "a/b"}, {"id": ".."}, {"id": "x" * 513}, {"metadata": "x"}, {"tools": 1}, [1]):
        refused(http.post("/v1/sessions", json=body), 422)


def test_a_state_over_the_context_is_refused_whole(http: httpx.Client) -> None:
    detail = refused(http.post("/v1/systemone", json={**GOOD, "state": "word " * 240_000}), 413)
    assert detail["error_type"] == "max_tokens_exceeded"
    assert "131072" in detail["message"]


def test_questions_over_the_budget_are_refused_whole(http: httpx.Client) -> None:
    questions = {f"q{i}": {"type": "noul", "instructions": "word " * 2000} for i in range(40)}
    assert (
        refused(http.post("/v1/systemone", json={"state": "s", "questions": questions}), 413)["error_type"]
        == "max_tokens_exceeded"
    )


def test_a_body_over_the_cap(http: httpx.Client) -> None:
    assert refused(http.post("/v1/systemone", content=b" " * (33 << 20)), 413)["error_type"] == "body_too_large"
    bomb = gzip.compress(b" " * (40 << 20))
    detail = refused(http.post("/v1/systemone", content=bomb, headers={"content-encoding": "gzip"}), 413)
    assert detail["error_type"] == "body_too_large"


def test_encodings(http: httpx.Client) -> None:
    data = json.dumps({**GOOD, "state": "long " * 500}).encode()
    plain = http.post("/v1/systemone", content=data).json()["answers"]
    gzipped = http.post("/v1/systemone", content=gzip.compress(data), headers={"content-encoding": "gzip"})
    assert gzipped.json()["answers"] == plain
    refused(http.post("/v1/systemone", content=data[:500], headers={"content-encoding": "gzip"}), 422)
    refused(http.post("/v1/systemone", content=data, headers={"content-encoding": "br"}), 415)
    try:
        import zstandard
    except ImportError:
        refused(http.post("/v1/systemone", content=data, headers={"content-encoding": "zstd"}), 415)
        return
    packed = zstandard.ZstdCompressor().compress(data)
    assert http.post("/v1/systemone", content=packed, headers={"content-encoding": "zstd"}).json()["answers"] == plain


def test_start_refusals(server: Running, start: Start, tmp_path: Path) -> None:
    """Each refusal names what to change, on stderr, and ends with status 1."""
    port = server.url.rsplit(":", 1)[1]
    taken = start(tmp_path / "a", port=int(port), wait=False)
    unknown = start(tmp_path / "b", "--model", "no such model", wait=False)
    for process, words in ((taken, ["port", port]), (unknown, ["no such model"])):
        assert process.process.wait(60) == 1
        process.stop()
        said = "".join(process.errors)
        assert all(word in said for word in words), said
        assert "Traceback" not in said


def test_a_store_in_use_is_refused(start: Start, tmp_path: Path) -> None:
    first = start(tmp_path / "s")
    second = start(tmp_path / "s", wait=False)
    assert second.process.wait(60) == 1
    second.stop()
    said = "".join(second.errors)
    assert str(first.process.pid) in said, said
    assert "Traceback" not in said
    assert first.stop() == 0


def test_a_broken_request_line_does_not_end_the_server(server: Running, http: httpx.Client) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as s:
        s.sendall(b"\x00\x01nonsense\r\n\r\n")
        s.recv(100)
    assert http.get("/health").status_code == 200
