"""`AsyncClient`: the client of `client.py` for asyncio, method for method."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from flide_agent.errors import FlideError
from flide_agent.replies import Prefetched, Reply, SessionEvent
from flide_agent.wire import (
    DEFAULT_URL,
    PAGE,
    QUIET_SECONDS,
    UNTIL_DEADLINE,
    EventLines,
    Messages,
    Page,
    Questions,
    Requests,
    Tries,
    decide_body,
    encoded,
    failure,
    headers_of,
    open_body,
    prefetch_body,
    read,
    session_path,
    systemone_body,
)

T = TypeVar("T")


class AsyncClient:
    """The same for asyncio. Not to be shared between event loops. Raises ValueError as `Client` does."""

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
        self._requests = Requests(self._http)

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
                    response = await self._http.send(self._requests.make(method, path, content, left))
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
        label_mass: bool = False,
        deadline: float | None = None,
    ) -> Reply:
        body = systemone_body(state, questions, model=model, session=session, label_mass=label_mass)
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
        label_mass: bool = False,
        deadline: float | None = None,
    ) -> Reply:
        body = decide_body(
            questions, messages=messages, append=append, head=head, candidates=candidates, tools=tools, label_mass=label_mass
        )
        return await self._send(Reply, "POST", session_path(session, "decide"), body, deadline)

    async def prefetch(
        self,
        session: str,
        *,
        messages: Messages | None = None,
        append: Messages | None = None,
        head: str | None = None,
        tools: Sequence[Any] | None = None,
        deadline: float | None = None,
    ) -> Prefetched:
        path, body = session_path(session, "prefetch"), prefetch_body(messages, append, head, tools)
        return await self._send(Prefetched, "POST", path, body, deadline)

    async def events(self, session: str, *, after: int = 0) -> AsyncIterator[SessionEvent]:
        lines, timeout = EventLines(), httpx.Timeout(self.timeout, read=QUIET_SECONDS)
        try:
            async with self._http.stream(
                "GET", session_path(session, "events"), params={"after": after}, timeout=timeout
            ) as response:
                if not response.is_success:
                    await response.aread()
                    read(response, Any)
                async for line in response.aiter_lines():
                    if (event := lines.take(line)) is not None:
                        yield event
        except httpx.RequestError as e:
            raise failure(e, self.url) from e

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
