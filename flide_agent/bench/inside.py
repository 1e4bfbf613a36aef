"""The engine in this process: one request of each workload's size, a round of them, and agents' steps behind long histories."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flide_engine.engine import Engine, RequestResult
from flide_engine.segments import GRID, Request, Round

from flide_agent.bench import machine
from flide_agent.bench.ablation import Drawn, Switches, answers, whole_vocabulary
from flide_agent.bench.beside import Yardstick, release
from flide_agent.bench.report import Report
from flide_agent.bench.shapes import Shape, Workloads, median

WARM = 3
"""Repeats that do not count: kernels are compiled, shapes captured."""
HEAT_SECONDS = 0.3
"""The same for a GPU, whose clock rises under load."""
TAIL, BRANCHES = 300, (60,) * 5
"""An agent's step: tokens appended, and its questions."""
COLUMNS = {
    "workload": "workload",
    "switches": "switches",
    "rows": "rows",
    "padded_rows": "padded",
    "questions": "questions",
    "passes": "passes",
    "ms": "ms",
    "gpu_ms": "device ms",
    "products_ms": "products ms",
    "ratio": "ratio",
    "attention_ms": "attention ms",
    "busy": "busy",
    "round_requests": "in a round",
    "per_second": "requests/s",
    "round_ratio": "round ratio",
    "equal": "equal bits",
}
STEP_COLUMNS = {
    "history": "history",
    "rows": "rows",
    "ms": "ms",
    "gpu_ms": "device ms",
    "products_ms": "products ms",
    "ratio": "ratio",
    "attention_ms": "attention ms",
    "busy": "busy",
}
MEMORY_COLUMNS = {
    "switches": "switches",
    "peak_bytes": "peak GiB",
    "pool_bytes": "pool GiB",
    "without_pool_bytes": "without pool GiB",
}
GROWTH_COLUMNS = {
    "ms_per_1000": "ms per 1,000 tokens",
    "gpu_ms_per_1000": "device ms per 1,000",
    "attention_ms_per_1000": "attention ms per 1,000",
    "over_attention": "device over attention",
}


@dataclass(frozen=True, slots=True)
class Timed:
    """Medians in milliseconds. ms: prepare, submit, collect on the host's clock. gpu_ms: between events on the device's stream;
    on a CPU the pass itself. results: of the last round, its checkpoints given back."""

    ms: float
    gpu_ms: float
    passes: int
    results: tuple[RequestResult, ...]


def load(
    model: str, device: str, dtype: str, memory_bytes: int, max_stream: int, graphs: bool, max_memory: int | None = None
) -> Engine:
    """An engine. Raises StartError for a model that is not there, ModelError or ValueError."""
    from flide_agent.model_files import directory_of

    if device.startswith("cuda") and max_memory is not None:
        cap(device, max_memory)
    directory = directory_of(model)
    name = str(directory) if model == "default" else model
    return Engine.load(
        name, device=device, dtype=getattr(torch, dtype), memory_bytes=memory_bytes, max_stream=max_stream, graphs=graphs
    )


def cap(device: str, max_memory: int) -> None:
    """Let this process take at most so many bytes of the device. Raises ValueError for more than it has."""
    import flide_engine.cuda  # noqa: F401  (its settings must stand before CUDA starts)

    index = torch.device(device).index or 0
    total = torch.cuda.get_device_properties(index).total_memory
    if not 0 < max_memory <= total:
        raise ValueError(f"--max-memory: {max_memory} is not within the device's {total} bytes")
    torch.cuda.set_per_process_memory_fraction(max_memory / total, index)


def seconds_of(
    engine: Engine, rounds: Sequence[Sequence[Request]], repeats: int, after: Callable[[], None] | None = None
) -> Timed:
    """Time these rounds, one behind the other, as one piece of work. after: more work of every repeat, behind each pass's launch."""
    gpu = torch.device(engine.info.device).type == "cuda"
    host: list[float] = []
    device: list[float] = []
    results: list[RequestResult] = []
    passes = warmed = 0
    heated = time.perf_counter() + (HEAT_SECONDS if gpu else 0.0)
    while len(host) < repeats:
        results, passes, on_device = [], 0, 0.0
        if gpu:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = time.perf_counter()
        for number, requests in enumerate(rounds):
            prepared = engine.prepare(Round(tuple(requests)))
            if gpu and not number:
                first.record()
            launched = time.perf_counter()
            ticket = engine.submit(prepared)
            if after is not None:
                after()
            on_device += 1e3 * (time.perf_counter() - launched)
            if gpu:
                last.record()
            done = engine.collect(ticket)
            results += done.results
            passes += done.passes
            release(done.results)
        if gpu:
            last.synchronize()
            on_device = float(first.elapsed_time(last))
        if warmed < WARM or began < heated:
            warmed += 1
            while engine.idle():  # every pass gets a graph of its own shape
                pass
        else:
            host.append(1e3 * (time.perf_counter() - began))
            device.append(on_device)
    return Timed(statistics.median(host), statistics.median(device), passes, tuple(results))


