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
from counting_service import EXAMPLE
from test_replay_bars import counted, replayed
from test_replay_moments import pack

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


@pytest.mark.parametrize("moments", [False, True])
def test_counters_are_those_of_the_servers_metrics(server: ServerProcess, tmp_path: Path, moments: bool) -> None:
    more = ("--questions", pack(tmp_path)) if moments else ()
    there, summary = counted(server.url, EXAMPLE, "--steps", "1-6", *more)
    assert there.unlike(summary) == {}
    assert there.buckets_apart(summary) <= 1
    assert summary["decisions"] == (18 if moments else 6)
    assert there.unlike(summary | {"computed_tokens": summary["computed_tokens"] + 1})  # the check can fail


def test_the_stateless_route_answers_alike_and_computes_more(server: ServerProcess) -> None:
    summary = replayed(EXAMPLE, "--steps", "1-4", "--url", server.url, "--compare", server.url)["compared"]
    assert (summary["asked"], summary["same"], summary["failed"], summary["apart"]) == (4, 4, 0, 0.0)
    summary = replayed(EXAMPLE, "--steps", "1-4", "--device", "cpu", "--compare", "no-cache")
    alone = summary["compared"]
    assert (alone["same"], alone["failed"]) == (4, 0)
    assert alone["computed_tokens"] == summary["computed_without_reuse"] > 1.4 * alone["own_computed_tokens"]
    assert alone["own_computed_tokens"] == summary["computed_tokens"]


def test_comparing_at_all_moments(server: ServerProcess, tmp_path: Path) -> None:
    """Candidates are the same to the last bit where they can be sent, and up to rounding as the end of a state."""
    questions = pack(tmp_path)
    alone = replayed(EXAMPLE, "--steps", "1-3", "--device", "cpu", "--questions", questions, "--compare", "no-cache")[
        "compared"
    ]
    assert (alone["asked"], alone["same"], alone["failed"]) == (4, 4, 0)
    there = replayed(EXAMPLE, "--steps", "1-3", "--url", server.url, "--questions", questions, "--compare", server.url)[
        "compared"
    ]
    assert (there["asked"], there["failed"]) == (4, 0)
    assert there["apart"] < 1e-4


def test_the_first_decision(server: ServerProcess) -> None:
    argv = [sys.executable, str(ROOT / "examples/first_decision.py"), server.url]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "untrained" not in done.stdout
    assert done.stdout.count("  out of scope of the model's card, so a guess: next, risk") == 2
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
