"""The client behind a decision model: one for threads, one for each event loop, and errors as LangChain's."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from flide_agent.client import AsyncClient, Client
from flide_agent.errors import FlideError
from flide_agent.replies import Reply
from langchain_flide.errors import translated
from langchain_flide.history import History, Wire
from langchain_flide.identity import anonymous
from langchain_flide.responses import FlideResponse, response_of
from langchain_flide.states import Seen

TAIL = "tail"
"""The candidate that stands for what is read after the history and does not enter it."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One dispatch: what is seen, the questions as the service takes them, and what might be done next.

    candidates: id -> messages. tools: schemas read before the first message.
    """

    seen: Seen
    questions: dict[str, dict[str, Any]]
    candidates: dict[str, list[Wire]] = field(default_factory=dict)
    tools: list[dict[str, Any]] | None = None


class Connection:
    """Sends inquiries. Safe to share between threads and event loops."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        *,
        model: str | None,
        namespace: str,
        timeout: float,
        retries: int,
        transport: Any = None,
    ) -> None:
        self.url, self.model, self.namespace, self.timeout = url, model, namespace, timeout
        self._options: dict[str, Any] = {"api_key": api_key, "timeout": timeout, "retries": retries, "transport": transport}
        self._lock = threading.Lock()
        self._sync: Client | None = None
        # An async client belongs to one loop; a program may run several, one after the other or in threads.
        self._async: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()

    def ask(self, inquiry: Inquiry, session: str | None, deadline: float | None = None) -> FlideResponse:
        """The answers. deadline: seconds, all tries included. Raises FlideLangChainError."""
        client, (session, call) = self._client(), self._call(inquiry, session)
        try:
            if session is None:
                return response_of(client.systemone(**call, deadline=deadline), inquiry.questions)
            return _read(client.decide(session, **call, deadline=deadline), inquiry)
        except FlideError as e:
            raise translated(e, self.url) from None

    async def aask(self, inquiry: Inquiry, session: str | None, deadline: float | None = None) -> FlideResponse:
        """`ask` for asyncio."""
        client, (session, call) = self._aclient(), self._call(inquiry, session)
        try:
            if session is None:
                return response_of(await client.systemone(**call, deadline=deadline), inquiry.questions)
            return _read(await client.decide(session, **call, deadline=deadline), inquiry)
        except FlideError as e:
            raise translated(e, self.url) from None

    def _call(self, inquiry: Inquiry, session: str | None) -> tuple[str | None, dict[str, Any]]:
        """The session (None: no step of a session) and the arguments of the client's method."""
        history = inquiry.seen.history
        if history is None:
            return None, {"state": inquiry.seen.plain, "questions": inquiry.questions, "model": self.model}
        candidates = _candidates(history, inquiry)
        if session is None and not candidates and not inquiry.tools and history.trunk:
            return None, {"state": history.trunk, "questions": inquiry.questions, "model": self.model}
        session = session or anonymous(self.namespace, history.trunk[0] if history.trunk else None)
        call = {"messages": history.trunk, "questions": inquiry.questions, "tools": inquiry.tools}
        return session, call | {"candidates": candidates or None}

    def _client(self) -> Client:
        with self._lock:
            if self._sync is None:
                self._sync = Client(self.url, **self._options)
            return self._sync

    def _aclient(self) -> AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._async.get(loop)
            if client is None:
                client = self._async[loop] = AsyncClient(self.url, **self._options)
            return client

    def close(self) -> None:
        """Closes the synchronous client; asynchronous ones go with their loops."""
        with self._lock:
            if self._sync is not None:
                self._sync.close()
                self._sync = None


def _candidates(history: History, inquiry: Inquiry) -> dict[str, Any]:
    found = {key: {"messages": [*history.tail, *messages]} for key, messages in inquiry.candidates.items()}
    if history.tail:
        found[TAIL] = {"messages": history.tail}
    return found


def _read(reply: Reply, inquiry: Inquiry) -> FlideResponse:
    history = inquiry.seen.history
    return response_of(reply, inquiry.questions, inquiry.candidates, TAIL if history is not None and history.tail else None)
