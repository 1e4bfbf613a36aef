"""Budgets of a tenant and of a session as an operator sets them, and that a service keeps to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flide_agent.configure import load
from flide_agent.local import LocalService
from flide_agent.settings import Settings

QUESTIONS = {"q": {"type": "noul", "instructions": "Is the agent stuck?"}}
NAMES = ("tenant_bytes", "session_bytes", "host_bytes")


@pytest.mark.parametrize("name", NAMES)
def test_by_option_environment_and_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / "f.toml"
    file.write_text(f'{name} = "3MiB"\n')
    variable = {f"FLIDE_AGENT_{name.upper()}": "2MiB"}
    found = [
        getattr(load(flags, path, environment), name)
        for flags, path, environment in (
            ({name: "1MiB"}, file, variable),
            ({}, file, variable),
            ({}, file, {}),
            ({name: "0"}, file, variable),
            ({}, None, {}),
        )
    ]
    assert found == [1 << 20, 2 << 20, 3 << 20, 0, None if name == "host_bytes" else 0]
    with pytest.raises(ValueError, match=f"{name}: must be 0 or more"):
        Settings(**{name: -1})


def filled(path: Path, **limits: int) -> tuple[int, list[int]]:
    """Bytes on disk, and by session, after three sessions of eight steps."""
    with LocalService(Settings(device="cpu", store=path, memory_bytes=64 << 20, **limits)) as service:
        store = service.service.store
        for step in range(8):
            for name in ("a", "b", "c"):
                messages = [{"role": "user", "content": f"{name} {n} " * 40} for n in range(step + 1)]
                service.decide(name, questions=QUESTIONS, messages=messages)
            assert store.flush(20)
        assert store.flush(20)
        nodes = store._nodes
        return store.stats().disk_bytes, [nodes.held_bytes(holder) for holder in nodes.held]


def test_a_service_keeps_to_them(tmp_path: Path) -> None:
    total, sessions = filled(tmp_path / "free")
    limit = max(sessions) // 2
    _, kept = filled(tmp_path / "session", session_bytes=limit)
    assert 0 < max(kept) <= limit < max(sessions)
    bytes_of_tenant, _ = filled(tmp_path / "tenant", tenant_bytes=total // 2)
    assert 0 < bytes_of_tenant <= total // 2
