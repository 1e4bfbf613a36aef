"""What sessions hand out: a step to run, and sessions as they are listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flide_engine.segments import Tokens

from flide_agent.sessions import live
from flide_agent.sessions.history import History
from flide_agent.sessions.places import Habit
from flide_agent.store import CheckpointInfo, Kind

Reason = live.Reason
"""How a step's history relates to what the session had. A closed list:

new: the session's first step.
append: the session's last history, and more messages.
repeat: a history that this session has answered before, whichever way it was sent.
fork: `append` after an older head of the session, with other messages than those that followed it.
edit: the first difference lies inside the last history (a message changed, was removed or put in).
truncate: a proper beginning of the last history that was not answered before.
tools: other tool schemas than the last history's, so that it differs from the start.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One step, ready to be looked up and run.

    tokens: int32 [n], the whole trunk: frame and blocks, as prompts.history(tools, messages) gives it.
    ends: token end of the frame and of each block. places: grid positions where checkpoints should be taken, ascending, and
    what for; take those beyond the checkpoint found (`saves_after`). escaped: some outside text was escaped.
    common: token LCP with the session's last history (0 for its first step). head: names exactly this history, stable
    over retries and restarts. follows: the head it came after, None for a first step. repeat: reason == "repeat".
    restored: the session was read from the index after a restart or a long pause, nothing else. opens: the commit opens it.
    share_key: the tenant's namespace, for `find` and Request.share_key. habits: the session's after this step.

    Run it as: found = store.find(step.share_key, step.tokens, len(step.tokens)); tail = step.tokens[m:] with
    saves=step.saves_after(m); then `Sessions.commit`.
    """

    tenant: str
    session_id: str
    share_key: bytes
    head: str
    follows: str | None
    number: int
    reason: Reason
    tokens: Tokens
    ends: tuple[int, ...]
    places: dict[int, Kind]
    common: int
    escaped: bool
    restored: bool
    opens: bool
    history: History
    habits: tuple[Habit, ...] = ()

    @property
    def messages(self) -> int:
        """How many messages the history has."""
        return self.history.messages

    @property
    def repeat(self) -> bool:
        return self.reason == "repeat"

    @property
    def saves(self) -> tuple[int, ...]:
        """Grid positions where checkpoints should be taken, ascending."""
        return tuple(self.places)

    def saves_after(self, m: int) -> tuple[int, ...]:
        """The saves that a tail from m can take."""
        return tuple(p for p in self.saves if p > m)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step as `get` lists it. at: seconds since the epoch. m: where it was resumed, tokens: length of its trunk.

    durable: its record is on stable storage, and so are all checkpoints that it lists and that were not evicted.
    """

    number: int
    head: str
    follows: str | None
    reason: str
    at: float
    messages: int
    tokens: int
    m: int
    durable: bool
    checkpoints: tuple[CheckpointInfo, ...]


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session. head: the history that was answered last (of no messages before the first step). steps: the kept ones,
    ascending by number (`list` and `open` leave them out). bytes: of its checkpoints, shared ones included, no page twice."""

    id: str
    head: str
    created: float
    updated: float
    step: int
    messages: int
    tokens: int
    metadata: Any
    steps: tuple[StepInfo, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing; cursor: pass it to get the next one, None on the last."""

    sessions: tuple[SessionInfo, ...]
    cursor: str | None
