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
import numpy.typing as npt
from flide_engine.segments import Kind, Readout, Request, Segment, Tokens

from flide_agent.asks import ALIASES, Ask
from flide_agent.dispatch import Dispatcher, Done
from flide_agent.errors import InternalError, InvalidRequest, TooLong, UnknownModel
from flide_agent.messages import InputError, InputErrors, Message
from flide_agent.questions import Question, answer
from flide_agent.settings import Settings

if TYPE_CHECKING:
    from flide_agent.prompts import Branch, Prompts
    from flide_agent.sessions import Sessions, Step
    from flide_agent.store import CheckpointStore, Found

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


@dataclass(frozen=True, slots=True)
class _Reading:
    """A request in tokens. branches: (candidate id or None, question id, question, tokens and labels); a candidate's own
    tokens come first in `candidates`. step: the session's step when there is one."""

    tokens: Tokens
    saves: tuple[int, ...]
    share_key: bytes
    escaped: bool
    candidates: tuple[tuple[str, Tokens], ...]
    branches: tuple[tuple[str, Question, Branch], ...]
    step: Step | None = None

    @property
    def branch_tokens(self) -> int:
        own = sum(len(b.tokens) for _, _, b in self.branches)
        return own * (1 + len(self.candidates)) + sum(len(t) for _, t in self.candidates)


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

    async def close(self) -> None:
        """Wait for what runs behind answers."""
        while self._behind:
            await asyncio.gather(*self._behind, return_exceptions=True)
        self._threads.shutdown(wait=True)

    async def _decide(self, tenant: str, ask: Ask) -> dict[str, Any]:
        times = _Times(ask.arrived)
        reading = await self.in_thread(lambda: self._read(tenant, ask))
        times.mark("render")
        find = partial(self.store.find, reading.share_key, reading.tokens, len(reading.tokens))
        found = await self.in_thread(find, lambda f: None if f is None else f.release())
        try:
            times.mark("find")
            request = _request(reading, found)
            done = await self.dispatcher.submit(request)
            times.mark("engine")
            times.parts["queue"] = 1e3 * done.queued
            times.parts["engine"] -= times.parts["queue"]
        finally:
            if found is not None:
                found.release()
        m = 0 if found is None else found.m
        try:
            answers, candidates = _answers(reading, done)
        except BaseException:
            _release(done)
            raise
        await self._keep(reading, done, m)
        return self._reply(reading, done, m, answers, candidates, times)

    def request(self, tenant: str, ask: Ask) -> Request:
        """What the engine is asked for on a cold start. Blocking; for probes and measurements."""
        return _request(self._read(tenant, ask), None)

    def _read(self, tenant: str, ask: Ask) -> _Reading:
        """Tokens of everything. Raises InvalidRequest, HeadConflict, TooLong."""
        try:
            branches = tuple((key, q, self.prompts.question(q)) for key, q in ask.questions.items())
            if ask.session is None:
                trunk = self.prompts.state(ask.state)
                share_key = self.sessions.share_key(tenant)
                reading = _Reading(trunk.tokens, trunk.saves, share_key, trunk.escaped, (), branches)
            else:
                step = self.sessions.begin(
                    tenant, ask.session, messages=ask.messages, append=ask.append, head=ask.head, tools=ask.tools
                )
                first = len(step.ends) - 1  # ends: the frame, block [0], then one a message
                candidates = tuple((key, self._candidate(first, messages)) for key, messages in ask.candidates.items())
                reading = _Reading(step.tokens, step.saves, step.share_key, step.escaped, candidates, branches, step)
        except (InputError, InputErrors) as e:
            raise InvalidRequest(e.details()) from e
        except RecursionError as e:
            raise InvalidRequest.at((), "the JSON is nested too deeply", "json_invalid") from e
        self._check_lengths(reading)
        return reading

    def _candidate(self, index: int, messages: list[Message]) -> Tokens:
        blocks = [self.prompts.message(index + i, m).tokens for i, m in enumerate(messages)]
        return np.concatenate(blocks).astype(np.int32)

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self.served.name and model not in ALIASES:
            raise UnknownModel(f"Unknown model: {model[:100]}; this server has {self.served.name}")

    def _check_lengths(self, reading: _Reading) -> None:
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

    async def _keep(self, reading: _Reading, done: Done, m: int) -> None:
        """Hand the new checkpoints on. A session's head is set before its reply leaves; other publishing runs behind it."""
        checkpoints = {position: c for (_, position), c in sorted(done.result.checkpoints.items())}
        if (step := reading.step) is not None:
            await _to_the_end(self.in_thread(partial(self.sessions.commit, step, checkpoints, m=m)))
            return
        if checkpoints:
            self._run_behind(self.in_thread(partial(self._publish, reading, checkpoints)))

    def _publish(self, reading: _Reading, checkpoints: dict[int, Any]) -> None:
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
        reading: _Reading,
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


def _request(reading: _Reading, found: Found | None) -> Request:
    """trunk tail <- questions, and trunk tail <- candidates <- questions."""
    m = 0 if found is None else found.m
    segments = [Segment(reading.tokens[m:], saves=tuple(p for p in reading.saves if p > m))]
    segments += [_branch(b, 0) for _, _, b in reading.branches]
    for _, tokens in reading.candidates:
        segments.append(Segment(tokens, parent=0, kind=Kind.LOCAL))
        at = len(segments) - 1
        segments += [_branch(b, at) for _, _, b in reading.branches]
    return Request(tuple(segments), checkpoint=None if found is None else found.checkpoint, share_key=reading.share_key)


def _branch(branch: Branch, parent: int) -> Segment:
    readout = Readout(len(branch.tokens) - 1, branch.labels)
    return Segment(branch.tokens, parent=parent, kind=Kind.LOCAL, readouts=(readout,))


def _answers(reading: _Reading, done: Done) -> tuple[dict[str, Any], dict[str, Any]]:
    """(answers on the bare trunk, {candidate id: {"answers"}}), read back in the order of `_request`."""
    logits, n = done.result.logits, len(reading.branches)

    def read(first: int) -> dict[str, Any]:
        pairs = enumerate(reading.branches, first)
        return {key: answer(question, probabilities(logits[at][0])) for at, (key, question, _) in pairs}

    candidates = {key: {"answers": read(2 + n + i * (n + 1))} for i, (key, _) in enumerate(reading.candidates)}
    return read(1), candidates


def probabilities(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Softmax over the labels only, in float64. logits: float32 [labels]. Raises InternalError when they are not finite."""
    x = logits.astype(np.float64)
    if not np.isfinite(x).all():
        raise InternalError("the model gave numbers that are not finite for this request")
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def _release(done: Done) -> None:
    for checkpoint in done.result.checkpoints.values():
        checkpoint.release()
