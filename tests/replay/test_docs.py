"""docs/structure.md names every module, and the README's commands exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

from counting_service import EXAMPLE, CountingService
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.replay.pack import OWN, load

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine/flide_engine", "flide_agent", "integrations/langchain_flide")
"""Whose modules are named one by one."""


def test_every_module_has_its_line() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / "docs/structure.md").read_text(encoding="utf-8")))
    modules = {
        str(path.relative_to(ROOT / package)): path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py") and "__pycache__" not in path.parts
    }
    missing = [str(path.relative_to(ROOT)) for name, path in modules.items() if name not in named]
    assert not missing, f"docs/structure.md does not name {missing}"
    gone = [name for name in named if name.endswith(".py") and name not in modules]
    assert not gone, f"docs/structure.md names {gone}, which are not there"


def test_every_local_link_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_command_of_the_readme_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"^flide-agent (\w+)", text, re.MULTILINE)):
        assert CliRunner().invoke(cli.app, [name, "--help"]).exit_code == 0, name
    options = set(re.findall(r"(--[a-z]+)", "".join(re.findall(r"^flide-agent replay.*$", text, re.MULTILINE))))
    shown = CliRunner().invoke(cli.app, ["replay", "--help"], env={"COLUMNS": "200"}).output
    assert all(option in shown for option in options)


def test_the_fields_of_a_decision_are_those_listed(service: CountingService) -> None:
    text = " ".join((ROOT / "docs/replay.md").read_text(encoding="utf-8").split())
    listed = re.search(r"one for each moment of a step: `([\w ]+)`", text)
    assert listed is not None
    done = CliRunner().invoke(cli.app, ["replay", str(EXAMPLE), "--steps", "1", "--json", "-"])
    assert list(json.loads(done.stdout.splitlines()[0])) == ["kind", *listed[1].split()]


def test_the_pack_in_the_docs_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/replay.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "pack.toml").write_text(block)
    found = load(tmp_path / "pack.toml")
    assert found.moments == {"failed": "after"}
    assert {name for name in OWN if name in block} == set(OWN)


def test_every_option_in_the_docs_of_replay_is_there() -> None:
    text = (ROOT / "docs/replay.md").read_text(encoding="utf-8")
    shown = CliRunner().invoke(cli.app, ["replay", "--help"], env={"COLUMNS": "200"}).output
    shown += CliRunner().invoke(cli.app, ["calibrate", "--help"], env={"COLUMNS": "200"}).output
    assert all(option in shown for option in set(re.findall(r"--[a-z]+(?:-[a-z]+)*", text)))
