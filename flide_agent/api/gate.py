"""Around the app: every request passes here first. Request id, key, deadline, room for its bytes; then metrics and log."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flide_agent.api import call as calls
from flide_agent.api.errors import encoded
from flide_agent.errors import AuthenticationError, FlideError, Forbidden, InvalidRequest, Overloaded
from flide_agent.keys import OPERATOR, Keys, host_of, is_loopback
from flide_agent.logs import FIELDS, request_id, traceparent
from flide_agent.settings import Settings

if TYPE_CHECKING:
    from litestar import Litestar

    from flide_agent.api.backend import Backend

log = logging.getLogger("flide_agent.access")
OPEN = frozenset({"/health", "/ready", "/schema", "/schema/openapi.json", "/ui", "/ui/app.js", "/ui/style.css"})
"""Without a key: they tell nothing of any tenant."""
DRAIN_BYTES = 1 << 20
UNMATCHED = "unmatched"


class Gate:
    """An ASGI app around another. keys: None when no key is asked for."""

    def __init__(self, app: Litestar, backend: Backend, keys: Keys | None) -> None:
        self.app, self.backend, self.keys = app, backend, keys
        self.settings: Settings = backend.settings
        self.routes = frozenset(route.path_format for route in app.routes)
        self._local_only = self.settings.auth == "auto"
        self._prefix, self._count = secrets.token_hex(6), 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = calls.headers_of(scope["headers"])
        self._count += 1
        given = headers.get(calls.REQUEST_ID, "")
        call = calls.Call(calls.request_id(given) if given else f"{self._prefix}-{self._count:x}")
        scope[calls.KEY] = call
        token = request_id.set(call.id)
        trace = traceparent.set(headers.get("traceparent", ""))
        tell = self._telling(call, send)
        try:
            try:
                self._admit(call, scope["path"], headers)
            except FlideError as error:
                await self._refuse(error, scope["path"], headers, receive, tell)
            else:
                await self.app(scope, receive, tell)
        finally:
            if call.share is not None:
                call.share.leave()
            self._account(call, scope)
            request_id.reset(token)
            traceparent.reset(trace)

    def _admit(self, call: calls.Call, path: str, headers: dict[str, str]) -> None:
        """Fill in the call. Raises what the request is refused with."""
        if self.keys is None and self._local_only and not is_loopback(host_of(headers.get("host", ""))):
            # A page of another site that had its name point here would ask with that name.
            raise Forbidden(
                "this server has no keys and answers only by the names of this machine; give it keys, or say auth=off"
            )
        if self.keys is not None:
            call.operator = call.known = False
            given = headers.get("authorization")
            tenant = self.keys.tenant(given) if given is not None else None
            if tenant is not None:
                call.tenant, call.operator, call.known = tenant, tenant == OPERATOR, True
            elif path not in OPEN:
                message = (
                    "the API key is not valid" if given is not None else "an API key is required: Authorization: Bearer KEY"
                )
                raise AuthenticationError(message)
        call.deadline = calls.deadline(headers.get(calls.DEADLINE, ""), self.settings.deadline_seconds, call.started)
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise InvalidRequest([{"loc": ["header", "content-length"], "msg": "must be a number", "type": "int_parsing"}])
        if int(length) <= self.settings.max_body_bytes:  # a longer one is refused when it is read
            call.share = self.backend.inflight.enter(int(length))

    async def _refuse(self, error: FlideError, path: str, headers: dict[str, str], receive: Any, send: Any) -> None:
        # A sender that is still sending would not read the answer; more than a little is not worth reading.
        if headers.get("content-length", "0").isdecimal() and int(headers.get("content-length", "0")) <= DRAIN_BYTES:
            more = True
            while more:
                message = await receive()
                more = message["type"] == "http.request" and message.get("more_body", False)
        status, extra, body = encoded(error, path)
        pairs = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        pairs += [(name.lower().encode(), value.encode()) for name, value in extra.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})
        if isinstance(error, Overloaded):
            self.backend.refused(error.reason)

    def _telling(self, call: calls.Call, send: Any) -> Callable[[Any], Any]:
        """`send`, with the request's id on the reply."""
        own = call.id.encode()
        ids = [(calls.REQUEST_ID.encode(), own), (b"x-typesafe-request-id", own)]

        async def tell(message: Any) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                message = {**message, "headers": [*message["headers"], *ids]}
            await send(message)

        return tell

    def _account(self, call: calls.Call, scope: Any) -> None:
        route = scope.get("path_template") or UNMATCHED
        # 404 leaves no template, or that of a mount: only what the app really has may become a label.
        route = route if route in self.routes else UNMATCHED
        self.backend.replied(route, scope["method"], call.status, call.seconds)
        if self.settings.access_log:
            fields = {"method": scope["method"], "route": route, "status": call.status, "ms": round(1e3 * call.seconds, 2)}
            log.info("request", extra={FIELDS: fields | {"tenant": call.tenant if call.known else ""}})
