"""Commands where packages are missing, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = "import sys; sys.modules[{missing!r}] = None; from flide_agent.cli import main; sys.argv = ['flide-agent', *{words!r}]; main()"


def run(missing: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN.format(missing=missing, words=list(words))], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("torch", ("serve", "--port", "0")),
        ("litestar", ("serve", "--port", "0")),
        pytest.param("torch", ("demo",), marks=pytest.mark.bars),
    ],
)
def test_a_missing_package_of_serve_is_named(missing: str, words: tuple[str, ...]) -> None:
    """As after an installation with the extra 'mcp' alone, which brings typer."""
    got = run(missing, *words)
    assert got.returncode == 1
    assert got.stderr.strip() == (
        f"flide-agent: this command needs {missing}, of the extra 'serve': pip install 'flide-agent[serve]'"
    )


def test_help_needs_none_of_them_and_other_faults_are_not_hidden() -> None:
    assert run("torch", "--help").returncode == 0
    got = run("flide_agent.settings", "serve", "--port", "0")
    assert got.returncode == 1
    assert "Traceback" in got.stderr
