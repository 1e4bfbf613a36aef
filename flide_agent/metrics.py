"""Prometheus metrics of one server. Labels are closed lists: routes, methods, statuses, parts, reasons; never an id or a tenant."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from flide_agent.decision import Decision
    from flide_agent.local import Service

SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32)
_BOUNDS = (*map(floatToGoString, SECONDS), "+Inf")
METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"})


class Metrics:
    """What requests leave behind; what the engine and the store count is read when somebody asks."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        new = self.registry
        self.requests = Counter("flide_http_requests", "HTTP replies.", ("route", "method", "status"), registry=new)
        self.seconds = Durations("flide_http_request_seconds", "From head to last byte.", "route")
        self.parts = Durations("flide_decision_seconds", "Parts of a decision: render, find, queue, engine, keep.", "part")
        self.refused = Counter("flide_refused", "Requests refused for load.", ("reason",), registry=new)
        self.steps = Counter("flide_steps", "Steps of sessions by what they were.", ("reason",), registry=new)
        self.prompt = Counter("flide_prompt_tokens", "Rows of requests by where they came from.", ("source",), registry=new)
        self.gap = Counter(
            "flide_lcp_gap_tokens", "Tokens that a step shared with its session's last history beyond m.", registry=new
        )
        self.front_end_restarts = Counter("flide_front_end_restarts", "Front ends that had to be started again.", registry=new)
        for collector in (self.seconds, self.parts, _Parts(service)):
            self.registry.register(collector)
        self._replies: dict[tuple[str, str, int], Counter] = {}
        self._rows: dict[str, Counter] = {}

    def http(self, route: str, method: str, status: int, seconds: float) -> None:
        key = route, method if method in METHODS else "other", status
        counter = self._replies.get(key)
        if counter is None:  # `labels` takes longer than all else here
            counter = self._replies[key] = self.requests.labels(key[0], key[1], str(status))
        counter.inc()
        self.seconds.observe(route, seconds)

    def decision(self, done: Decision) -> None:
        for part, ms in done.parts.items():
            self.parts.observe(part, ms / 1e3)
        self._prompt_rows("computed").inc(done.computed_tokens)
        self._prompt_rows(done.tier or "none").inc(done.m)
        if done.reason:
            self.steps.labels(done.reason).inc()
            self.gap.inc(max(0, done.common - done.m))

    def _prompt_rows(self, source: str) -> Counter:
        counter = self._rows.get(source)
        if counter is None:
            counter = self._rows[source] = self.prompt.labels(source)
        return counter

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self.registry)


class Durations(Collector):
    """A histogram with one label. Six are observed a request: it takes a tenth of the library's time. Belongs to one event loop."""

    def __init__(self, name: str, about: str, label: str) -> None:
        self._name, self._about, self._label = name, about, label
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, value: str, seconds: float) -> None:
        """value: of the label."""
        counts = self._counts.get(value)
        if counts is None:
            counts, self._sums[value] = [0] * (len(SECONDS) + 1), 0.0
            self._counts[value] = counts
        counts[bisect_left(SECONDS, seconds)] += 1
        self._sums[value] += seconds

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._about, labels=[self._label])
        for value, counts in list(self._counts.items()):
            upto = list(accumulate(counts))
            family.add_metric([value], list(zip(_BOUNDS, upto, strict=True)), self._sums[value])
        yield family


class _Parts(Collector):
    """Counters of the engine's thread and the store, as they stand at the scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        stats = self._service.stats()
        engine, store = stats["engine"], stats["store"]
        yield from _counters("flide_engine_", engine, _ENGINE_COUNTERS)
        yield from _counters("flide_store_", store, _STORE_COUNTERS)
        sizes = CounterMetricFamily(
            "flide_engine_rounds_by_requests", "Rounds by how many requests were in them.", labels=["requests"]
        )
        for at_most, count in _rounds(engine["requests_per_round"]):
            sizes.add_metric([at_most], count)
        yield sizes
        for name, about, value in (
            ("flide_engine_waiting", "Requests that wait for the engine.", engine["waiting"]),
            ("flide_engine_waiting_tokens", "Tokens that wait for the engine.", engine["waiting_tokens"]),
            ("flide_inflight_bytes", "Bytes of bodies being worked on.", stats["admission"]["bytes"]),
            ("flide_write_queue_depth", "Jobs that wait for the store's writer.", store["queue_depth"]),
            ("flide_lmdb_map_used_ratio", "Part of the index map in use.", store["map_used"]),
            ("flide_store_writable", "1 while the disk takes writes.", int(store["mode"] == "rw")),
        ):
            yield GaugeMetricFamily(name, about, value=value)
        for what in ("bytes", "count"):
            family = GaugeMetricFamily(f"flide_ckpt_{what}", f"Checkpoints kept, {what}.", labels=["tier"])
            for tier in ("device", "host", "disk"):
                family.add_metric([tier], store[f"{tier}_{what}"])
            yield family


_ENGINE_COUNTERS = (
    "rounds", "requests", "failed", "refused", "cancelled", "expired", "relieved", "retried_alone", "slices", "tokens_computed",
    "tokens_shared", "tokens_reused", "engine_seconds",
)  # fmt: skip
_STORE_COUNTERS = (
    "hits_device", "hits_host", "hits_disk", "misses", "tokens_found", "published", "writes", "writes_dropped", "writes_failed",
    "bytes_written", "bytes_read", "bytes_from_host", "corrupt", "load_failed", "evicted_device", "evicted_host", "evicted_disk",
    "orphans_swept", "collected", "commit_failures",
)  # fmt: skip


def _counters(prefix: str, values: Mapping[str, Any], names: Iterable[str]) -> Iterable[Metric]:
    for name in names:
        yield CounterMetricFamily(prefix + name, name.replace("_", " ") + " since the start", value=values[name])


def _rounds(counted: Mapping[str, int]) -> list[tuple[str, int]]:
    """Requests in a round, as 1, 2, 4, ... 256 and more."""
    edges = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    out = dict.fromkeys(map(str, edges), 0) | {"more": 0}
    for n, count in counted.items():
        out[next((str(e) for e in edges if int(n) <= e), "more")] += count
    return list(out.items())
