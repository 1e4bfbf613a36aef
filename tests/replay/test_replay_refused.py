"""What a replay says and how it ends when the service refuses the questions, and a server that is interrupted while it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flide_agent.cli import app
from flide_agent.replay.server import ServerProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "fix_slugify.traj"


def test_questions_that_the_service_refuses_are_wrong_questions(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_text('{"q": {"type": "essay"}}')
    result = CliRunner().invoke(app, ["replay", str(EXAMPLE), "--questions", str(path), "--device", "cpu"])
    assert result.exit_code == 2, result.output
    assert "unknown question type" in result.output
    assert "no such session" not in result.output


def test_an_interrupt_while_it_starts_leaves_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerProcess(tmp_path / "store")

    def interrupted(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("flide_agent.replay.server._ready", interrupted)
    started = []
    end = server._end

    def remember(*args: object) -> None:
        started.append(server._process)
        end(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(server, "_end", remember)
    with pytest.raises(KeyboardInterrupt):
        server.__enter__()
    assert started[0] is not None
    assert started[0].poll() is not None
