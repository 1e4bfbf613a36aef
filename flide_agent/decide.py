"""The one path from a request to its answers.

read (tokens of trunk and branches) -> find (the deepest checkpoint) -> round (the engine) -> answers -> keep (checkpoints).
Text and store work runs in threads, the engine in its own; the event loop only waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from flide_engine.segments import Request

from flide_agent.asks import ALIASES, Ask
from flide_agent.decision import Decision, Served, Times
from flide_agent.dispatch import Dispatcher, Done
from flide_agent.errors import DeadlineExceeded, InvalidRequest, Overloaded, UnknownModel
from flide_agent.line import Admission, Place, let_go
from flide_agent.reader import Reader
from flide_agent.reading import Reading, build_request, read_answers
from flide_agent.retention import Retention
from flide_agent.settings import Settings
from flide_agent.store.report import Kind

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts
    from flide_agent.sessions import Sessions
    from flide_agent.store import CheckpointStore, Found

__all__ = ["Decider", "Decision", "Served"]

log = logging.getLogger("flide_agent.decide")

READERS = 2
"""Requests that are read at once. Reading is Python for the most part: with more, the engine's thread would get its share of the
interpreter too seldom, and the device would wait."""
T = TypeVar("T")


@dataclass(slots=True)
class _Ready:
    """A request in the engine's line. found: the checkpoint that it starts from, pinned."""

    reading: Reading
    found: Found | None
    place: Place

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        self.place.left = True
        self.place.cancel()
        self.place.add_done_callback(let_go)
        self.release()

    def release(self) -> None:
        if self.found is not None:
            self.found.release()


