"""What a server is told of a run: the whole history once, then what is new after the head that it answered last."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

from flide_agent.errors import HeadConflict
from flide_agent.replay.questions import Questions
from flide_agent.replay.records import Wire
from flide_agent.replies import Reply

if TYPE_CHECKING:
    from flide_agent.client import Client


class Tail:
    """Of one run, in one session. Messages must not be changed while the run is replayed.

    A history that does not go on from the last one is sent whole, and so is one whose head the server has forgotten.
    """

    def __init__(self) -> None:
        self._told: Sequence[Wire] = ()
        self._head: str | None = None

    def decide(self, client: Client, session: str, messages: Sequence[Wire], questions: Questions, **more: Any) -> Reply:
        """`client.decide` on these messages. Raises FlideError."""
        n, head, reply = len(self._told), self._head, None
        if head is not None and len(messages) > n and all(map(is_, messages, self._told)):
            try:
                reply = client.decide(session, append=messages[n:], head=head, questions=questions, **more)
            except HeadConflict:
                reply = None
        if reply is None:
            reply = client.decide(session, messages=messages, questions=questions, **more)
        self._told, self._head = messages, None if reply.x_session is None else reply.x_session.head
        return reply
