"""The Containerfile, read: no container runtime is needed to see that what it copies and runs is there."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.api.gate import OPEN
from flide_agent.configure import FIELDS, PREFIX, load
from flide_agent.keys import ENVIRONMENT
from flide_agent.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text()
INSTRUCTIONS = ("FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "CMD")


def lines() -> list[tuple[str, str]]:
    """(instruction, its arguments), continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", "\n".join(line for line in TEXT.splitlines() if not line.startswith("#")))
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line]


def of(instruction: str) -> list[str]:
    return [arguments for name, arguments in lines() if name == instruction]


def environment() -> dict[str, str]:
    return dict(word.split("=", 1) for arguments in of("ENV") for word in shlex.split(arguments))


def test_every_instruction_is_one() -> None:
    assert {name for name, _ in lines()} <= set(INSTRUCTIONS)
    assert lines()[0][0] == "FROM"
    assert all(image.split()[0].count(":") == 1 for image in of("FROM")), "images have a tag"


def test_what_is_copied_is_there_and_is_all_that_the_wheel_needs() -> None:
    sources = []
    for arguments in of("COPY"):
        words = shlex.split(arguments)
        if words[0].startswith("--from="):
            assert f"AS {words[0].removeprefix('--from=')}" in TEXT
            continue
        *found, target = words
        assert all((ROOT / source).exists() for source in found), found
        assert target == "./" or found == [target], "folders keep their places"
        sources += found
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [
        *wheel["packages"],
        *wheel.get("force-include", {}),
        project["project"]["readme"],
        *project["project"]["license-files"],
    ]
    for path in needed:
        assert any(Path(path).is_relative_to(source) for source in sources), f"the build needs {path}, which is not copied"


def test_the_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"EXTRAS=([\w,]+)", TEXT)
    assert len(named) == 2, "the default, and that for a GPU"
    assert {extra for each in named for extra in each.split(",")} <= extras.keys()


def test_its_environment_is_settings_and_its_command_starts_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {name: value for name, value in environment().items() if name.startswith(PREFIX)}
    settings = load({}, None, ours)
    assert settings.host == "0.0.0.0"
    assert Path(of("VOLUME")[0]) in (settings.store or Path()).parents
    assert of("EXPOSE") == [str(Settings().port)]
    name, *arguments = json.loads(of("CMD")[0])
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts[name] == "flide_agent.cli:main"
    started: list[Settings] = []
    monkeypatch.setattr("flide_agent.api.server.serve", started.append)
    done = CliRunner().invoke(cli.app, arguments, env=ours)
    assert done.exit_code == 0, done.output
    assert started == [settings]
    for mentioned in re.findall(rf"{PREFIX}[A-Z_]+", TEXT):
        assert mentioned == ENVIRONMENT or mentioned.removeprefix(PREFIX).lower() in FIELDS, mentioned


def test_the_health_check_parses_and_asks_a_route_that_needs_no_key() -> None:
    _, _, command = of("HEALTHCHECK")[0].partition("CMD ")
    program, flag, code = json.loads(command)
    assert (program, flag) == ("python", "-c")
    ast.parse(code)
    (url,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", code)
    assert url == (str(Settings().port), "/ready")
    assert url[1] in OPEN


def test_each_run_is_shell_and_the_user_is_made() -> None:
    for command in of("RUN"):
        shlex.split(command)
    (user,) = of("USER")
    assert any(re.search(rf"useradd .*\b{user}\b", command) for command in of("RUN"))
    assert of("STOPSIGNAL") == ["SIGTERM"], "the server's own"