class Decider:
    """What /v1/systemone, the session routes and in-process callers share. All methods belong to one event loop."""

    def __init__(
        self,
        served: Served,
        prompts: Prompts,
        store: CheckpointStore,
        sessions: Sessions,
        dispatcher: Dispatcher,
        settings: Settings,
    ) -> None:
        self.served, self.settings = served, settings
        self.prompts, self.store, self.sessions, self.dispatcher = prompts, store, sessions, dispatcher
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="text")
        self._reading = threading.BoundedSemaphore(READERS)
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._in_turn: WeakKeyDictionary[asyncio.Lock, int] = WeakKeyDictionary()
        self._behind: set[Future[None]] = set()
        self.retention = Retention(sessions, settings.max_sessions)
        self.reader = Reader(prompts, sessions, self.retention, served, settings)
        self.watchers: list[Callable[[Decision], None]] = []
        """Called on the event loop with each decision, before its reply leaves."""

    async def decide(self, tenant: str, ask: Ask, admission: Admission | None = None) -> Decision:
        """The decision on one request. admission: the engine's line has let it in already. Raises FlideError.

        Steps of one session run one after the other, in order of arrival; all else runs side by side.
        """
        self._check_model(ask.model)
        if ask.label_mass and not self.dispatcher.engine.info.label_mass:
            message = "label mass needs a product over the whole vocabulary, which this server's engine does not compute"
            raise InvalidRequest.at(("x_label_mass",), message, "unsupported")
        if ask.session is None:
            decision = await self._decide(tenant, ask, admission)
        else:
            lock = self.session_lock(tenant, ask.session)
            waiting = self._in_turn.get(lock, 0)
            if waiting > self.settings.max_session_queue:
                message = f"{waiting} steps of this session wait already"
                raise Overloaded(message, retry_after=1.0, reason="session")
            self._in_turn[lock] = waiting + 1
            try:
                async with lock:
                    decision = await self._decide(tenant, ask, admission)
            finally:
                self._in_turn[lock] -= 1
        for watch in self.watchers:
            watch(decision)
        return decision

    async def prefetch(self, tenant: str, ask: Ask) -> dict[str, Any]:
        """Bring what a step on this history will start from onto the engine's device: from disk, or not at all.

        Changes nothing of the session. Raises what `decide` raises.
        """
        assert ask.session is not None
        async with self.session_lock(tenant, ask.session):
            return await self.in_thread(lambda: self._prefetch(tenant, ask))

    def _prefetch(self, tenant: str, ask: Ask) -> dict[str, Any]:
        reading = self.reader.read(tenant, ask)
        found = self.store.find(reading.share_key, reading.tokens, len(reading.tokens))
        m, tier, loaded = (0, None, 0) if found is None else (found.m, found.tier, found.loaded_bytes)
        if found is not None:
            found.release()
        return {"id": ask.session, "history_tokens": len(reading.tokens), "m": m, "tier": tier, "loaded_bytes": loaded}

    def session_lock(self, tenant: str, session: str) -> asyncio.Lock:
        """Held while a step of the session runs."""
        return self._locks.setdefault((tenant, session), asyncio.Lock())

    async def in_thread(self, work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        """Run blocking work of text or store off the event loop. undo: what happens to a result that nobody waits for any more."""
        future = self._threads.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if undo is not None:
                future.add_done_callback(lambda f: None if f.cancelled() or f.exception() else undo(f.result()))
            raise

    async def settle(self) -> None:
        """Wait for what runs behind answers."""
        while self._behind:
            await asyncio.gather(*map(asyncio.wrap_future, list(self._behind)), return_exceptions=True)

    async def close(self) -> None:
        """Settle, and end the threads."""
        await self.settle()
        self._threads.shutdown(wait=True)

    async def _decide(self, tenant: str, ask: Ask, admission: Admission | None) -> Decision:
        times = Times(ask.arrived)
        # One hop: what a thread does in a row costs less than what the loop hands from thread to thread.
        ready = await self.in_thread(lambda: self._prepare(tenant, ask, admission, times), _Ready.give_up)
        try:
            done = await self.dispatcher.wait(ready.place)
        finally:
            ready.release()
        times.mark("engine")
        times.parts["queue"] = 1e3 * done.queued
        times.parts["engine"] -= times.parts["queue"]
        if ready.reading.step is not None:
            return await _to_the_end(asyncio.wrap_future(self._threads.submit(self._finish, tenant, ready, done, times)))
        return self._finish(tenant, ready, done, times)

    def _prepare(self, tenant: str, ask: Ask, admission: Admission | None, times: Times) -> _Ready:
        """Read the request, find its checkpoint, put it in the engine's line."""
        if ask.deadline and time.perf_counter() > ask.deadline:
            raise DeadlineExceeded("the deadline passed before the request was read")
        with self._reading:
            reading = self.reader.read(tenant, ask)
        times.mark("render")
        found = self.store.find(reading.share_key, reading.tokens, len(reading.tokens))
        try:
            times.mark("find")
            owner = reading.share_key + (ask.session or "").encode()
            place = self.dispatcher.enqueue(build_request(reading, found), owner, ask.deadline, admission)
        except BaseException:
            if found is not None:
                found.release()
            raise
        return _Ready(reading, found, place)

    def _finish(self, tenant: str, ready: _Ready, done: Done, times: Times) -> Decision:
        """Answers, and the new checkpoints handed on. A session's head is set before its reply leaves; publishing for
        requests outside sessions runs behind it."""
        reading, m = ready.reading, 0 if ready.found is None else ready.found.m
        try:
            answers, candidates = read_answers(reading, done)
        except BaseException:
            _release(done)
            raise
        if done.together == 1:  # the seconds of a round with others are not this request's own
            self.store.costs.computed(done.result.computed_tokens, done.seconds)
        checkpoints = {position: c for (_, position), c in sorted(done.result.checkpoints.items())}
        if (step := reading.step) is not None:
            self.sessions.commit(step, checkpoints, m=m)
            if step.opens:
                self.retention.opened(tenant)
        elif checkpoints or m:
            self._run_behind(lambda: self._publish(reading, m, checkpoints))
        times.mark("keep")
        reply = self._reply(reading, done, m, answers, candidates, times)
        seconds = time.perf_counter() - times.start
        found = ready.found
        return Decision(
            tenant, reply, times.parts, time.time() - seconds, seconds, m, max(checkpoints, default=m),
            done.result.computed_tokens + done.result.shared_tokens, "" if found is None else found.tier,
            "" if step is None else step.session_id, "" if step is None else step.reason, 0 if step is None else step.common,
        )  # fmt: skip

    def request(self, tenant: str, ask: Ask) -> Request:
        """What the engine is asked for on a cold start. Blocking; for probes and measurements."""
        return build_request(self.reader.read(tenant, ask), None)

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self.served.name and model not in ALIASES:
            raise UnknownModel(f"Unknown model: {model[:100]}; this server has {self.served.name}")

    def _publish(self, reading: Reading, m: int, checkpoints: dict[int, Any]) -> None:
        """Of a request outside sessions. A state seen once stays on the device; one that came back is written to the disk."""
        if m:
            self.store.resumed(reading.share_key, reading.tokens, m, None)
        for position, checkpoint in checkpoints.items():
            self.store.publish(reading.share_key, reading.tokens[:position], checkpoint, None, Kind.INNER)

    def _run_behind(self, work: Callable[[], None]) -> None:
        future = self._threads.submit(work)
        self._behind.add(future)
        future.add_done_callback(self._ended)

    def _ended(self, future: Future[None]) -> None:
        self._behind.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            log.error("publishing a checkpoint failed", exc_info=error)

    def _reply(
        self,
        reading: Reading,
        done: Done,
        m: int,
        answers: dict[str, Any],
        candidates: dict[str, Any],
        times: Times,
    ) -> dict[str, Any]:
        tokens = len(reading.tokens) + reading.branch_tokens
        reply: dict[str, Any] = {
            "model": self.served.name,
            "answers": answers,
            "usage": {"input_tokens": tokens, "output_tokens": 0, "x_cached_tokens": m},
            "x_prompt_format": self.prompts.format,
        }
        if self.served.untrained:
            reply["x_untrained"] = True
        if reading.escaped:
            reply["x_escaped"] = True
        if outside := reading.outside:
            reply["x_out_of_scope"] = outside
        if candidates:
            reply["x_candidates"] = candidates
        if (step := reading.step) is not None:
            total = 1e3 * (time.perf_counter() - times.start)
            reply["x_session"] = {
                "id": step.session_id,
                "head": step.head,
                "step": step.number,
                "m": m,
                "reused_tokens": m,
                "computed_tokens": done.result.computed_tokens + done.result.shared_tokens,
                "reason": step.reason,
                "history_tokens": len(reading.tokens),
                "latency": {name: round(ms, 3) for name, ms in times.parts.items()} | {"total": round(total, 3)},
            }
        return reply


async def _to_the_end(work: asyncio.Future[T]) -> T:
    """Wait for `work` even when the caller is cancelled meanwhile: the session's next step must not overtake a commit."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _release(done: Done) -> None:
    for checkpoint in done.result.checkpoints.values():
        checkpoint.release()
