"""Messages in the service's own form, made once a run: each step sends the whole history, nearly all of it for the n-th time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from flide_agent.messages import InputError, Message, canonical
from flide_agent.replay.records import Wire


class Heard(Message, frozen=True, dict=True):
    """A message that works out its digest once."""

    @cached_property
    def _digest(self) -> bytes:
        return super().digest()

    def digest(self) -> bytes:
        return self._digest


class Ear:
    """The messages of one run, for a service in this process. Messages must not be changed while the run is replayed."""

    def __init__(self) -> None:
        self._heard: dict[int, tuple[Wire, Any]] = {}

    def hear(self, messages: Sequence[Wire]) -> list[Any]:
        """The same messages; one that the service would refuse stays as it is, so that the service says why."""
        known = self._heard
        for raw in messages:
            if id(raw) not in known:
                known[id(raw)] = raw, _form(raw)  # the message is kept, and so its id stays its own
        return [known[id(raw)][1] for raw in messages]


def _form(raw: Wire) -> Any:
    try:
        m = canonical(raw)
    except (InputError, RecursionError):
        return raw
    return Heard(m.role, m.content, m.name, m.tool_calls, m.tool_call_id)
