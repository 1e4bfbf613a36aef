"""Agents whose histories grow by a message a step: 1, 8, 32 of them, each sending its next step once the last one is answered."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from flide_agent.bench import wire
from flide_agent.bench.alone import Beside
from flide_agent.bench.levels import Answers
from flide_agent.bench.report import Report, percentile
from flide_agent.bench.shapes import Shape
from flide_agent.bench.target import Lane, Target
from flide_agent.bench.texts import Texts

BINS = (4000, 8000, 12000, 1 << 30)
FRAME = 3
COLUMNS = {
    "agents": "agents",
    "sessions": "sessions",
    "steps": "steps",
    "per_second": "steps/s",
    "median_ms": "median ms",
    "p99_ms": "p99 ms",
    "ms_per_1000": "ms per 1,000 tokens",
    "equal": "equal bits",
    "engine_share": "engine",
    "busy": "busy",
    "memory_bytes": "peak GiB",
}
BIN_COLUMNS = {
    "agents": "agents",
    "history": "history",
    "steps": "steps",
    "median_ms": "median ms",
    "p99_ms": "p99 ms",
    "products_ms": "products ms",
    "ratio": "ratio",
    "attention_ms": "attention ms",
}


class _Session(msgspec.Struct):
    head: str
    history_tokens: int
    m: int


class _Step(msgspec.Struct):
    answers: msgspec.Raw
    x_session: _Session


@dataclass(frozen=True, slots=True)
class Taken:
    """An answered step. number: 0 opens the session. history: tokens before what it appended. at: when it was answered."""

    number: int
    appended: int
    history: int
    m: int
    ms: float
    at: float
    answers: bytes


@dataclass(slots=True)
class Walk:
    """One session to be walked. failure: why it ended early, "" when it did not."""

    session: int
    name: str
    lane: Lane
    taken: list[Taken] = field(default_factory=list)
    failure: str = ""

    @property
    def key(self) -> tuple[int, int]:
        return self.session, self.lane.copy


class Agents:
    """sessions: tokens appended at each step. questions: sizes of those asked at every step. most_steps: of one session."""

    def __init__(
        self, target: Target, report: Report, beside: Beside | None, texts: Texts,
        sessions: Sequence[Sequence[int]], questions: tuple[int, ...], most_steps: int,
    ) -> None:  # fmt: skip
        self.target, self.report, self.beside, self.texts = target, report, beside, texts
        self.sessions = [list(steps[:most_steps]) for steps in sessions]
        self.questions = questions
        self._asked = msgspec.json.encode(texts.questions(questions, 0))
        self._messages: dict[tuple[int, int], list[bytes]] = {}
        self._known = Answers(target)
        self._walks = 0

    def run(self, agents: Sequence[int]) -> None:
        for level in sorted(agents):
            self._level(level)

    def _level(self, agents: int) -> None:
        walks = [
            self._walk(i % len(self.sessions), self.target.fresh()) for i in range(sessions_of(len(self.sessions), agents))
        ]
        with self.target.metered() as meter:
            started, idle, ended = self._all(walks, agents)
        if agents == 1 and self.target.separate:
            self._learn(walks)
        steps = [t for w in walks for t in w.taken]
        while_busy = [t for t in steps if t.at <= idle]
        grown = [t for t in steps if t.number]
        failures = [w.failure for w in walks if w.failure]
        row: dict[str, Any] = {
            "agents": agents, "sessions": len(walks), "steps": len(steps), "seconds": ended - started, "failed": len(failures),
            "failure": failures[0] if failures else None, "per_second": len(while_busy) / (min(idle, ended) - started),
            "per_second_whole": len(steps) / (ended - started), "median_ms": statistics.median(t.ms for t in grown) if grown else None,
            "p99_ms": percentile([t.ms for t in grown], 0.99) if grown else None, "ms_per_1000": growth(grown) if agents == 1 else None,
            "opening_ms": statistics.median(t.ms for t in steps if not t.number) if steps else None,
            "resumed": sum(t.m > 0 for t in grown) / len(grown) if grown else None,
        } | meter.resources  # fmt: skip
        row["equal"] = None if agents == 1 and self.target.separate else self._compare(walks)
        self.report.add("agents", row)
        self.report.check_equal(f"agents, {agents}", row)
        self._bins(agents, grown)

    def _walk(self, session: int, lane: Lane) -> Walk:
        key = (session, lane.copy)
        if key not in self._messages:
            number = lane.copy * len(self.sessions) + session
            made = []
            for i, tokens in enumerate(self.sessions[session], 1):
                # The first block's heading and the frame's opening are part of what the first step appends.
                size = tokens - FRAME if i == 1 else tokens
                made.append(msgspec.json.encode(self.texts.message(size, i, "tool" if i > 1 else "user", number)))
            self._messages[key] = made
        self._walks += 1
        return Walk(session, f"bench-{self._walks}", lane)

    def _all(self, walks: Sequence[Walk], agents: int) -> list[float]:
        async def work(connection: wire.Connection, _: int, walk: Walk) -> None:
            await self._steps(connection, walk)

        return wire.run(wire.closed_loop(self.target.url, agents, walks, work))

    async def _steps(self, connection: wire.Connection, walk: Walk) -> None:
        head, history = "", 0
        for number, (message, tokens) in enumerate(zip(self._messages[walk.key], self.sessions[walk.session], strict=True)):
            opening = (
                b'{"append":[%s],"head":%s' % (message, msgspec.json.encode(head)) if head else b'{"messages":[%s]' % message
            )
            body = b'%s,"questions":%s}' % (opening, self._asked)
            got = await connection.send("POST", f"/v1/sessions/{walk.name}/decide", body, walk.lane.headers)
            if got.status != 200:
                walk.failure = f"step {number}: {got.status} {got.body[:200]!r}"
                return
            reply = msgspec.json.decode(got.body, type=_Step)
            said = reply.x_session
            if said.history_tokens != history + tokens:
                walk.failure = f"step {number}: a history of {said.history_tokens} tokens, not {history + tokens}"
                return
            walk.taken.append(Taken(number, tokens, history, said.m, got.ms, got.ended, bytes(reply.answers)))
            head, history = said.head, said.history_tokens

    def _learn(self, walks: Sequence[Walk]) -> None:
        for walk in walks:
            for step in walk.taken:
                self._known.learn((walk.key, step.number), step.answers)

    def _compare(self, walks: Sequence[Walk]) -> float | None:
        found = [((w.key, t.number), t.answers) for w in walks for t in w.taken]
        lacking = {key for key, _ in self._known.missing([k for k, _ in found])}
        if lacking:
            lanes = {w.key: w.lane for w in walks}
            again = [self._walk(key[0], self.target.fresh() if self.target.separate else lanes[key]) for key in sorted(lacking)]
            self._all(again, 1)
            self._learn(again)
        return self._known.equal(found)

    def _bins(self, agents: int, grown: Sequence[Taken]) -> None:
        by_bin: dict[int, list[Taken]] = defaultdict(list)
        for step in grown:
            by_bin[next(i for i, end in enumerate(BINS) if step.history < end)].append(step)
        for i, steps in sorted(by_bin.items()):
            low = BINS[i - 1] if i else 0
            times = [t.ms for t in steps]
            row: dict[str, Any] = {
                "agents": agents, "history": f"{low} to {BINS[i]}" if i + 1 < len(BINS) else f"from {low}", "steps": len(steps),
                "median_ms": statistics.median(times), "p99_ms": percentile(times, 0.99),
            }  # fmt: skip
            self.report.add("histories", row)
            if self.beside is not None and agents == 1:
                middle = sorted(steps, key=lambda t: t.ms)[len(steps) // 2]
                tail = middle.history + middle.appended - middle.m
                self.beside.want(row, [Shape(tail, self.questions)], history=middle.m, time_key="median_ms")


def growth(steps: Sequence[Taken]) -> float | None:
    """Milliseconds for each 1,000 tokens of history, by least squares beside what the appended tokens cost. None below 8 steps."""
    if len(steps) < 8 or len({t.history for t in steps}) < 3:
        return None
    x = np.array([[1.0, t.appended, t.history / 1000] for t in steps])
    return float(np.linalg.lstsq(x, np.array([t.ms for t in steps]), rcond=None)[0][2])


def sessions_of(known: int, agents: int) -> int:
    """Sessions of a level: all of them as often, twice as many as agents at least, so that no agent is idle for long."""
    return known if agents == 1 else -(-2 * agents // known) * known


def lanes_needed(known: int, agents: Sequence[int]) -> int:
    """Lanes of all levels: one a session, and once more for what a single agent walks to compare with."""
    return sum(sessions_of(known, n) for n in agents) + known
