"""Closed-loop clients on one workload: latency, requests per second, and every answer against the single client's, bit for bit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from flide_agent.bench import wire
from flide_agent.bench.alone import Beside
from flide_agent.bench.report import Report, percentile
from flide_agent.bench.shapes import Shape, median
from flide_agent.bench.sources import Source
from flide_agent.bench.target import Lane, Target

PATH = "/v1/systemone"
WARM_SECONDS, SECONDS = 2.0, 4.0
"""Of a level of several clients: at least so long unmeasured, so that the shapes of its rounds are captured, and so long measured."""
SETTLED, MOST_BATCHES = 1.3, 6
"""Then so many batches at most, until one is within this of the one before it: where kernels are compiled for the first time a single
batch of requests waits for seconds, and neither it nor the next says how fast the server is."""
MOST_WARM, MOST_REQUESTS = 1024, 2048
"""Requests of the two, however fast they are answered."""
MOST_COPIES = 48
"""Of the rows, for the same: each copy needs a lane of its own."""
COLUMNS = {
    "workload": "workload",
    "clients": "clients",
    "requests": "requests",
    "per_second": "requests/s",
    "median_ms": "median ms",
    "p99_ms": "p99 ms",
    "products_ms": "products ms",
    "ratio": "ratio",
    "attention_ms": "attention ms",
    "a_round": "a round",
    "equal": "equal bits",
    "engine_share": "engine",
    "busy": "busy",
    "memory_bytes": "peak GiB",
}
Key = tuple[int, int]
"""Row and copy: which text."""


class _Usage(msgspec.Struct):
    input_tokens: int
    x_cached_tokens: int = 0


class Reply(msgspec.Struct):
    """answers: as the bytes of their JSON, in which every float stands with all its bits."""

    answers: msgspec.Raw
    usage: _Usage


class Answers:
    """The single client's answers by text, asked for where they are missing."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[Any, bytes] = {}

    def learn(self, key: Any, answers: bytes) -> None:
        self._known.setdefault(key, answers)

    def missing(self, keys: Sequence[Any]) -> list[Any]:
        return [k for k in dict.fromkeys(keys) if k not in self._known]

    def equal(self, found: Sequence[tuple[Any, bytes]]) -> float | None:
        """Share of these answers that have the single client's bits."""
        return sum(self._known.get(k) == a for k, a in found) / len(found) if found else None


