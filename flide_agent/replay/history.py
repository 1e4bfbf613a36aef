"""Digests of what the questions of a run see, so that a replay that goes on notices a history that has changed."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import msgspec

from flide_agent.replay.moments import AFTER, PROPOSED
from flide_agent.replay.records import Run, Step, Wire

_BYTES = 16


class Histories:
    """Of one run. Each message is hashed once, so messages must not be changed while the run is replayed."""

    def __init__(self, run: Run) -> None:
        self._tools = _digest(run.tools)
        self._known: dict[int, tuple[Wire, bytes]] = {}

    def of(self, step: Step, moment: str) -> str:
        """Of the tools, the history at a moment, and at `proposed` the agent's message too: 32 hexadecimal digits."""
        messages = step.after() if moment == AFTER else step.messages
        whole = [*messages, *step.proposed] if moment == PROPOSED else messages
        known = self._known
        for raw in whole:
            if id(raw) not in known:
                known[id(raw)] = raw, _digest(raw)  # the message is kept, and so its id stays its own
        return blake2b(b"".join([self._tools, *(known[id(raw)][1] for raw in whole)]), digest_size=_BYTES).hexdigest()


def _digest(value: Any) -> bytes:
    try:
        data = msgspec.json.encode(value, order="sorted")
    except (UnicodeEncodeError, OverflowError):  # lone surrogates, integers beyond 64 bits
        data = json.dumps(value, sort_keys=True).encode()
    return blake2b(data, digest_size=_BYTES).digest()
