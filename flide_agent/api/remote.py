"""The service behind a pipe, as a front end's HTTP side sees it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from flide_agent.api import backend as b
from flide_agent.api import frames as f
from flide_agent.asks import Ask
from flide_agent.errors import InvalidRequest, Unavailable
from flide_agent.inflight import Inflight
from flide_agent.logs import request_id, traceparent
from flide_agent.reader import StateReader, check
from flide_agent.reading import Outcome, Tokenised, reply_to

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts

T = TypeVar("T")
COUNT_SECONDS = 0.05
"""How long what was counted may wait before the engine process hears of it."""


class Remote:
    """A `Backend`. send: to the engine process. The pipe's frames come in by `take`, its end by `lost`."""

    def __init__(self, hello: f.Hello, prompts: Prompts, inflight: Inflight, send: Callable[[f.Frame], None]) -> None:
        self.settings, self.served, self.inflight = f.settings_of(hello.settings), hello.served, inflight
        self._reader, self._label_mass = StateReader(prompts, hello.served, self.settings), hello.label_mass
        self._send = send
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="text")
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._replies: f.Replies = []
        self._refused: list[str] = []
        self._counting: asyncio.TimerHandle | None = None
        self._lost = False

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self._count()
        self._threads.shutdown(wait=True)

    def end_streams(self) -> None:
        """The engine process ends them."""

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def take(self, frame: f.Answered | f.Ran | f.Refused | f.Flush) -> None:
        if isinstance(frame, f.Flush):
            self._count(frame.id)
        elif (waits := self._waiting.get(frame.id)) is not None and not waits.done():
            if isinstance(frame, f.Answered):
                waits.set_result(frame.answer)
            elif isinstance(frame, f.Ran):
                waits.set_result(frame.outcome)
            else:
                waits.set_exception(f.error_of(frame))

    def lost(self) -> None:
        self._lost = True
        for waits in self._waiting.values():
            if not waits.done():
                waits.set_exception(Unavailable("the engine has ended", retry_after=1.0))

    async def _call(self, id: int, frame: f.Frame) -> Any:
        """An Answer, or the Outcome of a Run."""
        if self._lost:
            raise Unavailable("the engine has ended", retry_after=1.0)
        waits: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[id] = waits
        self._send(frame)
        try:
            return await waits
        except asyncio.CancelledError:
            self._send(f.Leave(id))
            raise
        finally:
            del self._waiting[id]

    async def admit(self, tenant: str, size: int) -> Ticket:
        """A short body is asked for together with what it says: reading it costs less than asking twice."""
        ticket = Ticket(next(self._numbers), self._send)
        if size >= b.INLINE_BYTES:
            await self._call(ticket.id, f.Admit(ticket.id, tenant))
            ticket.held = True
        return ticket

    async def decide(self, tenant: str, ask: Ask, admitted: b.Admitted) -> b.Answer:
        assert isinstance(admitted, Ticket)
        if ask.session is None:
            return await self._run(tenant, ask, admitted)
        data = await self._json(ask, admitted.held)
        admitted.held = False
        frame = f.Decide(admitted.id, tenant, data, request_id.get(), traceparent.get())
        answer: b.Answer = await self._call(admitted.id, frame)
        return answer

    async def _run(self, tenant: str, ask: Ask, admitted: Ticket) -> b.Answer:
        """Text becomes tokens here, and logits become answers: the engine process has neither."""
        check(ask, self.served, self._label_mass)
        if admitted.held or not isinstance(ask.state, str) or len(ask.state) >= b.INLINE_BYTES:
            reading = await self.in_thread(lambda: self._reader.state(tenant, ask))
        else:
            reading = self._reader.state(tenant, ask)
        asked = Tokenised.of(reading, ask.arrived, ask.deadline, time.perf_counter())
        admitted.held = False
        frame = f.Run(admitted.id, tenant, asked, request_id.get(), traceparent.get())
        outcome: Outcome = await self._call(admitted.id, frame)
        answers = outcome.answers(reading)
        reply = reply_to(reading, self.served, self._reader.prompts.format, outcome.m, answers, {})
        return b.Answer(msgspec.json.encode(reply), m=outcome.m, saved=outcome.saved)

    async def do(self, tenant: str, operation: b.Operation) -> b.Answer:
        id, data = next(self._numbers), await self._json(operation, isinstance(operation, b.Prefetch))
        answer: b.Answer = await self._call(id, f.Do(id, tenant, data, request_id.get()))
        return answer

    async def _json(self, value: Ask | b.Operation, long: bool) -> bytes:
        try:
            return await self.in_thread(lambda: f.to_json(value)) if long else f.to_json(value)
        except RecursionError:
            raise InvalidRequest.at((), "the JSON is nested too deeply", "json_invalid") from None

    async def follow(self, tenant: str, session: str, after: int) -> AsyncGenerator[bytes, None]:
        stream = next(self._numbers)
        await self._call(stream, f.Follow(stream, tenant, session, after))
        return self._events(stream)

    async def _events(self, stream: int) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                id = next(self._numbers)
                try:
                    event: bytes = (await self._call(id, f.Next(id, stream))).body
                except Unavailable:  # the reply has begun: all that is left is to end it
                    return
                if not event:
                    return
                yield event
        finally:
            self._send(f.Leave(stream))

    def replied(self, route: str, method: str, status: int, seconds: float) -> None:
        self._replies.append((route, method, status, seconds))
        self._count_soon()

    def refused(self, reason: str) -> None:
        self._refused.append(reason)
        self._count_soon()

    def _count_soon(self) -> None:
        if self._counting is None:
            self._counting = asyncio.get_running_loop().call_later(COUNT_SECONDS, self._count)

    def _count(self, flush: int = 0) -> None:
        if self._counting is not None:
            self._counting.cancel()
            self._counting = None
        if self._replies or self._refused or flush:
            self._send(f.Counted(self._replies, self._refused, flush))
            self._replies, self._refused = [], []


class Ticket:
    """A call's number, and whether the engine process has let it in already."""

    def __init__(self, id: int, send: Callable[[f.Frame], None]) -> None:
        self.id, self.held = id, False
        self._send = send

    def leave(self) -> None:
        if self.held:
            self.held = False
            self._send(f.Leave(self.id))