class Inside:
    """All measurements of one engine, written into a report."""

    def __init__(self, engine: Engine, yardstick: Yardstick, report: Report, switches: Switches, repeats: int) -> None:
        self.engine, self.report, self.switches, self.repeats = engine, report, switches, repeats
        self.drawn = Drawn(engine.info.vocab_size, switches)
        self.whole = Drawn(engine.info.vocab_size, Switches())
        self.plain = Drawn(engine.info.vocab_size, replace(switches, readout=True))
        self.yardstick = yardstick
        self._gpu, self._peak = torch.device(engine.info.device).type == "cuda", 0

    def workload(self, name: str, shapes: Sequence[Shape], most_in_round: int) -> None:
        """The request of median size alone, then as many requests as one pass holds together; each answer of the round against
        the whole engine's on the same request alone. Products and attention stand for the same streams, read out where asked."""
        shape = median(shapes)
        requests = self.drawn.request(shape, 0)
        rounds = [requests] if self.switches.flat else [[r] for r in requests]
        alone = self._time(rounds, self.repeats, self._after(requests))
        beside = self.yardstick.measure(Round(tuple(self.plain.request(shape, 0))))
        row: dict[str, Any] = {
            "workload": name, "switches": self.switches.name, "rows": beside.rows, "padded_rows": beside.padded_rows,
            "questions": len(shape.questions), "passes": alone.passes, "ms": alone.ms, "gpu_ms": alone.gpu_ms,
            "products_ms": beside.products_ms, "ratio": alone.gpu_ms / beside.products_ms, "host_ratio": alone.ms / beside.products_ms,
            "attention_ms": beside.attention_ms, "kernels": beside.kernels,
            "busy": min(1.0, beside.busy_ms / alone.ms) if beside.busy_ms else None,
        }  # fmt: skip
        row |= self._round(shapes, most_in_round)
        self.report.add("engine", row)
        self.report.check_equal(f"engine, {name}", row)

    def _round(self, shapes: Sequence[Shape], most: int) -> dict[str, Any]:
        chosen: list[list[Request]] = []
        rows = 0
        for number, shape in enumerate(shapes[:most]):
            requests = self.drawn.request(shape, 1 + number)
            tokens = sum(r.tokens() for r in requests)
            if chosen and rows + tokens > self.engine.max_stream:
                break
            rows += tokens
            chosen.append(requests)
        together = [r for requests in chosen for r in requests]
        rounds = [together] if self.switches.flat else [[r] for r in together]
        timed = self._time(rounds, max(3, self.repeats // 2), self._after(together, len(rounds)))
        plain = [r for i in range(len(chosen)) for r in self.plain.request(shapes[i], 1 + i)]
        beside = self.yardstick.measure(Round(tuple(plain)))
        alone: list[np.ndarray] = []
        for i in range(len(chosen)):
            done = self.engine.run(Round(tuple(self.whole.request(shapes[i], 1 + i))))
            alone += answers([done.results[0].logits])
            release(done.results)
        got = answers([r.logits for r in timed.results])
        same = [np.array_equal(a, b) for a, b in zip(got, alone, strict=True)]
        return {
            "round_requests": len(chosen), "round_rows": rows, "round_ms": timed.ms, "round_gpu_ms": timed.gpu_ms,
            "round_products_ms": beside.products_ms, "round_ratio": timed.gpu_ms / beside.products_ms,
            "per_second": 1e3 * len(chosen) / timed.ms, "equal": sum(same) / len(same),
        }  # fmt: skip

    def _time(self, rounds: Sequence[Sequence[Request]], repeats: int, after: Callable[[], None] | None) -> Timed:
        """seconds_of, with the most memory that was held meanwhile."""
        if self._gpu:
            torch.cuda.reset_peak_memory_stats()
        timed = seconds_of(self.engine, rounds, repeats, after)
        self._peak = max(self._peak, (torch.cuda.max_memory_reserved() if self._gpu else machine.peak_resident()) or 0)
        return timed

    def _after(self, requests: Sequence[Request], rounds: int = 1) -> Callable[[], None] | None:
        if self.switches.readout:
            return None
        return whole_vocabulary(self.engine, sum(r.tokens() for r in requests) // rounds)

    def steps(self, histories: Sequence[int], tail: int = TAIL, branches: tuple[int, ...] = BRANCHES) -> None:
        """Steps resumed behind histories of these lengths (multiples of 64), and how time grows with the history."""
        found: list[dict[str, Any]] = []
        for number, history in enumerate(histories):
            made = self.engine.run(Round((self.drawn.trunk(history, 100 + number),)))
            checkpoint = made.results[0].checkpoints[0, history]
            try:
                requests = self.drawn.request(Shape(tail, branches), 200, checkpoint)
                timed = self._time([requests], self.repeats, self._after(requests))
                beside = self.yardstick.measure(Round(tuple(self.plain.request(Shape(tail, branches), 200, checkpoint))))
            finally:
                checkpoint.release()
            row: dict[str, Any] = {
                "history": history, "rows": beside.rows, "ms": timed.ms, "gpu_ms": timed.gpu_ms, "products_ms": beside.products_ms,
                "ratio": timed.gpu_ms / beside.products_ms, "attention_ms": beside.attention_ms, "kernels": beside.kernels,
                "busy": min(1.0, beside.busy_ms / timed.ms) if beside.busy_ms else None,
            }  # fmt: skip
            found.append(row)
            self.report.add("steps", row)
        if len(found) > 1:
            slopes = {key: slope(found, key) for key in ("ms", "gpu_ms", "attention_ms")}
            growth = {f"{key}_per_1000": value for key, value in slopes.items()}
            own = slopes["attention_ms"]
            self.report.add("growth", growth | {"over_attention": slopes["gpu_ms"] / own if own > 0 else None})

    def memory(self) -> None:
        """Most that was held while the engine was timed: on a GPU what torch has reserved, on a CPU this process' resident memory.
        pool_bytes: pages and slots of checkpoints, on a GPU part of it."""
        memory = self.engine.memory
        pool = memory.pages * memory.page_bytes + memory.slots * memory.slot_bytes
        rest = self._peak - pool if self._gpu else None
        row = {"switches": self.switches.name, "peak_bytes": self._peak, "pool_bytes": pool, "without_pool_bytes": rest}
        self.report.add("memory", row)


def slope(rows: Sequence[dict[str, Any]], key: str) -> float:
    """Least-squares growth of a column for each 1,000 tokens of history."""
    return float(np.polyfit([r["history"] / 1000 for r in rows], [r[key] for r in rows], 1)[0])


def run(
    load_engine: Callable[[bool], Engine],
    report: Report,
    workloads: Workloads,
    names: Sequence[str],
    variants: Sequence[Switches],
    *,
    repeats: int,
    histories: Sequence[int],
    most_in_round: int,
) -> None:
    """Everything that `flide-agent bench engine` measures. load_engine: with graphs or without. variants: those with graphs first.

    histories: rounded down to the grid; steps are measured for the first variant.
    """
    engine: Engine | None = None
    for number, switches in enumerate(variants):
        if engine is None or switches.graphs != variants[number - 1].graphs:
            engine = yardstick = None  # the one before must go first: two do not fit everywhere
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            engine = load_engine(switches.graphs)
            yardstick = Yardstick(engine)
            info = engine.info
            report.facts |= {"numerics": info.numerics, "weights": info.weights_digest, "untrained": info.untrained}
        assert yardstick is not None
        inside = Inside(engine, yardstick, report, switches, repeats)
        for name in names:
            inside.workload(name, workloads.requests[name], most_in_round)
        if not number:
            inside.steps([h // GRID * GRID for h in histories])
        inside.memory()
        del inside
    report.show("engine", COLUMNS)
    report.show("steps", STEP_COLUMNS)
    report.show("growth", GROWTH_COLUMNS)
    report.show("memory", MEMORY_COLUMNS)
