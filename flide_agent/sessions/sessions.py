"""Sessions: which history a step is about, how far it agrees with what is known, and what survives a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flide_engine.memory import Checkpoint

from flide_agent.sessions.step import Page, SessionInfo, Step
from flide_agent.store import CheckpointStore

if TYPE_CHECKING:
    from flide_agent.messages import Message
    from flide_agent.prompts import Prompts

MAX_ID = 512
"""Characters of a tenant or session id."""
MAX_METADATA = 16384
"""Bytes of a session's metadata as JSON."""
KEPT_STEPS = 256
"""Steps (heads) that a session keeps; older heads are unknown."""


class Sessions:
    """All sessions of all tenants, kept in the store's index. Thread-safe; the caller serves one session's steps in order.

    Tenants are separate: no method reaches another tenant's sessions or checkpoints. Ids are any text of 1 to 512 characters.
    Records are written behind, by the store's writer, after the checkpoints that they name.
    """

    def __init__(self, store: CheckpointStore, prompts: Prompts, *, kept_steps: int = KEPT_STEPS) -> None:
        raise NotImplementedError

    def share_key(self, tenant: str) -> bytes:
        """The tenant's namespace in the store, for requests outside sessions too."""
        raise NotImplementedError

    def open(
        self, tenant: str, session_id: str | None = None, metadata: Any = None, tools: Sequence[object] | None = None
    ) -> SessionInfo:
        """Open a session. None makes an unguessable id. Its head is that of a history of no messages.

        A known id is given back as it is; raises Conflict when tools are given that are not those of its last history.
        metadata replaces what was there unless None. Raises InvalidRequest for an id or metadata over the limits.
        """
        raise NotImplementedError

    def begin(
        self,
        tenant: str,
        session_id: str,
        *,
        messages: Sequence[Message] | None = None,
        append: Sequence[Message] | None = None,
        head: str | None = None,
        tools: Sequence[object] | None = None,
    ) -> Step:
        """Work out a step; changes nothing until `commit`. An unknown session is opened by the commit.

        Exactly one of messages (the whole history) and append (what follows `head`; None: the session's current head).
        tools: None means those of the history continued, or of the session's last one. Only new messages are tokenised.
        Raises HeadConflict(current head) when `head` is unknown to this session (or the session is), InvalidRequest when
        both or neither of messages and append are given.
        """
        raise NotImplementedError

    def commit(self, step: Step, checkpoints: Mapping[int, Checkpoint], *, m: int = 0) -> None:
        """The step was answered: its history becomes the session's head, its checkpoints go to the store.

        checkpoints: by position, one reference each, which this takes over whatever happens. m: where the step was resumed.
        A session deleted since `begin` stays deleted.
        """
        raise NotImplementedError

    def get(self, tenant: str, session_id: str) -> SessionInfo:
        """A session with its kept steps and their checkpoints. Raises NotFound."""
        raise NotImplementedError

    def list(self, tenant: str, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Sessions of a tenant in a stable order of no meaning, `limit` (1..1000) at a time.

        Raises InvalidRequest for a bad cursor.
        """
        raise NotImplementedError

    def delete(self, tenant: str, session_id: str) -> int:
        """Remove a session and what only it holds, on disk too. Returns how many checkpoints went. Raises NotFound."""
        raise NotImplementedError

    def fork(self, tenant: str, session_id: str, new_id: str | None = None, metadata: Any = None) -> SessionInfo:
        """A second session with the same heads, steps and checkpoints. Raises NotFound, Conflict when new_id exists."""
        raise NotImplementedError
