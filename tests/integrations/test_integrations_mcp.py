"""The MCP server, as a real process over stdio and HTTP, on a real service."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from flide_agent.client import Client as FlideClient
from flide_agent.mcp.server import build

DONE = {"id": "done", "type": "noul", "instructions": "Is the task done?"}
WHICH = {"id": "which", "type": "choice", "instructions": "What next?", "options": ["edit", "test"]}
HOW = {"id": "how", "type": "score", "instructions": "How risky?", "levels": ["low", "high"]}
HISTORY = [
    {"role": "user", "content": "Clean the build folder, please. " * 10},
    {"role": "assistant", "content": "I look first."},
]
CALL = {"name": "rm", "arguments": {"path": "build"}}


def data(result: Any) -> dict[str, Any]:
    assert not result.is_error, result
    found: dict[str, Any] = result.structured_content or json.loads(result.content[0].text)
    return found.get("result", found)


async def use(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    async with Client(server) as client:
        return [data(await client.call_tool(name, arguments)) for name, arguments in calls]


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("flide_session_open", {"session": "mcp-run"}),
    ("flide_decide", {"questions": [DONE, WHICH, HOW], "messages": HISTORY, "session": "mcp-run"}),
    ("flide_decide", {"questions": [DONE], "session": "mcp-run"}),
    ("flide_guard", {"call": CALL, "session": "mcp-run", "block_at": 0.0}),
    ("flide_guard", {"call": CALL, "session": "mcp-run", "block_at": 1.0, "review_at": 0.0}),
    ("flide_guard", {"call": CALL, "messages": HISTORY, "block_at": 1.0, "review_at": 1.0}),
    ("flide_session_fork", {"session": "mcp-run", "into": "mcp-other"}),
    ("flide_session_info", {"session": "mcp-other"}),
]


def check(replies: list[dict[str, Any]]) -> None:
    opened, first, second, blocked, reviewed, allowed, forked, info = replies
    assert opened["session"] == "mcp-run"
    assert [a["id"] for a in first["answers"]] == ["done", "which", "how"]
    assert first["answers"][1]["label"] in ("edit", "test")
    assert "untrained" not in first
    assert set(first["out_of_scope"]) == {"done", "which", "how"}
    assert second["answers"] == first["answers"][:1]
    assert second["reused_tokens"] > 0
    assert [r["action"] for r in (blocked, reviewed, allowed)] == ["block", "review", "allow"]
    assert blocked["p"] == allowed["p"]  # the same call after the same history
    assert blocked["head"] == first["head"]  # a judged call does not enter the history
    assert forked["session"] == "mcp-other"
    assert info["messages"] == 2
    assert info["head"] == first["head"]


def clean(url: str) -> None:
    with FlideClient(url) as client:
        for session in client.sessions():
            if session["id"].startswith("mcp-"):
                client.delete(session["id"])


def test_over_stdio(url: str) -> None:
    clean(url)
    server = StdioServerParameters(command=sys.executable, args=["-m", "flide_agent.cli", "mcp", "--url", url])
    check(asyncio.run(use(server, *CALLS)))


def test_over_http(url: str) -> None:
    clean(url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flide_agent.cli", "mcp", "--url", url, "--transport", "http", "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                httpx.get(f"http://127.0.0.1:{port}/")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        check(asyncio.run(use(f"http://127.0.0.1:{port}/mcp", *CALLS)))
    finally:
        process.terminate()
        process.wait(20)


def test_anonymous_decisions_leave_no_session(url: str) -> None:
    clean(url)
    asyncio.run(use(build(url), ("flide_decide", {"questions": [DONE], "messages": HISTORY})))
    with FlideClient(url) as client:
        assert not [s for s in client.sessions() if s["id"].startswith("mcp-")]


def test_an_outage_is_an_answer() -> None:
    decide, guard, info = asyncio.run(
        use(
            build("http://127.0.0.1:9", timeout=1),
            ("flide_decide", {"questions": [DONE], "messages": HISTORY}),
            ("flide_guard", {"call": CALL, "messages": HISTORY}),
            ("flide_session_info", {"session": "x"}),
        )
    )
    assert (decide["status"], decide["answers"]) == ("unavailable", [])
    assert (guard["status"], guard["action"], guard["reason_code"]) == ("unavailable", "review", "unavailable")
    assert "flide-agent serve" in info["error"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"questions": [], "messages": HISTORY}, "at least one"),
        ({"questions": [DONE, DONE], "messages": HISTORY}, "own id"),
        ({"questions": [DONE]}, "messages"),
        ({"questions": [WHICH | {"options": []}], "messages": HISTORY}, "option"),
        ({"questions": [DONE], "session": "mcp-unknown"}, "session"),
    ],
)
def test_mistakes_say_what_is_wrong(url: str, arguments: Any, says: str) -> None:
    (found,) = asyncio.run(use(build(url), ("flide_decide", arguments)))
    assert found["status"] == "invalid"
    assert says in found["error"]


def test_the_command_names_its_options() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "flide_agent.cli", "mcp", "--transport", "smoke"], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "stdio" in run.stderr


def test_a_taken_port_is_a_line_and_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "flide_agent.cli", "mcp", "--transport", "http", "--port", port]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith(f"flide-agent: cannot listen on 127.0.0.1 port {port}")
    assert len(run.stderr.splitlines()) == 1
