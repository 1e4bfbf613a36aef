"""Against a server process: the command line, the examples and what the README tells a newcomer to type."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flide_agent.client import Client
from flide_agent.replay.server import ServerDied, ServerProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("served") / "store") as running:
        yield running


def flide_agent(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "flide_agent.cli", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_a_server_gives_the_answers_of_this_process_to_the_last_bit(server: ServerProcess) -> None:
    def decisions(*more: object) -> list[dict[str, Any]]:
        done = flide_agent("replay", ROOT / "examples/fix_slugify.traj", "--steps", "1-4", "--json", "-", *more)
        assert done.returncode == 0, done.stderr
        return [r for r in map(json.loads, done.stdout.splitlines()) if r["kind"] == "decision"]

    there, here = decisions("--url", server.url), decisions("--device", "cpu")
    for field in ("answers", "m", "history_tokens", "computed_tokens", "reason", "model", "untrained"):
        assert [r[field] for r in there] == [r[field] for r in here], field
    with Client(server.url) as client:
        assert not [s for s in client.sessions() if s["id"].startswith("replay-")]


def test_the_first_decision(server: ServerProcess) -> None:
    argv = [sys.executable, str(ROOT / "examples/first_decision.py"), server.url]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("untrained") == 2
    assert "new: " in done.stdout
    assert "append: " in done.stdout
    for name in ("failed", "next", "risk"):
        assert done.stdout.count(f"  {name}: ") == 2


def test_the_curl_commands_of_the_readme(server: ServerProcess) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    calls = re.findall(
        r"curl -s http://127\.0\.0\.1:8321(\S+) -H 'Content-Type: application/json' -d '(\{.*?\n\})'", text, re.DOTALL
    )
    assert [path for path, _ in calls] == ["/v1/sessions/run-1/decide", "/v1/systemone"]
    for path, body in calls:
        reply = httpx.post(server.url + path, content=body, timeout=60.0)
        assert reply.status_code == 200, reply.text
        assert set(reply.json()["answers"]) == set(json.loads(body)["questions"])


def test_the_readme_lists_the_fields_of_x_session(server: ServerProcess) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## What `x_session` says") : text.index("## Replay a recorded run")]
    reply = httpx.post(
        f"{server.url}/v1/sessions/fields/decide",
        json={"messages": [{"role": "user", "content": "a"}], "questions": {"q": {"type": "noul", "instructions": "?"}}},
        timeout=60.0,
    ).json()["x_session"]
    named = set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in section.splitlines() if row.startswith("| `"))))
    assert named == set(reply)


def test_a_store_in_use_is_named(server: ServerProcess) -> None:
    done = flide_agent("serve", "--store", server.store, "--port", 0)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()[-1]) > 20
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--model", "no/such-model-4711"), "no/such-model-4711"),
        (("--device", "tpu"), "device"),
        (("--memory", "much"), "is no size"),
        (("--host", "203.0.113.7", "--set", "auth=off"), "cannot listen on 203.0.113.7"),
    ],
)
def test_a_server_that_cannot_start_says_why(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    done = flide_agent("serve", "--store", tmp_path / "s", "--port", 0, *options)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_replay_with_an_unknown_model_ends_with_3() -> None:
    done = flide_agent("replay", ROOT / "examples/fix_slugify.traj", "--model", "no/such-model-4711")
    assert done.returncode == 3
    assert "no/such-model-4711" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_child_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ServerDied, match="no/such-model-4711"), ServerProcess(tmp_path / "s", model="no/such-model-4711"):
        pass
