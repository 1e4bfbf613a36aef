"""One state under ever more questions, and states that come back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from flide_agent.bench import wire
from flide_agent.bench.alone import Beside
from flide_agent.bench.levels import PATH, Reply
from flide_agent.bench.report import Report
from flide_agent.bench.shapes import Shape, median
from flide_agent.bench.sources import Source
from flide_agent.bench.target import Lane, Target
from flide_agent.bench.texts import Texts

QUESTION_COLUMNS = {
    "questions": "questions",
    "rows": "rows",
    "median_ms": "median ms",
    "over_one": "over one",
    "products_ms": "products ms",
    "ratio": "ratio",
    "attention_ms": "attention ms",
    "engine_share": "engine",
    "busy": "busy",
    "memory_bytes": "peak GiB",
}
RECURRING_COLUMNS = {
    "workload": "workload",
    "clients": "clients",
    "states": "states",
    "first_ms": "first ms",
    "median_ms": "again ms",
    "reused": "reused tokens",
    "computed": "computed",
    "per_second": "requests/s again",
    "products_ms": "products ms",
    "ratio": "ratio",
    "attention_ms": "attention ms",
    "equal": "equal bits",
    "engine_share": "engine",
    "busy": "busy",
    "memory_bytes": "peak GiB",
}
FIRST_NUMBER = 1_000_000
"""Of the texts of `questions`: beyond those of workloads."""
WARM = 2
"""Cold requests of each size before those that count: the first of a shape may compile its kernels, the next captures its graph."""
SETTLE_SECONDS = 0.5
"""Checkpoints of requests outside sessions are published behind their answers."""


def questions(
    target: Target,
    report: Report,
    beside: Beside | None,
    texts: Texts,
    *,
    state: int,
    size: int,
    counts: Sequence[int],
    repeats: int,
) -> None:
    """Median latency of one client over so many questions of `size` tokens on a cold state of `state` tokens."""
    shapes = {n: Shape(state, (size,) * n) for n in counts}
    for n, shape in shapes.items():
        target.restart()
        jobs = []
        for number in range(FIRST_NUMBER + n * 1000, FIRST_NUMBER + n * 1000 + WARM + repeats):
            body = {"state": texts.state(state, number), "questions": texts.questions(shape.questions, number)}
            jobs.append((msgspec.json.encode(body), target.fresh()))
        warm, _ = ask(target, jobs[:WARM], 1)
        with target.metered() as meter:
            got, _ = ask(target, jobs[WARM:], 1)
        if bad := [g for g in (*warm, *got) if g.status != 200]:
            report.failures.append(f"questions, {n}: {bad[0].status} {bad[0].body[:200]!r}")
            return
        times = [g.ms for g in got]
        row: dict[str, Any] = {"questions": n, "rows": shape.tokens, "median_ms": statistics.median(times)} | meter.resources
        report.add("questions", row)
        first = report.tables["questions"][0]
        row["over_one"] = row["median_ms"] / first["median_ms"] if first["questions"] == 1 else None
        if beside is not None:
            beside.want(row, [shape], time_key="median_ms")


def recurring(target: Target, report: Report, beside: Beside | None, name: str, source: Source, clients: Sequence[int]) -> None:
    """Each state of a workload once, then again with other questions of the same size; those answers against a cold client's."""
    target.restart()
    for level in clients:
        lane = target.fresh()
        first = [(source.body(row, lane.copy)[0], lane) for row in range(source.rows)]
        again = [source.asked_again(row, lane.copy) for row in range(source.rows)]
        once, _ = ask(target, first, level)
        time.sleep(SETTLE_SECONDS)
        with target.metered() as meter:
            got, (started, _, ended) = ask(target, [(body, lane) for body, _ in again], level)
        bad = [g for g in (*once, *got) if g.status != 200]
        good = [(i, g, msgspec.json.decode(g.body, type=Reply)) for i, g in enumerate(got) if g.status == 200]
        reused = [r.usage.x_cached_tokens for _, _, r in good]
        row: dict[str, Any] = {
            "workload": name, "clients": level, "states": source.rows, "failed": len(bad),
            "failure": f"{bad[0].status} {bad[0].body[:200]!r}" if bad else None,
            "first_ms": statistics.median(g.ms for g in once), "median_ms": statistics.median(g.ms for _, g, _ in good) if good else None,
            "reused": statistics.mean(reused) if reused else None, "states_reused": sum(n > 0 for n in reused) / source.rows,
            "computed": statistics.mean(r.usage.input_tokens - r.usage.x_cached_tokens for _, _, r in good) if good else None,
            "per_second": len(good) / (ended - started),
        } | meter.resources  # fmt: skip
        row["equal"] = _cold(target, [body for body, _ in again], {i: bytes(r.answers) for i, _, r in good})
        report.add("recurring", row)
        report.check_equal(f"recurring, {name}, {level} clients", row)
        if beside is not None and level == 1 and good:
            shape = median([s for _, s in again])
            m = next(r.usage.x_cached_tokens for i, _, r in good if again[i][1] == shape)
            beside.want(row, [Shape(shape.state - m, shape.questions)], history=m, time_key="median_ms")


def _cold(target: Target, bodies: Sequence[bytes], found: dict[int, bytes]) -> float | None:
    """Share of these answers that have the bits of one client's on a cold state. None on a server without lanes."""
    if not target.separate or not found:
        return None
    lane = target.fresh()
    cold, _ = ask(target, [(body, lane) for body in bodies], 1)
    same = [
        cold[i].status == 200 and bytes(msgspec.json.decode(cold[i].body, type=Reply).answers) == a for i, a in found.items()
    ]
    return sum(same) / len(same)


def ask(target: Target, jobs: Sequence[tuple[bytes, Lane]], clients: int) -> tuple[list[wire.Got], list[float]]:
    """POST these to /v1/systemone by so many clients; replies in their order, and closed_loop's times."""
    got = [wire.Got(0, b"not sent", 0.0)] * len(jobs)

    async def work(connection: wire.Connection, number: int, job: tuple[bytes, Lane]) -> None:
        got[number] = await connection.send("POST", PATH, job[0], job[1].headers)

    return got, wire.run(wire.closed_loop(target.url, clients, jobs, work))
