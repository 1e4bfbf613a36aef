"""The one path from a request to its answers.

read (tokens of trunk and branches) -> find (the deepest checkpoint) -> round (the engine) -> answers -> keep (checkpoints).
Text and store work runs in threads, the engine in its own; the event loop only waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from flide_engine.segments import Request, Tokens

from flide_agent.asks import ALIASES, Ask
from flide_agent.dispatch import Dispatcher, Done
from flide_agent.errors import InvalidRequest, TooLong, UnknownModel
from flide_agent.messages import InputError, InputErrors
from flide_agent.questions import Question
from flide_agent.reading import Branches, Reading, build_request, read_answers
from flide_agent.settings import Settings

if TYPE_CHECKING:
    from flide_agent.prompts import Branch, Prompts
    from flide_agent.sessions import Sessions
    from flide_agent.store import CheckpointStore

log = logging.getLogger("flide_agent.decide")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """The model as clients see it. context: tokens that one trunk with one branch may have. released: day of its files."""

    name: str
    untrained: bool
    context: int
    released: date


@dataclass(slots=True)
class _Times:
    """Milliseconds by part, in order: each `mark` closes one part."""

    start: float
    last: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)

    def mark(self, part: str) -> None:
        now = time.perf_counter()
        self.parts[part] = 1e3 * (now - (self.last or self.start))
        self.last = now


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
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._behind: set[asyncio.Task[None]] = set()

    async def decide(self, tenant: str, ask: Ask) -> dict[str, Any]:
        """The reply to one request, as JSON-able data. Raises FlideError.

        Steps of one session run one after the other, in order of arrival; all else runs side by side.
        """
        self._check_model(ask.model)
        if ask.session is None:
            return await self._decide(tenant, ask)
        async with self.session_lock(tenant, ask.session):
            return await self._decide(tenant, ask)

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
            await asyncio.gather(*self._behind, return_exceptions=True)

    async def close(self) -> None:
        """Settle, and end the threads."""
        await self.settle()
        self._threads.shutdown(wait=True)

    async def _decide(self, tenant: str, ask: Ask) -> dict[str, Any]:
        times = _Times(ask.arrived)
        reading = await self.in_thread(lambda: self._read(tenant, ask))
        times.mark("render")
        find = partial(self.store.find, reading.share_key, reading.tokens, len(reading.tokens))
        found = await self.in_thread(find, lambda f: None if f is None else f.release())
        try:
            times.mark("find")
            request = build_request(reading, found)
            done = await self.dispatcher.submit(request)
            times.mark("engine")
            times.parts["queue"] = 1e3 * done.queued
            times.parts["engine"] -= times.parts["queue"]
        finally:
            if found is not None:
                found.release()
        m = 0 if found is None else found.m
        try:
            answers, candidates = read_answers(reading, done)
        except BaseException:
            _release(done)
            raise
        await self._keep(reading, done, m)
        return self._reply(reading, done, m, answers, candidates, times)

    def request(self, tenant: str, ask: Ask) -> Request:
        """What the engine is asked for on a cold start. Blocking; for probes and measurements."""
        return build_request(self._read(tenant, ask), None)

    def _read(self, tenant: str, ask: Ask) -> Reading:
        """Tokens of everything. Raises InvalidRequest, HeadConflict, TooLong."""
        try:
            branches = self._branches(ask.questions)
            if ask.session is None:
                trunk = self.prompts.state(ask.state)
                escaped = trunk.escaped or any(b.escaped for _, _, b in branches)
                reading = Reading(trunk.tokens, trunk.saves, self.sessions.share_key(tenant), escaped, (), branches)
            else:
                reading = self._read_step(tenant, ask.session, ask, branches)
        except (InputError, InputErrors) as e:
            raise InvalidRequest(e.details()) from e
        except RecursionError as e:
            raise InvalidRequest.at((), "the JSON is nested too deeply", "json_invalid") from e
        self._check_lengths(reading)
        return reading

    def _read_step(self, tenant: str, session: str, ask: Ask, branches: Branches) -> Reading:
        step = self.sessions.begin(tenant, session, messages=ask.messages, append=ask.append, head=ask.head, tools=ask.tools)
        candidates: list[tuple[str, Tokens]] = []
        escaped = step.escaped or any(b.escaped for _, _, b in branches)
        if ask.candidates and not self.prompts.incremental:
            # Its blocks cannot be tokenised apart from the history, so a candidate would not read as it does in the history.
            raise InvalidRequest.at(("x_candidates",), f"this model's tokenizer allows no candidates: {self.prompts.reason}")
        for key, messages in ask.candidates.items():
            blocks = [self.prompts.message(step.messages + i, m) for i, m in enumerate(messages, 1)]
            candidates.append((key, np.concatenate([b.tokens for b in blocks]).astype(np.int32)))
            escaped = escaped or any(b.escaped for b in blocks)
        return Reading(step.tokens, step.saves, step.share_key, escaped, tuple(candidates), branches, step)

    def _branches(self, questions: dict[str, Question]) -> Branches:
        faults: list[dict[str, Any]] = []
        branches: list[tuple[str, Question, Branch]] = []
        for key, question in questions.items():
            try:
                branches.append((key, question, self.prompts.question(question)))
            except InputError as e:  # its loc starts at the question
                faults.append(e.detail() | {"loc": ["body", "questions", key, *e.loc]})
        if faults:
            raise InvalidRequest(faults)
        return tuple(branches)

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self.served.name and model not in ALIASES:
            raise UnknownModel(f"Unknown model: {model[:100]}; this server has {self.served.name}")

    def _check_lengths(self, reading: Reading) -> None:
        """Raises TooLong, naming what is too long and by how much. Nothing is ever cut."""
        s, trunk = self.settings, len(reading.tokens)
        if s.max_state_tokens and trunk > s.max_state_tokens:
            raise TooLong(f"the state has {trunk} tokens; this server takes {s.max_state_tokens}")
        longest, name = max((len(b.tokens), key) for key, _, b in reading.branches)
        if s.max_question_tokens and longest > s.max_question_tokens:
            raise TooLong(f"question {name!r} has {longest} tokens; this server takes {s.max_question_tokens}")
        between = max((len(t) for _, t in reading.candidates), default=0)
        if (whole := trunk + between + longest) > self.served.context:
            raise TooLong(f"state and question {name!r} have {whole} tokens; the model reads {self.served.context}")
        if reading.branch_tokens > s.max_request_tokens:
            raise TooLong(
                f"the questions have {reading.branch_tokens} tokens together; this server takes {s.max_request_tokens}"
            )

    async def _keep(self, reading: Reading, done: Done, m: int) -> None:
        """Hand the new checkpoints on. A session's head is set before its reply leaves; other publishing runs behind it."""
        checkpoints = {position: c for (_, position), c in sorted(done.result.checkpoints.items())}
        if (step := reading.step) is not None:
            await _to_the_end(self.in_thread(partial(self.sessions.commit, step, checkpoints, m=m)))
            return
        if checkpoints:
            self._run_behind(self.in_thread(partial(self._publish, reading, checkpoints)))

    def _publish(self, reading: Reading, checkpoints: dict[int, Any]) -> None:
        for position, checkpoint in checkpoints.items():
            self.store.publish(reading.share_key, reading.tokens[:position], checkpoint, None)

    def _run_behind(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._behind.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._behind.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("publishing a checkpoint failed", exc_info=error)

    def _reply(
        self,
        reading: Reading,
        done: Done,
        m: int,
        answers: dict[str, Any],
        candidates: dict[str, Any],
        times: _Times,
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
        if candidates:
            reply["x_candidates"] = candidates
        if (step := reading.step) is not None:
            times.mark("keep")
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


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for `work` even when the caller is cancelled meanwhile: the session's next step must not overtake a commit."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _release(done: Done) -> None:
    for checkpoint in done.result.checkpoints.values():
        checkpoint.release()
