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
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from flide_agent.errors import DeadlineExceeded, FlideError, UnexpectedReply, Unreachable, from_wire
from flide_agent.replies import Reply

DEFAULT_URL = "http://127.0.0.1:8321"
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds

Questions = Mapping[str, Mapping[str, Any]]
Messages = Sequence[Mapping[str, Any]]
T = TypeVar("T")


def systemone_body(
    state: Any, questions: Questions, *, model: str | None = None, session: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The body of POST /v1/systemone."""
    body: dict[str, Any] = {"state": state, "questions": questions}
    if model is not None:
        body["model"] = model
    if session is not None:
        body["x_session"] = session
    return body


def decide_body(
    questions: Questions,
    *,
    messages: Messages | None = None,
    append: Messages | None = None,
    head: str | None = None,
    candidates: Mapping[str, Any] | None = None,
    tools: Sequence[Any] | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """The body of POST /v1/sessions/{id}/decide. Fields that are None stay away."""
    given = {"messages": messages, "append": append, "head": head, "x_candidates": candidates, "tools": tools, "model": model}
    return {"questions": questions} | {name: value for name, value in given.items() if value is not None}


def open_body(session: str | None, metadata: Mapping[str, Any] | None, tools: Sequence[Any] | None) -> dict[str, Any]:
    # The id is made here when none is given: a second try of the same call must not open a second session.
    body: dict[str, Any] = {"id": session if session is not None else uuid.uuid4().hex}
    if metadata is not None:
        body["metadata"] = metadata
    if tools is not None:
        body["tools"] = tools
    return body


class _Tries:
    """One call: how much time is left, and whether and when another try follows a failure."""

    def __init__(self, retries: int, seconds: float) -> None:
        self.left, self.seconds, self.end = retries, seconds, time.monotonic() + seconds
        self.pause = FIRST_PAUSE

    def remaining(self) -> float:
        left = self.end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"no answer within {self.seconds:g} s")
        return left

    def next(self, error: FlideError) -> float:
        """Seconds to wait before the next try; raises when there is none."""
        again = isinstance(error, Unreachable) or error.status in (408, 429) or error.status >= 500
        if not again or self.left <= 0:
            raise error
        self.left -= 1
        pause = error.retry_after if error.retry_after is not None else self.pause * random.uniform(0.5, 1.0)
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        if time.monotonic() + pause >= self.end:
            raise DeadlineExceeded(f"no answer within {self.seconds:g} s; last failure: {error.message}") from error
        return pause


def _retry_after(headers: httpx.Headers) -> float | None:
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None  # absent, or an HTTP date, which our server never sends


def _read(response: httpx.Response, kind: type[T]) -> T:
    if response.is_success:
        try:
            return msgspec.json.decode(response.content or b"null", type=kind)
        except msgspec.DecodeError as e:
            raise UnexpectedReply(f"{response.request.method} {response.request.url.path}: {e}") from e
    try:
        body = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        body = response.text[:200]
    raise from_wire(response.status_code, body, _retry_after(response.headers))


def _failure(error: httpx.TransportError, url: str) -> FlideError:
    return Unreachable(f"no answer from {url}: {type(error).__name__}: {error}")


def _headers(api_key: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "flide-agent"}
    return headers | ({"Authorization": f"Bearer {api_key}"} if api_key else {})


_PAGE = "/v1/sessions?limit=1000"


class _Page(msgspec.Struct):
    sessions: list[dict[str, Any]]
    cursor: str | None = None

    def next_path(self) -> str | None:
        return None if self.cursor is None else f"{_PAGE}&cursor={quote(self.cursor, safe='')}"


def _path(session: str, *more: str) -> str:
    return "/".join(["/v1/sessions", quote(session, safe=""), *more])


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
        self._http = httpx.Client(base_url=self.url, headers=_headers(api_key), transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _send(self, kind: type[T], method: str, path: str, body: Any = None, deadline: float | None = None) -> T:
        content = None if body is None else msgspec.json.encode(body)
        tries = _Tries(self.retries, self.timeout if deadline is None else deadline)
        while True:
            try:
                return _read(self._http.request(method, path, content=content, timeout=tries.remaining()), kind)
            except httpx.TransportError as e:
                error: FlideError = _failure(e, self.url)
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
        return self._send(Reply, "POST", _path(session, "decide"), body, deadline)

    def open_session(
        self, session: str | None = None, *, metadata: Mapping[str, Any] | None = None, tools: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        return self._send(dict[str, Any], "POST", "/v1/sessions", open_body(session, metadata, tools))

    def sessions(self) -> list[dict[str, Any]]:
        """All sessions, without their steps."""
        found: list[dict[str, Any]] = []
        path: str | None = _PAGE
        while path is not None:
            page = self._send(_Page, "GET", path)
            found += page.sessions
            path = page.next_path()
        return found

    def session(self, session: str) -> dict[str, Any]:
        """Steps and checkpoints (tier, bytes, durable) of one session. Raises NotFound."""
        return self._send(dict[str, Any], "GET", _path(session))

    def fork(self, session: str, into: str | None = None) -> dict[str, Any]:
        """A second session that shares everything so far."""
        return self._send(dict[str, Any], "POST", _path(session, "fork"), {"id": into or uuid.uuid4().hex})

    def delete(self, session: str) -> None:
        self._send(Any, "DELETE", _path(session))

    def models(self) -> dict[str, Any]:
        return self._send(dict[str, Any], "GET", "/v1/models")

    def ready(self, deadline: float | None = None) -> dict[str, Any]:
        """Waits until the server has loaded its model, up to the deadline."""
        return self._send(dict[str, Any], "GET", "/ready", deadline=deadline)


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
        self._http = httpx.AsyncClient(base_url=self.url, headers=_headers(api_key), transport=transport)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(self, kind: type[T], method: str, path: str, body: Any = None, deadline: float | None = None) -> T:
        content = None if body is None else msgspec.json.encode(body)
        tries = _Tries(self.retries, self.timeout if deadline is None else deadline)
        while True:
            try:
                return _read(await self._http.request(method, path, content=content, timeout=tries.remaining()), kind)
            except httpx.TransportError as e:
                error: FlideError = _failure(e, self.url)
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
        return await self._send(Reply, "POST", _path(session, "decide"), body, deadline)

    async def open_session(
        self, session: str | None = None, *, metadata: Mapping[str, Any] | None = None, tools: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        return await self._send(dict[str, Any], "POST", "/v1/sessions", open_body(session, metadata, tools))

    async def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        path: str | None = _PAGE
        while path is not None:
            page = await self._send(_Page, "GET", path)
            found += page.sessions
            path = page.next_path()
        return found

    async def session(self, session: str) -> dict[str, Any]:
        return await self._send(dict[str, Any], "GET", _path(session))

    async def fork(self, session: str, into: str | None = None) -> dict[str, Any]:
        return await self._send(dict[str, Any], "POST", _path(session, "fork"), {"id": into or uuid.uuid4().hex})

    async def delete(self, session: str) -> None:
        await self._send(Any, "DELETE", _path(session))

    async def models(self) -> dict[str, Any]:
        return await self._send(dict[str, Any], "GET", "/v1/models")

    async def ready(self, deadline: float | None = None) -> dict[str, Any]:
        return await self._send(dict[str, Any], "GET", "/ready", deadline=deadline)