class Levels:
    """All levels of one workload. Bodies are made before anything is timed."""

    def __init__(self, target: Target, report: Report, beside: Beside | None, *, per_client: int, warm_up: int) -> None:
        """per_client: requests of a level for each of its clients, at least; each row is sent once at least. warm_up: before it."""
        self.target, self.report, self.beside = target, report, beside
        self.per_client, self.warm_up = per_client, warm_up
        self._bodies: dict[Key, tuple[bytes, Shape]] = {}

    def workload(self, name: str, source: Source, clients: Sequence[int]) -> None:
        self.target.restart()
        self._bodies = {}
        known = Answers(self.target)
        for level in sorted(clients):
            self._level(name, source, level, known)

    def _level(self, name: str, source: Source, clients: int, known: Answers) -> None:
        pace = self._warm(source, clients)
        count = max(source.rows, self.per_client * clients, min(at_most(MOST_REQUESTS, source.rows), int(pace * SECONDS)))
        lanes, jobs = self._cold(source, count)
        with self.target.metered() as meter:
            got, (started, idle, ended) = self._ask(jobs, clients)
        if reference := clients == 1 and self.target.separate:
            for key, answers in self._answers(jobs, got):
                known.learn(key, answers)
        row = {"workload": name, "clients": clients, "requests": count} | self._measured(
            jobs, got, ended - started, meter.counts
        )
        while_busy = sum(g.status == 200 and g.ended <= idle for g in got)
        row["per_second_while_all_busy"] = while_busy / (min(idle, ended) - started)
        row |= meter.resources
        row["equal"] = None if reference else self._compare(source, jobs, got, lanes, known)
        row["compared_with"] = "one client, cold" if self.target.separate else "one client, afterwards, resumed"
        self.report.add("server", row)
        self.report.check_equal(f"server, {name}, {clients} clients", row)
        if self.beside is not None and row["median_ms"] is not None:
            self._want(row, [self._bodies[key][1] for key, _ in jobs], clients)

    def _warm(self, source: Source, clients: int) -> float:
        """Cold requests unmeasured, each row twice at least: passes of a shape that was met are replayed. Returns requests/s of the
        last ones; 0.0 for one client, and for a server whose texts would have to be made for it."""
        count = warm_requests(source.rows, self.warm_up)
        longer = clients > 1 and self.target.separate
        most = most_batches(source.rows, count, longer)
        paces: list[float] = []
        seconds = 0.0
        while len(paces) < most and goes_on(paces, seconds):
            _, (started, _, ended) = self._ask(self._cold(source, count)[1], clients)
            seconds += ended - started
            paces.append(count / (ended - started))
        return paces[-1] if paces and longer else 0.0

    def _cold(self, source: Source, count: int) -> tuple[list[Lane], list[tuple[Key, Lane]]]:
        """So many requests, row by row and then again in a lane of their own; the lanes too."""
        lanes = [self.target.fresh() for _ in range(math.ceil(count / source.rows))]
        return lanes, [self._job(source, i % source.rows, lanes[i // source.rows]) for i in range(count)]

    def _job(self, source: Source, row: int, lane: Lane) -> tuple[Key, Lane]:
        key = (row, lane.copy)
        if key not in self._bodies:
            self._bodies[key] = source.body(row, lane.copy)
        return key, lane

    def _ask(self, jobs: Sequence[tuple[Key, Lane]], clients: int) -> tuple[list[wire.Got], list[float]]:
        got: list[wire.Got] = [wire.Got(0, b"not sent", 0.0)] * len(jobs)

        async def work(connection: wire.Connection, number: int, job: tuple[Key, Lane]) -> None:
            key, lane = job
            got[number] = await connection.send("POST", PATH, self._bodies[key][0], lane.headers)

        return got, wire.run(wire.closed_loop(self.target.url, clients, jobs, work))

    def _answers(self, jobs: Sequence[tuple[Key, Lane]], got: Sequence[wire.Got]) -> list[tuple[Key, bytes]]:
        pairs = zip(jobs, got, strict=True)
        return [(key, bytes(msgspec.json.decode(g.body, type=Reply).answers)) for (key, _), g in pairs if g.status == 200]

    def _measured(
        self, jobs: Sequence[tuple[Key, Lane]], got: Sequence[wire.Got], seconds: float, counts: dict[str, float]
    ) -> dict[str, Any]:
        good = [
            (key, g, msgspec.json.decode(g.body, type=Reply)) for (key, _), g in zip(jobs, got, strict=True) if g.status == 200
        ]
        bad = [g for g in got if g.status != 200]
        times = [g.ms for _, g, _ in good]
        tokens = sum(self._bodies[key][1].tokens for key, _, _ in good)
        rounds = counts.get("rounds")
        return {
            "seconds": seconds, "failed": len(bad), "failure": f"{bad[0].status} {bad[0].body[:200]!r}" if bad else None,
            "per_second": len(good) / seconds, "tokens_per_second": tokens / seconds,
            "median_ms": statistics.median(times) if times else None, "p99_ms": percentile(times, 0.99) if times else None,
            "exact": sum(r.usage.input_tokens == self._bodies[key][1].tokens for key, _, r in good) / max(1, len(good)),
            "cold": sum(r.usage.x_cached_tokens == 0 for _, _, r in good) / max(1, len(good)),
            "a_round": counts["requests"] / rounds if rounds else None, "rounds": rounds,
            "rows_a_round": counts["tokens_computed"] / rounds if rounds else None,
        }  # fmt: skip

    def _compare(
        self, source: Source, jobs: Sequence[tuple[Key, Lane]], got: Sequence[wire.Got], lanes: Sequence[Lane], known: Answers
    ) -> float | None:
        keys = known.missing([key for key, _ in jobs])
        if keys:
            lane = self.target.fresh() if self.target.separate else lanes[0]
            again = [(key, lane) for key in keys]
            for key, answers in self._answers(again, self._ask(again, 1)[0]):
                known.learn(key, answers)
        return known.equal(self._answers(jobs, got))

    def _want(self, row: dict[str, Any], shapes: list[Shape], clients: int) -> None:
        """One client: the request of median size. More: a round as full as the rounds were, its time shared by its requests."""
        assert self.beside is not None
        if clients == 1:
            self.beside.want(row, [median(shapes)], time_key="median_ms")
            return
        each = min(len(shapes), max(1, round(row["a_round"] or 1)))
        row["ms_a_request"] = 1e3 / row["per_second"]
        self.beside.want(row, shapes[:each], time_key="ms_a_request", each=each)


def warm_requests(rows: int, warm_up: int) -> int:
    """Unmeasured requests before a level: none for 0."""
    return max(warm_up, 2 * rows) if warm_up else 0


def most_batches(rows: int, count: int, longer: bool) -> int:
    """Batches of `count` unmeasured requests before a level. longer: it may take more than one."""
    return max(1, at_most(MOST_WARM, rows) // count) if count and longer else min(1, count)


def goes_on(paces: Sequence[float], seconds: float) -> bool:
    """Whether more is warmed up after batches of these paces, requests/s, which took so long together."""
    if seconds < WARM_SECONDS:
        return True
    return len(paces) < MOST_BATCHES and (len(paces) < 2 or max(paces[-2:]) > SETTLED * min(paces[-2:]))


def at_most(limit: int, rows: int) -> int:
    """Requests up to a limit, as far as copies of so many rows reach."""
    return min(limit, MOST_COPIES * rows)


def lanes_needed(rows: int, clients: Sequence[int], per_client: int, warm_up: int) -> int:
    """Lanes that the levels of one workload of so many rows use at most, warm-up and comparison included."""
    warm, needed = warm_requests(rows, warm_up), 1
    for n in clients:
        more = warm > 0 and n > 1
        batches = most_batches(rows, warm, more)
        measured = max(rows, per_client * n, at_most(MOST_REQUESTS, rows) if more else 0)
        needed += batches * math.ceil(warm / rows) + math.ceil(measured / rows)
    return needed
