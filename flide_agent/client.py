"""A client of the service, sync and async. Needs msgspec and httpx, nothing else.

    with Client("http://127.0.0.1:8321") as client:
        reply = client.systemone("the build is red", {"red": {"type": "noul", "instructions": "Is the build broken?"}})
        reply.answers["red"].noul

Every call has a deadline in seconds over all its tries. Connection failures, 429 and 5xx are tried again with growing,
jittered pauses or after the pause that the server asks for. Repeating a decision is safe: the same history gives the same
answer, and the same `append` after the same head is the same step. Errors are those of `flide_agent.errors`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from flide_agent.aio import AsyncClient
from flide_agent.deadline import bounded, until
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

__all__ = ["DEFAULT_URL", "AsyncClient", "Client"]

T = TypeVar("T")


class Client:
    """Synchronous client. timeout: seconds for a whole call, retries included. Safe to share between threads.

    Raises ValueError for an api_key that no HTTP header can hold.
    """

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
        self._requests = Requests(self._http)

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
                    response = self._http.send(self._requests.make(method, path, content, left))
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
        label_mass: bool = False,
        deadline: float | None = None,
    ) -> Reply:
        """POST /v1/systemone. session: the `x_session` field, e.g. {"id": "run-1"}. label_mass: ask for `x_label_mass`."""
        body = systemone_body(state, questions, model=model, session=session, label_mass=label_mass)
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
        label_mass: bool = False,
        deadline: float | None = None,
    ) -> Reply:
        """One step: the whole history as `messages`, or `append` after `head`. Raises HeadConflict for an unknown head."""
        body = decide_body(
            questions, messages=messages, append=append, head=head, candidates=candidates, tools=tools, label_mass=label_mass
        )
        return self._send(Reply, "POST", session_path(session, "decide"), body, deadline)

    def prefetch(
        self,
        session: str,
        *,
        messages: Messages | None = None,
        append: Messages | None = None,
        head: str | None = None,
        tools: Sequence[Any] | None = None,
        deadline: float | None = None,
    ) -> Prefetched:
        """Bring what a step on this history will start from to the engine, ahead of the step. Computes and changes nothing."""
        path, body = session_path(session, "prefetch"), prefetch_body(messages, append, head, tools)
        return self._send(Prefetched, "POST", path, body, deadline)

    def events(self, session: str, *, after: int = 0) -> Iterator[SessionEvent]:
        """What happens in a session, as it happens: its steps beyond number `after`, and when each would survive a crash.

        Ends when the session is deleted or the server ends. Raises NotFound, Overloaded, Unreachable when the connection
        breaks; go on with `after` the number of the last step seen.
        """
        lines, timeout = EventLines(), httpx.Timeout(self.timeout, read=QUIET_SECONDS)
        try:
            with self._http.stream(
                "GET", session_path(session, "events"), params={"after": after}, timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    read(response, Any)
                for line in response.iter_lines():
                    if (event := lines.take(line)) is not None:
                        yield event
        except httpx.RequestError as e:
            raise failure(e, self.url) from e

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
