"""The one path from a request to its answers.

read (tokens of trunk and branches) -> find (the deepest checkpoint) -> round (the engine) -> answers -> keep (checkpoints).
Text and store work runs in threads, the engine in its own; the event loop only waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from flide_engine.segments import Request, Tokens

from flide_agent.asks import Ask
from flide_agent.behind import Behind
from flide_agent.decision import Decision, Served, Times
from flide_agent.dispatch import Dispatcher, Done
from flide_agent.errors import DeadlineExceeded, Overloaded
from flide_agent.line import Admission
from flide_agent.reader import Reader, check
from flide_agent.reading import Outcome, Reading, Tokenised, about_step, build_request, read_answers, reply_to
from flide_agent.retention import Retention
from flide_agent.settings import Settings
from flide_agent.store.errors import MustLoad
from flide_agent.waiting import Ready, Waits

if TYPE_CHECKING:
    from flide_engine.memory import Checkpoint, PoolFull

    from flide_agent.prompts import Prompts
    from flide_agent.sessions import Sessions, Step
    from flide_agent.store import CheckpointStore, Found

__all__ = ["Decider", "Decision", "Served"]

READERS = 2
"""Requests that are read at once. Reading is Python for the most part: with more, the engine's thread would get its share of the
interpreter too seldom, and the device would wait."""
SHORT = 4096
"""Characters of a state that is read where it arrives while the engine has nothing to do, as a state of up to MOST_KNOWN seen lately is:
handing it to a thread would take about as long. While the engine is busy threads read beside it."""
MOST_KNOWN = 32 << 10
T = TypeVar("T")


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
        self._behind = Behind(store, self._threads)
        self.retention = Retention(sessions, settings.max_sessions)
        self.reader = Reader(prompts, sessions, self.retention, served, settings)
        self.watchers: list[Callable[[Decision], None]] = []
        """Called on the event loop with each decision, before its reply leaves."""

    async def decide(self, tenant: str, ask: Ask, admission: Admission | None = None) -> Decision:
        """The decision on one request. admission: the engine's line has let it in already. Raises FlideError.

        Steps of one session run one after the other, in order of arrival; all else runs side by side.
        """
        check(ask, self.served, self.dispatcher.engine.info.label_mass)
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
        self._behind.catch_up()
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

    def replied(self) -> None:
        """A reply was handed to its connection: what is done behind answers may begin."""
        self._behind.replied()

    def relieve(self, full: PoolFull) -> bool:
        """`CheckpointStore.relieve`, for the engine's thread: what was answered and is not published yet can make way too."""
        self._behind.catch_up()
        return self.store.relieve(full)

    async def settle(self) -> None:
        """Wait for what runs behind answers."""
        await self._behind.settle()

    async def close(self) -> None:
        """Settle, and end the threads."""
        await self.settle()
        self._threads.shutdown(wait=True)

    async def run(self, tenant: str, asked: Tokenised, admission: Admission | None = None) -> Outcome:
        """The engine's word on a request outside sessions that was read elsewhere. Raises FlideError."""
        times = Times(asked.arrived)
        times.mark("render", asked.read)
        tokens, share_key = asked.tokens, self.sessions.share_key(tenant)

        def build(found: Found | None) -> Request:
            return asked.request(tokens, found, share_key)

        def begin(wait: bool) -> Waits:
            return self._begin(share_key, tokens, build, share_key, asked.deadline, admission, times, wait)

        waits = await self._at_once_or_in_thread(begin, Waits.give_up)
        done = await self._answered(waits, times)
        try:
            outcome = Outcome.of(done, waits.m)
        except BaseException:
            _release(done)
            raise
        checkpoints = self._made(done)
        self._behind.publish(waits, checkpoints)
        times.mark("keep")
        decision = self._decision(tenant, {}, waits, done, times, checkpoints, len(asked.lengths))
        for watch in self.watchers:
            watch(decision)
        return outcome

    async def _decide(self, tenant: str, ask: Ask, admission: Admission | None) -> Decision:
        times = Times(ask.arrived)
        if ask.session is None and self.dispatcher.idle and self._quickly_read(tenant, ask.state):
            reading = self._read(tenant, ask, times)

            def begin(wait: bool) -> Ready:
                return self._stand_in_line(reading, ask, admission, times, wait)

            ready = await self._at_once_or_in_thread(begin, Ready.give_up)
        else:
            # One hop: what a thread does in a row costs less than what the loop hands from thread to thread.
            ready = await self.in_thread(lambda: self._prepare(tenant, ask, admission, times), Ready.give_up)
        done = await self._answered(ready.waits, times)
        if ready.reading.step is not None:
            return await _to_the_end(asyncio.wrap_future(self._threads.submit(self._finish, tenant, ready, done, times)))
        return self._finish(tenant, ready, done, times)

    def _quickly_read(self, tenant: str, state: object) -> bool:
        if not isinstance(state, str):
            return False
        return len(state) < SHORT or (len(state) <= MOST_KNOWN and self.reader.states.knows(tenant, state))

    async def _at_once_or_in_thread(self, work: Callable[[bool], T], undo: Callable[[T], None]) -> T:
        """work: with False it raises MustLoad rather than wait."""
        try:
            return work(False)
        except MustLoad:
            return await self.in_thread(lambda: work(True), undo)

    async def _answered(self, waits: Waits, times: Times) -> Done:
        try:
            done = await self.dispatcher.wait(waits.place)
        finally:
            waits.release()
        times.mark("engine")
        times.parts["queue"] = 1e3 * done.queued
        times.parts["engine"] -= times.parts["queue"]
        return done

    def _prepare(self, tenant: str, ask: Ask, admission: Admission | None, times: Times) -> Ready:
        """Read the request, find its checkpoint, put it in the engine's line."""
        with self._reading:
            reading = self._read(tenant, ask, times)
        return self._stand_in_line(reading, ask, admission, times, True)

    def _read(self, tenant: str, ask: Ask, times: Times) -> Reading:
        if ask.deadline and time.perf_counter() > ask.deadline:
            raise DeadlineExceeded("the deadline passed before the request was read")
        reading = self.reader.read(tenant, ask)
        times.mark("render")
        return reading

    def _stand_in_line(self, reading: Reading, ask: Ask, admission: Admission | None, times: Times, wait: bool) -> Ready:
        """wait: False raises MustLoad rather than load a checkpoint."""

        def build(found: Found | None) -> Request:
            return build_request(reading, found)

        owner = reading.share_key + (ask.session or "").encode()
        tokens, share_key = reading.tokens, reading.share_key
        return Ready(reading, self._begin(share_key, tokens, build, owner, ask.deadline, admission, times, wait))

    def _begin(
        self,
        share_key: bytes,
        tokens: Tokens,
        build: Callable[[Found | None], Request],
        owner: bytes,
        deadline: float,
        admission: Admission | None,
        times: Times,
        wait: bool,
    ) -> Waits:
        self._behind.catch_up()
        found = self.store.find(share_key, tokens, len(tokens), wait=wait)
        try:
            times.mark("find")
            place = self.dispatcher.enqueue(build(found), owner, deadline, admission)
        except BaseException:
            if found is not None:
                found.release()
            raise
        return Waits(share_key, tokens, found, place)

    def _finish(self, tenant: str, ready: Ready, done: Done, times: Times) -> Decision:
        """Answers, and the new checkpoints handed on. A session's head is set before its reply leaves; publishing for
        requests outside sessions runs behind it."""
        reading, waits = ready.reading, ready.waits
        try:
            answers, candidates = read_answers(reading, done.result.logits, done.result.sums)
        except BaseException:
            _release(done)
            raise
        checkpoints = self._made(done)
        if (step := reading.step) is not None:
            self.sessions.commit(step, checkpoints, m=waits.m)
            if step.opens:
                self.retention.opened(tenant)
        else:
            self._behind.publish(waits, checkpoints)
        times.mark("keep")
        reply = reply_to(reading, self.served, self.prompts.format, waits.m, answers, candidates)
        if step is not None:
            reply["x_session"] = about_step(step, waits.m, len(reading.tokens), done, times)
        return self._decision(tenant, reply, waits, done, times, checkpoints, len(reading.branches), step)

    def _made(self, done: Done) -> dict[int, Checkpoint]:
        """New checkpoints by position; the store learns what they took."""
        if done.together == 1:  # the seconds of a round with others are not this request's own
            self.store.costs.computed(done.result.computed_tokens, done.seconds)
        return {position: c for (_, position), c in sorted(done.result.checkpoints.items())}

    @staticmethod
    def _decision(
        tenant: str, reply: dict[str, Any], waits: Waits, done: Done, times: Times, checkpoints: dict[int, Checkpoint],
        questions: int, step: Step | None = None,
    ) -> Decision:  # fmt: skip
        seconds = time.perf_counter() - times.start
        return Decision(
            tenant, reply, times.parts, time.time() - seconds, seconds, waits.m, max(checkpoints, default=waits.m),
            done.result.computed_tokens + done.result.shared_tokens, "" if waits.found is None else waits.found.tier,
            "" if step is None else step.session_id, "" if step is None else step.reason, 0 if step is None else step.common,
            questions,
        )  # fmt: skip

    def request(self, tenant: str, ask: Ask) -> Request:
        """What the engine is asked for on a cold start. Blocking; for probes and measurements."""
        return build_request(self.reader.read(tenant, ask), None)


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
