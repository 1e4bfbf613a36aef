"""A client of the service, sync and async. Needs msgspec and httpx, nothing else.

    with Client("http://127.0.0.1:8321") as client:
        reply = client.systemone("the build is red", {"red": {"type": "noul", "instructions": "Is the build broken?"}})
        reply.answers["red"].noul

Every call has a deadline in seconds over all its tries. Connection failures, 429 and 5xx are tried again with growing,
jittered pauses or after the pause that the server asks for. Repeating a decision is safe: the same history gives the same
answer, and the same `append` after the same head is the same step. Errors are those of `flide_agent.errors`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import httpx

from flide_agent.deadline import bounded, until
from flide_agent.errors import FlideError
from flide_agent.replies import Reply
from flide_agent.wire import (
    DEFAULT_URL,
    PAGE,
    UNTIL_DEADLINE,
    Messages,
    Page,
    Questions,
    Tries,
    deadline_header,
    decide_body,
    encoded,
    failure,
    headers_of,
    open_body,
    read,
    session_path,
    systemone_body,
)

__all__ = ["DEFAULT_URL", "AsyncClient", "Client"]

T = TypeVar("T")


class Client:
    """Synchronous client. timeout: seconds for a whole call, retries included. Safe to share between threads."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url, self.timeout, self.retries = url.rstrip("/"), timeout, retries
        self._http = bounded(httpx.Client(base_url=self.url, headers=headers_of(api_key), transport=transport))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _send(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Any = None,
        deadline: float | None = None,
        retries: int | None = None,
    ) -> T:
        content = None if body is None else encoded(body)
        tries = Tries(self.retries if retries is None else retries, self.timeout if deadline is None else deadline)
        while True:
            try:
                left = tries.remaining()
                with until(tries.end):
                    response = self._http.request(method, path, content=content, timeout=left, headers=deadline_header(left))
                return read(response, kind)
            except httpx.RequestError as e:
                error: FlideError = failure(e, self.url)
            except FlideError as e:
                error = e
            time.sleep(tries.next(error))

    def systemone(
        self,
        state: Any,
        questions: Questions,
        *,
        model: str | None = None,
        session: Mapping[str, Any] | None = None,
        deadline: float | None = None,
    ) -> Reply:
        """POST /v1/systemone. session: the `x_session` field, e.g. {"id": "run-1"}."""
        body = systemone_body(state, questions, model=model, session=session)
        return self._send(Reply, "POST", "/v1/systemone", body, deadline)

    def decide(
        self,
        session: str,
        *,
        questions: Questions,
        messages: Messages | None = None,
        append: Messages | None = None,
        head: str | None = None,
        candidates: Mapping[str, Any] | None = None,
        tools: Sequence[Any] | None = None,
        deadline: float | None = None,
    ) -> Reply:
        """One step: the whole history as `messages`, or `append` after `head`. Raises HeadConflict for an unknown head."""
        body = decide_body(questions, messages=messages, append=append, head=head, candidates=candidates, tools=tools)
        return self._send(Reply, "POST", session_path(session, "decide"), body, deadline)

    def open_session(
        self, session: str | None = None, *, metadata: Mapping[str, Any] | None = None, tools: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        return self._send(dict[str, Any], "POST", "/v1/sessions", open_body(session, metadata, tools))

    def sessions(self) -> list[dict[str, Any]]:
        """All sessions, without their steps."""
        found: list[dict[str, Any]] = []
        path: str | None = PAGE
        while path is not None:
            page = self._send(Page, "GET", path)
            found += page.sessions
            path = page.nextsession_path()
        return found

    def session(self, session: str) -> dict[str, Any]:
        """Steps and checkpoints (tier, bytes, durable) of one session. Raises NotFound."""
        return self._send(dict[str, Any], "GET", session_path(session))

    def fork(self, session: str, into: str | None = None) -> dict[str, Any]:
        """A second session that shares everything so far."""
        return self._send(dict[str, Any], "POST", session_path(session, "fork"), {"id": into or uuid.uuid4().hex})

    def delete(self, session: str) -> None:
        self._send(Any, "DELETE", session_path(session))

    def models(self) -> dict[str, Any]:
        return self._send(dict[str, Any], "GET", "/v1/models")

    def ready(self, deadline: float | None = None) -> dict[str, Any]:
        """Waits until the server has loaded its model, up to the deadline."""
        return self._send(dict[str, Any], "GET", "/ready", deadline=deadline, retries=UNTIL_DEADLINE)


class AsyncClient:
    """The same for asyncio. Not to be shared between event loops."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url, self.timeout, self.retries = url.rstrip("/"), timeout, retries
        self._http = httpx.AsyncClient(base_url=self.url, headers=headers_of(api_key), transport=transport)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Any = None,
        deadline: float | None = None,
        retries: int | None = None,
    ) -> T:
        content = None if body is None else encoded(body)
        tries = Tries(self.retries if retries is None else retries, self.timeout if deadline is None else deadline)
        while True:
            try:
                left = tries.remaining()
                # httpx bounds each read by itself; this bounds them all.
                async with asyncio.timeout(left):
                    request = self._http.request(method, path, content=content, timeout=left, headers=deadline_header(left))
                    response = await request
                return read(response, kind)
            except (httpx.RequestError, TimeoutError) as e:
                error: FlideError = failure(e, self.url)
            except FlideError as e:
                error = e
            await asyncio.sleep(tries.next(error))

    async def systemone(
        self,
        state: Any,
        questions: Questions,
        *,
        model: str | None = None,
        session: Mapping[str, Any] | None = None,
        deadline: float | None = None,
    ) -> Reply:
        body = systemone_body(state, questions, model=model, session=session)
        return await self._send(Reply, "POST", "/v1/systemone", body, deadline)

    async def decide(
        self,
        session: str,
        *,
        questions: Questions,
        messages: Messages | None = None,
        append: Messages | None = None,
        head: str | None = None,
        candidates: Mapping[str, Any] | None = None,
        tools: Sequence[Any] | None = None,
        deadline: float | None = None,
    ) -> Reply:
        body = decide_body(questions, messages=messages, append=append, head=head, candidates=candidates, tools=tools)
        return await self._send(Reply, "POST", session_path(session, "decide"), body, deadline)

    async def open_session(
        self, session: str | None = None, *, metadata: Mapping[str, Any] | None = None, tools: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        return await self._send(dict[str, Any], "POST", "/v1/sessions", open_body(session, metadata, tools))

    async def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        path: str | None = PAGE
        while path is not None:
            page = await self._send(Page, "GET", path)
            found += page.sessions
            path = page.nextsession_path()
        return found

    async def session(self, session: str) -> dict[str, Any]:
        return await self._send(dict[str, Any], "GET", session_path(session))

    async def fork(self, session: str, into: str | None = None) -> dict[str, Any]:
        return await self._send(dict[str, Any], "POST", session_path(session, "fork"), {"id": into or uuid.uuid4().hex})

    async def delete(self, session: str) -> None:
        await self._send(Any, "DELETE", session_path(session))

    async def models(self) -> dict[str, Any]:
        return await self._send(dict[str, Any], "GET", "/v1/models")

    async def ready(self, deadline: float | None = None) -> dict[str, Any]:
        return await self._send(dict[str, Any], "GET", "/ready", deadline=deadline, retries=UNTIL_DEADLINE)
