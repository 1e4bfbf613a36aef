"""What both clients do alike: bodies out, replies and errors in, and whether another try follows a failure."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from flide_agent.errors import DeadlineExceeded, FlideError, InvalidRequest, UnexpectedReply, Unreachable, from_wire
from flide_agent.replies import DeletedEvent, DurableEvent, SessionEvent, StepEvent

DEFAULT_URL = "http://127.0.0.1:8321"
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds
UNTIL_DEADLINE = 1 << 30
"""Retries of a call that only its deadline ends."""

Questions = Mapping[str, Mapping[str, Any]]
Messages = Sequence[Mapping[str, Any]]
T = TypeVar("T")


def systemone_body(
    state: Any,
    questions: Questions,
    *,
    model: str | None = None,
    session: Mapping[str, Any] | None = None,
    label_mass: bool = False,
) -> dict[str, Any]:
    """The body of POST /v1/systemone."""
    body: dict[str, Any] = {"state": state, "questions": questions}
    if label_mass:
        body["x_label_mass"] = True
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
    label_mass: bool = False,
) -> dict[str, Any]:
    """The body of POST /v1/sessions/{id}/decide. Fields that are None stay away."""
    given = {"x_candidates": candidates, "model": model, "x_label_mass": label_mass or None}
    more = {name: value for name, value in given.items() if value is not None}
    return {"questions": questions} | prefetch_body(messages, append, head, tools) | more


def prefetch_body(
    messages: Messages | None, append: Messages | None, head: str | None, tools: Sequence[Any] | None
) -> dict[str, Any]:
    """The body of POST /v1/sessions/{id}/prefetch. Fields that are None stay away."""
    given = {"messages": messages, "append": append, "head": head, "tools": tools}
    return {name: value for name, value in given.items() if value is not None}


def open_body(session: str | None, metadata: Mapping[str, Any] | None, tools: Sequence[Any] | None) -> dict[str, Any]:
    # The id is made here when none is given: a second try of the same call must not open a second session.
    body: dict[str, Any] = {"id": session if session is not None else uuid.uuid4().hex}
    if metadata is not None:
        body["metadata"] = metadata
    if tools is not None:
        body["tools"] = tools
    return body


def encoded(body: Any) -> bytes:
    """The body as JSON. Lone surrogates, which UTF-8 has no form for, become U+FFFD. Raises InvalidRequest for what JSON cannot say."""
    try:
        try:
            return msgspec.json.encode(body)
        except UnicodeEncodeError:
            return msgspec.json.encode(_well_formed(body))
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise InvalidRequest.at((), f"cannot be written as JSON: {type(e).__name__}") from None


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_well_formed(k): _well_formed(v) for k, v in value.items()}
    return [_well_formed(v) for v in value] if isinstance(value, list | tuple) else value


class Tries:
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


def deadline_header(seconds: float) -> dict[str, str]:
    """So that the server does not begin what this client will no longer wait for."""
    return {"x-deadline-ms": f"{min(3.6e6, max(1.0, 1e3 * seconds)):.0f}"}


def _retry_after(headers: httpx.Headers) -> float | None:
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None  # absent, or an HTTP date, which our server never sends


def read(response: httpx.Response, kind: type[T]) -> T:
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


def failure(error: httpx.RequestError | TimeoutError, url: str) -> FlideError:
    if isinstance(error, httpx.TimeoutException | TimeoutError):  # every request gets all the time that is left
        return DeadlineExceeded(f"no answer from {url} within the deadline")
    if not isinstance(error, httpx.TransportError):  # a body that cannot be decoded, or redirects without end
        return UnexpectedReply(f"{url}: {type(error).__name__}")
    return Unreachable(f"no answer from {url}: {type(error).__name__}: {error}")


def check_key(api_key: str) -> None:
    """Raises ValueError for a key that no HTTP header can hold. The message does not show the key."""
    bad = next((i for i, c in enumerate(api_key) if not "!" <= c <= "~"), None)
    if bad is not None:
        what = "white space" if api_key[bad].isspace() else "no visible ASCII character"
        raise ValueError(f"an API key is visible ASCII without spaces; character {bad + 1} of {len(api_key)} is {what}")


def headers_of(api_key: str | None) -> dict[str, str]:
    """Of every request. Raises ValueError for a key that no header can hold."""
    if api_key:
        check_key(api_key)
    headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "flide-agent"}
    return headers | ({"Authorization": f"Bearer {api_key}"} if api_key else {})


class _Cookies(httpx.Cookies):
    """The standard library takes a whole request apart to find no cookie in a reply that sets none."""

    def extract_cookies(self, response: httpx.Response) -> None:
        if "set-cookie" in response.headers:
            super().extract_cookies(response)


class Requests:
    """The requests of one httpx client, byte for byte those of its `build_request`, which reads address and headers anew."""

    def __init__(self, http: httpx.Client | httpx.AsyncClient) -> None:
        self._http = http
        http._cookies = _Cookies()  # httpx would copy these into an object of its own kind
        self._known = lru_cache(maxsize=512)(self._address)

    def _address(self, path: str) -> tuple[httpx.URL, httpx.Headers]:
        """Where requests to this path go, and their headers but for two values."""
        made = self._http.build_request("POST", path, content=b" ", headers=deadline_header(1))
        made.headers.pop("cookie", None)
        return made.url, made.headers

    def make(self, method: str, path: str, content: bytes | None, left: float) -> httpx.Request:
        """left: seconds until the call has to end, in its header and as its timeout."""
        if not content or method != "POST" or self._http.cookies:
            return self._http.build_request(method, path, content=content, timeout=left, headers=deadline_header(left))
        url, known = self._known(path)
        headers = httpx.Headers(known)
        for name, value in deadline_header(left).items():
            headers[name] = value
        headers["Content-Length"] = str(len(content))
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), left)
        request = httpx.Request(method, url, headers=headers, stream=httpx.ByteStream(content), extensions={"timeout": timeout})
        request.read()
        return request


PAGE = "/v1/sessions?limit=1000"


class Page(msgspec.Struct):
    sessions: list[dict[str, Any]]
    cursor: str | None = None

    def nextsession_path(self) -> str | None:
        return None if self.cursor is None else f"{PAGE}&cursor={quote(self.cursor, safe='')}"


EVENTS: dict[str, type[SessionEvent]] = {"step": StepEvent, "durable": DurableEvent, "deleted": DeletedEvent}
QUIET_SECONDS = 60.0
"""A stream of events that says nothing for so long, not even that it is still there, is lost."""


class EventLines:
    """Events from the lines of a stream of server-sent events."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def take(self, line: str) -> SessionEvent | None:
        """The event that this line ends, if any. Kinds that this client does not know are passed over."""
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        kind = EVENTS.get(fields.get("event", ""))
        if kind is None:
            return None
        try:
            event = msgspec.json.decode(fields.get("data", ""), type=kind)
        except msgspec.DecodeError as e:
            raise UnexpectedReply(f"a {fields['event']} event: {e}") from e
        return msgspec.structs.replace(event, number=int(fields["id"])) if isinstance(event, StepEvent) else event


def session_path(session: str, *more: str) -> str:
    return "/".join(["/v1/sessions", quote(session, safe=""), *more])
