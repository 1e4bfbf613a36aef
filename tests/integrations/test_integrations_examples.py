"""The examples against a real service, and the code of the walk-through."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_flide import decision_model
from langchain_flide.testing import FakeFlide, ScriptedChat, call

ROOT = Path(__file__).parents[2]


def run(example: str, url: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / example), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_guarded_agent(url: str) -> None:
    said = run("guarded_agent.py", url)
    assert "block  delete_file  rule keep_the_tests" in said
    assert "The tests are still there." in said
    assert re.search(r"append, [1-9]\d+ of \d+ tokens reused", said)


def test_guarded_agent_without_a_service_follows_its_fail_policy() -> None:
    said = run("guarded_agent.py", "http://127.0.0.1:9")
    assert "risk write" in said
    assert "The tests are still there." in said


def test_routed_agent(url: str) -> None:
    said = run("routed_agent.py", url)
    assert len(re.findall(r"(?m)^(small|large): ", said)) == 4
    assert re.search(r"append, [1-9]\d+ of \d+ tokens reused", said)


def blocks() -> list[Any]:
    text = (ROOT / "docs/langchain.md").read_text()
    found = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    return [pytest.param(code, id=str(i)) for i, code in enumerate(found, 1)]


@pytest.mark.parametrize("where", ["fake", "service"])
@pytest.mark.parametrize("code", blocks())
def test_the_walk_throughs_code_runs(
    code: str,
    where: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each block runs on its own, with the names that the page introduces before it: on a fake that wants a review of every call, and on
    a real service with the model in the package, whatever that says."""
    if where == "service":
        monkeypatch.setenv("FLIDE_BASE_URL", request.getfixturevalue("url"))
    else:
        fake = FakeFlide({"risky": 0.2, "stuck": 0.1, "urgent": 0.9})
        monkeypatch.setattr(decision_model.Connection, "__init__", _with(fake, decision_model.Connection.__init__))

    @tool
    def run_shell(command: str) -> str:
        """Run a command."""
        return command

    chat = ScriptedChat(lambda m: "Done." if len(m) > 2 else AIMessage("I act.", tool_calls=[call("run_shell", command="ls")]))
    names = {"model": chat, "small": chat, "large": chat, "tools": [run_shell], "run_shell": run_shell}
    (tmp_path / "page.py").write_text(code)
    after = runpy.run_path(str(tmp_path / "page.py"), init_globals=names)
    if "FlideMiddleware" in code and "found" in after:
        assert after["found"]["messages"][-1].text == "Done."
    if where == "fake" and "Command(resume" in code:
        assert [m.status for m in after["found"]["messages"] if m.type == "tool"] == ["success"]  # it was asked, and approved
        assert "run_shell {'command': 'ls'}" in capsys.readouterr().out


def _with(fake: FakeFlide, init: Any) -> Any:
    def made(self: Any, *args: Any, **given: Any) -> None:
        init(self, *args, **given | {"transport": given.get("transport") or fake.transport})

    return made
