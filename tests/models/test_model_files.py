"""A model's name: where its files are, and one sentence for a name that is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flide_agent import cli, default_model
from flide_agent.errors import StartError
from flide_agent.local import LocalService
from flide_agent.model_files import directory_of, prompts_of
from flide_agent.settings import Settings

SAYS = (
    "model 'x' is no directory, no hub id (org/name) and no dummy:SIZE; "
    "give 'default' for the model in the package, a folder, or a hub id (org/name)"
)
TRACE = Path(__file__).parents[2] / "examples" / "fix_slugify.traj"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_names(tmp_path: Path) -> None:
    assert directory_of("default") == directory_of("dummy:0.8b") == default_model.DIRECTORY
    assert directory_of(str(tmp_path)) == tmp_path


def test_a_name_that_is_none_is_told_once() -> None:
    with pytest.raises(StartError) as e:
        prompts_of("x")
    assert str(e.value) == SAYS
    with pytest.raises(StartError) as e, LocalService(Settings(model="x")):
        pass
    assert str(e.value) == SAYS


def test_a_hub_id_that_cannot_be_fetched_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, **more: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refused)
    with pytest.raises(StartError) as e:
        prompts_of("org/name")
    told = str(e.value)
    assert told.count("model 'org/name'") == 1
    assert "no network" in told
    assert told.endswith("give 'default' for the model in the package, a folder, or a hub id (org/name)")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["replay", TRACE], 3),
        (["replay", TRACE, "--dry-run"], 3),
        (["bench", "engine", "--device", "cpu"], 2),
        (["doctor", "--store", "s"], 1),
    ],
)
def test_commands_tell_it_too(command: list[object], code: int) -> None:
    result = CliRunner().invoke(cli.app, [*map(str, command), "--model", "x"])
    told = " ".join(result.output.replace("│", " ").split())
    assert (result.exit_code, SAYS in told, told.count("model 'x'")) == (code, True, 1)
