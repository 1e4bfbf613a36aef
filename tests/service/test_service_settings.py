"""Settings by flags, environment and file: one schema, and a misspelt name never passes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.configure import FIELDS, load
from flide_agent.settings import Settings


def test_flags_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('max_queue = 1\nmax_round_tokens = 2\nhost = "10.0.0.1"\nmemory_bytes = "3MiB"\nshutdown_seconds = 4\n')
    environment = {"FLIDE_AGENT_MAX_ROUND_TOKENS": "20", "FLIDE_AGENT_HOST": "10.0.0.2", "FLIDE_AGENT_ACCESS_LOG": "true"}
    found = load({"host": "10.0.0.3", "port": None}, file, environment)
    assert (found.max_queue, found.max_round_tokens, found.host, found.port) == (1, 20, "10.0.0.3", Settings().port)
    assert (found.memory_bytes, found.shutdown_seconds, found.access_log) == (3 << 20, 4.0, True)
    assert load({}, None, {"FLIDE_AGENT_CONFIG": str(file)}).max_queue == 1
    assert load({}, None, {"FLIDE_AGENT_API_KEYS": "a=b", "OTHER": "x"}) == Settings()


@pytest.mark.parametrize(
    ("flags", "environment", "text", "said"),
    [
        ({"max_que": "1"}, {}, "", "option: max_que is no setting"),
        ({}, {"FLIDE_AGENT_MAX_QUE": "1"}, "", "environment: FLIDE_AGENT_MAX_QUE is no setting"),
        ({}, {}, "max_que = 1", "max_que is no setting"),
        ({}, {}, "max_queue = [", "settings file"),
        ({}, {}, "max_queue = true", "True is no int"),
        ({}, {}, "max_queue = 1.5", "1.5 is no int"),
        ({"max_queue": "many"}, {}, "", "'many' is no whole number"),
        ({"deadline_seconds": "soon"}, {}, "", "'soon' is no number"),
        ({"memory_bytes": "2 elephants"}, {}, "", "is no size"),
        ({"access_log": "maybe"}, {}, "", "neither true nor false"),
        ({"max_queue": "0"}, {}, "", "max_queue: must be above 0"),
        ({"auth": "perhaps"}, {}, "", "auth: 'perhaps' is none of auto, on, off"),
        ({"max_options": "256"}, {}, "", "max_options"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, flags: dict[str, str], environment: dict[str, str], text: str, said: str
) -> None:
    file = tmp_path / "f.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        load(flags, file, environment)


def test_every_setting_is_described_and_listed() -> None:
    assert list(FIELDS) == [f.name for f in msgspec.structs.fields(Settings)]
    assert all(f.about for f in FIELDS.values())
    shown = CliRunner().invoke(cli.app, ["settings"], env={"FLIDE_AGENT_MAX_QUEUE": "77"})
    assert shown.exit_code == 0
    assert "max_queue = 77" in shown.output
    assert "memory_bytes = 2GiB" in shown.output
    assert all(name in shown.output for name in FIELDS)


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    for options in (["--set", "max_queue"], ["--set", "max_que=1"], ["--config", str(tmp_path / "none.toml")]):
        done = CliRunner().invoke(cli.app, ["serve", *options])
        assert done.exit_code == 2, options


def test_keys_new() -> None:
    made = CliRunner().invoke(cli.app, ["keys", "new", "team-a"])
    assert made.exit_code == 0
    assert "team-a sha256:" in made.stdout
    assert "key: fl_" in made.stderr
    assert CliRunner().invoke(cli.app, ["keys", "new", "a b"]).exit_code == 2
