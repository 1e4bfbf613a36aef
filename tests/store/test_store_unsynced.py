"""A store that goes with its process: nothing waits for the disk, everything else is as ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flide_agent.local import LocalService
from flide_agent.settings import Settings

QUESTIONS = {"failed": {"type": "noul", "instructions": "Did the last command fail?"}}
MESSAGES = [{"role": "user", "content": "Make it work. " * 40}, {"role": "tool", "content": "make: *** [all] Error 2"}]


@pytest.mark.parametrize("named", [True, False])
def test_only_a_store_that_stays_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), fsync(fd))[1])
    with LocalService(Settings(store=tmp_path / "s" if named else None)) as service:
        first = service.decide("a", messages=MESSAGES, questions=QUESTIONS)
        again = service.decide("a", messages=MESSAGES, questions=QUESTIONS)
        assert again.answers == first.answers
    assert bool(synced) is named
