"""The engine process's side of one front end: its calls become tasks on the backend, its end gives their places back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from flide_agent.api import frames as f
from flide_agent.api.backend import INLINE_BYTES, Answer
from flide_agent.api.inside import Inside
from flide_agent.errors import FlideError, InternalError, InvalidRequest
from flide_agent.line import Admission
from flide_agent.logs import request_id, traceparent
from flide_agent.reading import Outcome

log = logging.getLogger("flide_agent.api")
Work = Callable[[], Coroutine[Any, Any, Answer | Outcome | None]]


class Desk:
    """pipe: set by whoever connects it. up: it accepts connections. gone: it has ended."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.pipe: f.Pipe[f.FromFront] = f.Pipe(f.FromFront, self._take, self._lost)
        self.up, self.gone = asyncio.Event(), asyncio.Event()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._admitted: dict[int, Admission] = {}
        self._streams: dict[int, AsyncGenerator[bytes, None]] = {}
        self._flushes: dict[int, asyncio.Future[None]] = {}

    async def flush(self, seconds: float = 1.0) -> None:
        """Until what this front end has counted is counted here."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = max(self._flushes, default=0) + 1
        self._flushes[number] = done
        self.pipe.send(f.Flush(number))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done, seconds)
        self._flushes.pop(number, None)

    def _take(self, frame: f.FromFront) -> None:
        match frame:
            case f.Run():
                self._start(frame.id, lambda: self._run(frame))
            case f.Decide():
                self._start(frame.id, lambda: self._decide(frame))
            case f.Admit(id, tenant):
                self._start(id, lambda: self._admit(id, tenant))
            case f.Do():
                self._start(frame.id, lambda: self._do(frame))
            case f.Follow():
                self._start(frame.id, lambda: self._follow(frame))
            case f.Next(id, stream):
                self._start(id, lambda: self._next(id, stream))
            case f.Leave(id):
                self._leave(id)
            case f.Counted(replies, refused, flush):
                for reply in replies:
                    self.inside.replied(*reply)
                for reason in refused:
                    self.inside.refused(reason)
                if (done := self._flushes.get(flush)) is not None and not done.done():
                    done.set_result(None)
            case f.Up():
                self.up.set()

    def _start(self, id: int, work: Work) -> None:
        self._keep(id, asyncio.ensure_future(self._answer(id, work)))

    def _keep(self, id: int, task: asyncio.Task[None]) -> None:
        """Until it ends. A decision's task may come to the place of its admission's before that one's end is told."""
        self._tasks[id] = task

        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(id) is task:
                del self._tasks[id]

        task.add_done_callback(ended)

    async def _answer(self, id: int, work: Work) -> None:
        try:
            answer = await work()
        except FlideError as error:
            self.pipe.send(f.refused(id, error))
        except Exception as error:
            log.error("a call of a front end failed", exc_info=error)
            self.pipe.send(f.refused(id, InternalError(f"the server failed on this request ({type(error).__name__})")))
        else:
            self.pipe.send(f.Ran(id, answer) if isinstance(answer, Outcome) else f.Answered(id, answer or Answer(b"")))

    async def _admit(self, id: int, tenant: str) -> None:
        self._admitted[id] = await self.inside.admit(tenant, 0)

    async def _run(self, frame: f.Run) -> Outcome:
        request_id.set(frame.request_id)
        traceparent.set(frame.trace)
        admitted = self._admitted.pop(frame.id, None)
        try:
            return await self.inside.run(frame.tenant, frame.asked, admitted)
        finally:
            if admitted is not None:
                admitted.leave()

    async def _decide(self, frame: f.Decide) -> Answer:
        request_id.set(frame.request_id)
        traceparent.set(frame.trace)
        admitted = self._admitted.pop(frame.id, None) or await self.inside.admit(frame.tenant, len(frame.ask))
        try:
            if len(frame.ask) < INLINE_BYTES:
                ask = f.ask_of(frame.ask)
            else:
                ask = await self.inside.in_thread(lambda: f.ask_of(frame.ask))
            return await self.inside.decide(frame.tenant, ask, admitted)
        except RecursionError:
            raise InvalidRequest.at((), "the JSON is nested too deeply", "json_invalid") from None
        finally:
            admitted.leave()

    async def _do(self, frame: f.Do) -> Answer:
        request_id.set(frame.request_id)
        if len(frame.operation) < INLINE_BYTES:
            operation = f.operation_of(frame.operation)
        else:
            operation = await self.inside.in_thread(lambda: f.operation_of(frame.operation))
        return await self.inside.do(frame.tenant, operation)

    async def _follow(self, frame: f.Follow) -> None:
        self._streams[frame.id] = await self.inside.follow(frame.tenant, frame.session, frame.after)

    async def _next(self, id: int, stream: int) -> Answer:
        """One event; an empty one is the stream's end. Asked for one by one, so that a slow reader holds nothing here."""
        events = self._streams.get(stream)
        return Answer(b"" if events is None else await anext(events, b""))

    def _leave(self, id: int) -> None:
        if (task := self._tasks.get(id)) is not None:
            task.cancel()
        if (admission := self._admitted.pop(id, None)) is not None:
            admission.leave()
        if (stream := self._streams.pop(id, None)) is not None:
            self._keep(-id, asyncio.ensure_future(_end(stream)))

    def _lost(self) -> None:
        """It has ended: whatever it waited for, nobody does any more."""
        for id in {*self._tasks, *self._admitted, *self._streams}:
            if id > 0:
                self._leave(id)
        for done in self._flushes.values():
            if not done.done():
                done.set_result(None)
        self.gone.set()


async def _end(stream: AsyncGenerator[bytes, None]) -> None:
    with contextlib.suppress(RuntimeError):  # its next event was being waited for, and that was cancelled
        await stream.aclose()
