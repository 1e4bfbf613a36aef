"""The service in this process as the HTTP side sees it, with what lives beside it: feed, metrics, expiry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import msgspec

from flide_agent import views
from flide_agent.api import backend as b
from flide_agent.api import frames as f
from flide_agent.api import streams
from flide_agent.api.probe import probe
from flide_agent.asks import Ask
from flide_agent.errors import FlideError, NotFound, Overloaded
from flide_agent.events import Feed
from flide_agent.keys import TENANT, Keys
from flide_agent.line import Admission
from flide_agent.local import Service
from flide_agent.metrics import Metrics
from flide_agent.reading import Outcome, Tokenised

log = logging.getLogger("flide_agent")
T = TypeVar("T")
LONGEST_PAUSE = 60.0
"""Seconds between two looks for sessions that nobody uses any more."""


class Inside:
    """A `Backend`. keys: whose sessions expire; None for those of everybody's tenant."""

    def __init__(self, service: Service, keys: Keys | None = None) -> None:
        self.service, self.settings, self.served = service, service.settings, service.served
        self.inflight = service.inflight
        self.feed, self.metrics = Feed(), Metrics(service)
        service.decider.watchers += [self.metrics.decision, self.feed.take]
        self.before_metrics: Callable[[], Awaitable[None]] | None = None
        """Brings in what other processes have counted."""
        self._keys = keys
        self._sweep: asyncio.Task[None] | None = None

    def hello(self) -> f.Hello:
        """What a front end has to know of this service."""
        info, prompts = self.service.engine.info, self.service.decider.prompts
        settings = f.settings_json(self.settings)
        return f.Hello(settings, self.served, info.label_mass, str(prompts.directory), prompts.digest)

    async def start(self) -> None:
        if self.settings.session_seconds:
            self._sweep = asyncio.ensure_future(self._expire())

    async def close(self) -> None:
        self.end_streams()
        if self._sweep is not None:
            self._sweep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweep
        await self.service.close()

    def end_streams(self) -> None:
        self.feed.close()

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await self.service.decider.in_thread(work)

    async def admit(self, tenant: str, size: int) -> Admission:
        return self.service.dispatcher.admit(self.service.sessions.share_key(tenant))

    async def decide(self, tenant: str, ask: Ask, admitted: b.Admitted) -> b.Answer:
        assert isinstance(admitted, Admission)
        decision = await self.service.decider.decide(tenant, ask, admitted)
        return b.Answer(msgspec.json.encode(decision.reply), m=decision.m, saved=decision.saved)

    async def run(self, tenant: str, asked: Tokenised, admitted: Admission | None) -> Outcome:
        """See `Decider.run`."""
        return await self.service.decider.run(tenant, asked, admitted)

    async def do(self, tenant: str, operation: b.Operation) -> b.Answer:
        decider = self.service.decider
        match operation:
            case b.Prefetch(ask):
                return _json(await decider.prefetch(tenant, ask))
            case b.OpenSession(opening):
                return _json(await views.open_session(decider, tenant, opening), 201)
            case b.ListSessions(limit, cursor):
                return _json(await views.page(decider, tenant, limit, cursor))
            case b.GetSession(session):
                return _json(await views.session(decider, tenant, session))
            case b.DeleteSession(session):
                gone = await views.delete(decider, tenant, session)
                self.feed.forget(tenant, session)
                return _json(gone)
            case b.ForkSession(session, opening):
                return _json(await views.fork(decider, tenant, session, opening), 201)
            case b.Ready(whole):
                return await self._ready(whole)
            case b.Stats():
                return _json(self.service.stats())
            case b.MetricsText():
                if self.before_metrics is not None:
                    await self.before_metrics()
                return b.Answer(await decider.in_thread(self.metrics.text))

    async def _ready(self, whole: bool) -> b.Answer:
        report = {"model": self.served.name, "untrained": self.served.untrained, **self.service.report()} if whole else {}
        try:
            took = await probe(self.service)
        except FlideError as e:
            return _json({"ready": False, "reason": e.message, **report}, 503)
        return _json({"ready": True, **report, **({"probe_ms": took} if whole else {})})

    async def follow(self, tenant: str, session: str, after: int) -> AsyncGenerator[bytes, None]:
        await views.session(self.service.decider, tenant, session)  # 404 before the stream begins
        if self.feed.watchers >= streams.MOST_WATCHERS:
            raise Overloaded(f"{self.feed.watchers} streams are open", retry_after=10.0, reason="streams")
        return streams.follow(self.service, self.feed, tenant, session, after)

    def replied(self, route: str, method: str, status: int, seconds: float) -> None:
        self.metrics.http(route, method, status, seconds)
        self.service.decider.replied()

    def refused(self, reason: str) -> None:
        self.metrics.refused.labels(reason).inc()

    async def _expire(self) -> None:
        """Delete sessions that nobody used for `session_seconds`."""
        seconds = self.settings.session_seconds
        while True:
            await asyncio.sleep(min(LONGEST_PAUSE, seconds / 4))
            for tenant in sorted({TENANT, *(self._keys.tenants if self._keys is not None else ())}):
                try:
                    await self._expire_tenant(tenant, seconds)
                except FlideError as e:
                    log.warning("expired sessions stay for now: %s", e.error_type)

    async def _expire_tenant(self, tenant: str, seconds: float) -> None:
        decider = self.service.decider
        for session in await decider.in_thread(lambda: decider.retention.expired(tenant, seconds)):
            with contextlib.suppress(NotFound):  # somebody deleted it meanwhile
                await self.do(tenant, b.DeleteSession(session))


def _json(value: object, status: int = 200) -> b.Answer:
    return b.Answer(msgspec.json.encode(value), status)
