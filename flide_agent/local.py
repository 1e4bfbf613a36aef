"""The whole service in this process, without HTTP: the server is built on it, and so is replay.

with LocalService(Settings()) as service:
    reply = service.decide("run-1", messages=[...], questions={...})
"""

from __future__ import annotations

from typing import Any

from flide_agent.client import Messages, Questions
from flide_agent.replies import Reply
from flide_agent.settings import Settings

__all__ = ["LocalService"]


class LocalService:
    """Synchronous twin of `client.Client`: the same methods, the same replies, the same errors. Safe to share between threads.

    Entering it loads the model, opens the store and starts the engine thread; raises StartError with what to change.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()

    def __enter__(self) -> LocalService:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is queued, write what is unwritten, release the store."""

    def systemone(self, state: Any, questions: Questions, *, model: str | None = None, session: Any = None) -> Reply:
        raise NotImplementedError

    def decide(
        self,
        session: str,
        *,
        questions: Questions,
        messages: Messages | None = None,
        append: Messages | None = None,
        head: str | None = None,
        candidates: Any = None,
        tools: Any = None,
    ) -> Reply:
        raise NotImplementedError
