"""Fixtures of the replay tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from counting_service import CountingService

from flide_agent.replay import command


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> CountingService:
    """The stand-in, in place of what the replay command would start or connect to."""
    counting = CountingService()

    @contextmanager
    def given(options: command.Options) -> Iterator[CountingService]:
        yield counting

    monkeypatch.setattr(command, "_service", given)
    return counting
