"""Clients that know nothing of us: the System One conformance check, and the page that describes the API."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from service_process import Running, Start

from flide_agent.client import Client
from flide_agent.keys import new_key

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


NO_PROXY = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}


def jevcompat(url: str, *more: str, **env: str) -> str:
    """What it prints, when it calls the server conformant."""
    pytest.importorskip("jevcompat")
    command = [str(Path(sys.executable).with_name("jevcompat")), "test", url, "--timeout", "60", *more]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | NO_PROXY | env, timeout=120)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def guarded(start: Start, tmp_path_factory: pytest.TempPathFactory) -> tuple[Running, str]:
    """A server that asks for a key, and the key."""
    folder = tmp_path_factory.mktemp("guarded")
    key, line = new_key("somebody")
    (folder / "keys").write_text(line + "\n")
    return start(folder / "s", "--keys-file", str(folder / "keys")), key


def test_jevcompat(server: Running) -> None:
    """Every MUST and SHOULD of the System One contract, the official SDK included."""
    assert "MUST 32/32, SHOULD 13/13" in jevcompat(server.url)


def test_jevcompat_with_a_key(guarded: tuple[Running, str]) -> None:
    server, key = guarded
    assert "MUST 32/32, SHOULD 15/15" in jevcompat(server.url, "--key-env", "THE_KEY", THE_KEY=key)


LONG = [{"role": "user", "content": "Fix the build. " * 40}, {"role": "tool", "content": "make: *** [test] Error 2"}]


def test_typesafe_sdk(guarded: tuple[Running, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The official SDK, its zstd bodies included, changing nothing but URL and key."""
    sdk = pytest.importorskip("typesafe_sdk")
    server, key = guarded
    for name, value in NO_PROXY.items():
        monkeypatch.setenv(name, value)
    with contextlib.closing(sdk.TypeSafeClient(api_key=key, base_url=server.url, compression="zstd")) as client:
        reply = client.system_one({"history": LONG}, {
            "stuck": sdk.Noul(instructions="Is the agent stuck?"),
            "next": sdk.Choice(instructions="What next?", criteria={"edit": "change code", "stop": None}),
            "risk": sdk.Score(criteria=["none", "some", {"much": True}]),
        })  # fmt: skip
    assert 0 <= reply.answers["stuck"].noul <= 1
    assert reply.answers["next"].choice in ("edit", "stop")
    assert 0 <= reply.answers["risk"].score <= 2
    assert reply.usage.input_tokens > 0


def test_langchain_typesafe(guarded: tuple[Running, str], monkeypatch: pytest.MonkeyPatch) -> None:
    langchain_typesafe = pytest.importorskip("langchain_typesafe")
    server, key = guarded
    for name, value in NO_PROXY.items():
        monkeypatch.setenv(name, value)
    classifier = langchain_typesafe.TypeSafeClassifier(api_key=key, base_url=server.url)
    reply = classifier.invoke({"state": LONG, "questions": {"stuck": langchain_typesafe.Noul(instructions="Is it stuck?")}})
    assert 0 <= reply.answers["stuck"].noul <= 1


def test_openai_sdk(guarded: tuple[Running, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The Decisions call of OpenAI's SDK; its answers are those of /v1/systemone, in the order asked."""
    openai = pytest.importorskip("openai")
    server, key = guarded
    for name, value in NO_PROXY.items():
        monkeypatch.setenv(name, value)
    client = openai.OpenAI(api_key=key, base_url=server.url + "/v1", max_retries=0)
    calls: list[Any] = [
        {"role": "user", "content": "Fix the build."},
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "make"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "Error 2"}]},
    ]
    reply = client.decisions.create(model="jev-latest", input=calls, questions=[
        {"type": "choice", "instructions": "What next?", "name": "next", "choices": [{"value": True}, {"value": "stop"}]},
        {"type": "predicate", "instructions": "Did it fail?"},
        {"type": "score", "instructions": "How bad?", "levels": [{"label": "low"}, {"label": "high", "description": "an outage"}]},
    ])  # fmt: skip
    choice, predicate, score = reply.answers
    assert (choice.name, predicate.name) == ("next", None)
    assert choice.choice is True or choice.choice == "stop"
    assert [p.value for p in choice.probabilities] == [True, "stop"]
    assert [(p.value, p.label) for p in score.probabilities] == [(0, "low"), (1, "high")]
    assert reply.usage.total_tokens == reply.usage.input_tokens > 0
    state = [
        {"role": "user", "content": "Fix the build."},
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "bash", "arguments": "make"}}]},
        {"role": "tool", "content": "Error 2", "tool_call_id": "c1"},
    ]
    same = Client(server.url, api_key=key).systemone(state, {
        "next": {"type": "choice", "instructions": "What next?", "criteria": {"true": None, "stop": None}},
        "failed": {"type": "noul", "instructions": "Did it fail?"},
        "bad": {"type": "score", "instructions": "How bad?", "criteria": ["low", "high - an outage"]},
    })  # fmt: skip
    assert predicate.probability == same.answers["failed"].noul
    assert score.score == same.answers["bad"].score
    assert [p.probability for p in choice.probabilities] == list(same.answers["next"].probabilities.values())
    with pytest.raises(openai.UnprocessableEntityError, match="images"):
        client.decisions.create(model="jev-latest", questions=[{"type": "predicate", "instructions": "?"}],
                                input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])  # fmt: skip
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(api_key="wrong", base_url=server.url + "/v1", max_retries=0).decisions.create(
            model="jev-latest", input="s", questions=[{"type": "predicate", "instructions": "?"}]
        )


def names(value: Any) -> set[str]:
    """All keys of an object, and below; not those that a caller chooses."""
    if not isinstance(value, dict):
        return set().union(*map(names, value)) if isinstance(value, list) else set()
    own = set(value)
    for key, below in value.items():
        if key in ("answers", "x_candidates", "requests_per_round"):
            for each in below.values():
                own |= names(each) if key != "requests_per_round" else set()
        elif key not in ("probabilities", "legend", "metadata", "store"):
            own |= names(below)
    return own


def test_the_page_s_examples_run_and_name_every_field(server: Running) -> None:
    text = PAGE.read_text()
    examples = re.findall(r"curl -s http://127\.0\.0\.1:8321(\S+) -d '(.*?)'\n", text, re.DOTALL)
    assert len(examples) == 2
    http = server.http()
    found: set[str] = set()
    for path, body in examples:
        reply = http.post(path, content=body.encode())
        assert reply.status_code == 200, reply.text
        found |= names(reply.json())
    for path in ("/v1/sessions", "/v1/sessions/run-1", "/v1/models", "/health", "/ready"):
        found |= names(http.get(path).json())
    found |= names(http.post("/v1/sessions/run-1/fork", json={}).json()) | names(http.delete("/v1/sessions/run-1").json())
    ours = found - {"device", "dtype", "numerics", "alive", "untrained", "created", "owned_by", "stable"}
    assert {name for name in ours if f"`{name}`" not in text and f'"{name}"' not in text} == set()
    assert json.loads(re.findall(r"```json\n(\{\"model\".*?)```", text, re.DOTALL)[0])
