"""Servers and keys that cannot be: what is refused before anything is asked, and who is not there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from counting_service import EXAMPLE, CountingService
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.client import AsyncClient, Client
from flide_agent.replay import command
from flide_agent.replay.compare import Other
from flide_agent.replay.moments import Asked
from flide_agent.replay.records import Run

NOBODY = "http://127.0.0.1:9"


def replay(*arguments: object, **environment: str) -> Any:
    wide = {"COLUMNS": "300", **environment}
    return CliRunner().invoke(cli.app, ["replay", *map(str, arguments)], catch_exceptions=False, env=wide)


@pytest.mark.parametrize("key", ["schlüssel", "a\nb", "a b", "\u20ac", "abc\n"])
def test_a_key_that_no_header_can_hold(key: str) -> None:
    with pytest.raises(ValueError, match="visible ASCII") as told:
        Client(api_key=key)
    assert key not in str(told.value)
    with pytest.raises(ValueError, match="visible ASCII"):
        AsyncClient(api_key=key)
    for result in (
        replay(EXAMPLE, "--url", NOBODY, "--api-key", key),
        replay(EXAMPLE, "--url", NOBODY, FLIDE_API_KEY=key),
        CliRunner().invoke(cli.app, ["mcp", "--api-key", key], catch_exceptions=False, env={"COLUMNS": "300"}),
        CliRunner().invoke(cli.app, ["bench", "server", "--api-key", key], catch_exceptions=False, env={"COLUMNS": "300"}),
    ):
        assert result.exit_code == 2
        assert "visible ASCII" in result.output


def test_a_key_is_taken_as_it_is() -> None:
    with Client(api_key="fl_a-b_c.~!") as client:
        assert client._http.headers["authorization"] == "Bearer fl_a-b_c.~!"
    asyncio.run(AsyncClient(api_key="fl").close())
    with Client(api_key="") as client:
        assert "authorization" not in client._http.headers


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("foo", "no URL of a server"),
        ("127.0.0.1:8321", "no URL of a server"),
        ("http://", "no URL of a server"),
        ("http://a:b", "no URL of a server"),
        ("http://127.0.0.1:8321/v1", "leave /v1 out"),
        ("http://127.0.0.1:8321/v1/", "leave /v1 out"),
    ],
)
def test_what_is_no_url_of_a_server(service: CountingService, url: str, says: str) -> None:
    for option in ("--url", "--compare"):
        result = replay(EXAMPLE, option, url)
        assert (result.exit_code, says in result.output) == (2, True)
    assert not service.asked


def test_nobody_to_compare_with(service: CountingService, tmp_path: Path) -> None:
    result = replay(EXAMPLE, "--steps", "1-3", "--compare", NOBODY)
    assert result.exit_code == 3
    assert f"stopped: --compare: no answer from {NOBODY}" in result.output


def test_why_somebody_did_not_answer(service: CountingService, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def ask(self, run: Run, asked: Asked, answers: dict[str, Any]) -> Other:
            return Other({}, 1.0, None, False, 0.0, f"too long: {len(asked.messages)}")

    monkeypatch.setattr(command, "_side", lambda *_: Refusing())
    result = replay(EXAMPLE, "--steps", "1-3", "--json", "-")
    assert json.loads(result.stdout.splitlines()[-1])["compared"]["error"] == "too long: 2"
    assert "3 not answered (the first: too long: 2)" in result.stderr


# Claude Code sessions


def event(uuid: str, parent: str | None, role: str) -> dict[str, Any]:
    return {
        "type": role, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": {"role": role, "content": uuid},
    }  # fmt: skip


CIRCLE = [event("a", "b", "user"), event("b", "a", "assistant"), event("c", "c", "user"), event("d", "a", "assistant")]


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("more", [[], [event("x", None, "user"), event("y", "x", "assistant")]])
def test_parents_in_a_circle_are_a_problem(tmp_path: Path, lines: bool, more: list[dict[str, Any]]) -> None:
    path = tmp_path / "session.jsonl"
    events = more + CIRCLE
    path.write_text("\n".join(map(json.dumps, events)) if lines else json.dumps(events))
    result = replay(path, "--list", "--json", "-")
    *found, summary = map(json.loads, result.stdout.splitlines())
    assert (result.exit_code, summary["runs"], summary["problems"]) == (1, len(more) // 2, 1)
    (message,) = (r["message"] for r in found if r["kind"] == "problem")
    assert f"4 events left out whose parents run in a circle; the first is event {len(more) + 1}" in message
    assert [r["steps"] for r in found if r["kind"] == "run"] == [1] * (len(more) // 2)
