"""Bars of replay: a large file in little memory, counters that are the server's, comparisons to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import seeded_rows
from counting_service import EXAMPLE, copies
from prometheus_client.parser import text_string_to_metric_families
from test_replay_moments import pack

from flide_agent.replay.server import ServerProcess

MIB = 1 << 20
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def replayed(*arguments: object) -> dict[str, Any]:
    """The summary of a replay in a process of its own."""
    argv = [sys.executable, "-m", "flide_agent.cli", "replay", *map(str, arguments), "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def metrics(url: str) -> Samples:
    text = httpx.get(f"{url}/metrics", timeout=30.0).text
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in text_string_to_metric_families(text) for s in f.samples}


def null_replay(rows: Path, tmp_path: Path, url: str = "") -> dict[str, Any]:
    argv = [sys.executable, str(Path(__file__).with_name("null_replay.py")), str(rows), str(tmp_path / "r.html")]
    done = subprocess.run([*argv, *([url] if url else [])], capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def null_server(store: Path) -> Iterator[str]:
    """URL of a server with an engine that computes nothing."""
    argv = [sys.executable, str(Path(__file__).parents[1] / "service" / "null_engine.py"), str(store)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield next(word for word in process.stdout.readline().split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(90)


@pytest.mark.bars
def test_a_file_of_rows_in_little_memory(tmp_path: Path) -> None:
    rows, steps = seeded_rows.write(tmp_path / "rows.jsonl", 2 * MIB)
    found = null_replay(tmp_path / "rows.jsonl", tmp_path)
    assert (found["code"], found["decisions"]) == (0, steps)
    assert rows > 10
    assert 20 * steps < found["computed_tokens"]  # the prompts were read: the questions alone have more
    assert 0 < found["peak_bytes"] - found["base_bytes"] < 300 * MIB
    with null_server(tmp_path / "store") as url:
        there = null_replay(tmp_path / "rows.jsonl", tmp_path, url)
    assert (there["code"], there["decisions"]) == (0, steps)
    assert 10 * MIB < there["peak_bytes"] < 300 * MIB  # all of it: the model's library is in the server


def _bars_of(name: str, found: dict[str, Any], steps: int, report: Path, before: float, bar: Callable[..., None]) -> None:
    assert (found["code"], found["decisions"]) == (0, steps)
    others = os.getloadavg()[1] - found["cpu_seconds"] / found["seconds"]
    bar(f"replay: steps a second over 200 MB of rows, JSONL and report written, {name}", steps / found["seconds"], at_least=200,
        steps=steps, cpu_ms_a_step=round(1e3 * found["cpu_seconds"] / steps, 2), cores=len(os.sched_getaffinity(0)),
        load_before=round(before, 2), load_of_others=round(others, 2), report_mib=round(report.stat().st_size / MIB, 1))  # fmt: skip


@pytest.mark.bars
@pytest.mark.timeout(3600)
def test_two_hundred_megabytes_of_rows(tmp_path: Path, bar: Callable[..., None]) -> None:
    """Through sessions, prompts, store and dispatcher of this process. The memory is what the replay takes beside Python and torch."""
    _, steps = seeded_rows.write(tmp_path / "rows.jsonl", 200_000_000)
    before = os.getloadavg()[0]
    found = null_replay(tmp_path / "rows.jsonl", tmp_path)
    bar("replay: MB of memory over 200 MB of rows, in process", (found["peak_bytes"] - found["base_bytes"]) / 1e6, limit=300,
        whole_process=round(found["peak_bytes"] / 1e6))  # fmt: skip
    _bars_of("in process", found, steps, tmp_path / "r.html", before, bar)


@pytest.mark.bars
@pytest.mark.timeout(3600)
def test_two_hundred_megabytes_of_rows_through_a_server(tmp_path: Path, bar: Callable[..., None]) -> None:
    """The same over HTTP: here the memory is that of the whole process."""
    _, steps = seeded_rows.write(tmp_path / "rows.jsonl", 200_000_000)
    before = os.getloadavg()[0]
    with null_server(tmp_path / "store") as url:
        found = null_replay(tmp_path / "rows.jsonl", tmp_path, url)
    bar("replay: MB of memory over 200 MB of rows, through a server", found["peak_bytes"] / 1e6, limit=300)
    _bars_of("through a server", found, steps, tmp_path / "r.html", before, bar)


class Counters:
    """What a server counted between two readings of its metrics."""

    def __init__(self, before: Samples, after: Samples) -> None:
        self.before, self.after = before, after

    def grown(self, name: str, **labels: str) -> float:
        return sum(
            v - self.before.get(k, 0.0)
            for k, v in self.after.items()
            if k[0] == name and all((x, y) in k[1] for x, y in labels.items())
        )

    def unlike(self, summary: dict[str, Any]) -> dict[str, tuple[float, float]]:
        """Counters of a replay's summary that are not the server's: (here, there)."""
        computed = self.grown("flide_prompt_tokens_total", source="computed")
        there = {"computed": computed, "reused": self.grown("flide_prompt_tokens_total") - computed,
                 "requests": self.grown("flide_steps_total")}  # fmt: skip
        here = {"computed": summary["computed_tokens"], "requests": summary["requests"],
                "reused": summary["computed_without_reuse"] - summary["computed_tokens"]}  # fmt: skip
        for reason, n in summary["reasons"].items():
            there[reason], here[reason] = self.grown("flide_steps_total", reason=reason), n
        assert here["requests"] > 0
        return {k: (here[k], there[k]) for k in here if here[k] != there[k]}

    def buckets_apart(self, summary: dict[str, Any]) -> int:
        """Histogram buckets between the replay's p50 and the server's."""
        found = {k: dict(k[1]) for k in self.after if k[0] == "flide_http_request_seconds_bucket"}
        route = next(labels["route"] for labels in found.values() if "decide" in labels["route"])
        edges = {float(labels["le"]): labels["le"] for labels in found.values()}
        ranked = sorted(edges)
        counts = [self.grown("flide_http_request_seconds_bucket", route=route, le=edges[e]) for e in ranked]
        theirs = next(i for i, n in enumerate(counts) if n >= counts[-1] / 2)
        return abs(bisect_left(ranked, summary["milliseconds"]["p50"] / 1000) - theirs)


def counted(url: str, *arguments: object) -> tuple[Counters, dict[str, Any]]:
    """A replay against a server, and what the server counted meanwhile."""
    before = metrics(url)
    summary = replayed(*arguments, "--url", url)
    return Counters(before, metrics(url)), summary


@pytest.mark.bars
@pytest.mark.timeout(1800)
def test_counters_are_the_servers_own(tmp_path: Path, bar: Callable[..., None]) -> None:
    with ServerProcess(tmp_path / "store") as server:
        for name, more in (("the default questions", ()), ("all moments", ("--questions", pack(tmp_path)))):
            there, summary = counted(server.url, *copies(tmp_path, 2), *more)
            unlike = there.unlike(summary)
            print(unlike)
            bar(f"replay: counters that are not the server's, {name}", len(unlike), limit=0, requests=summary["requests"])
            bar(
                f"replay: histogram buckets between its p50 and the server's, {name}",
                there.buckets_apart(summary),
                limit=1,
                p50_ms=summary["milliseconds"]["p50"],
            )


@pytest.mark.bars
@pytest.mark.timeout(1800)
def test_comparisons_to_the_last_bit(shared: Path, tmp_path: Path, bar: Callable[..., None]) -> None:
    folder = shared / "data/trajectories"
    files = [
        EXAMPLE,
        folder / "sweagent-10-history-only.traj",
        folder / "openhands-events-cli-0.58.json",
    ]  # the last with tools
    found = {"no-cache": replayed(*files, "--compare", "no-cache")["compared"]}
    with ServerProcess(tmp_path / "here") as one, ServerProcess(tmp_path / "there") as two:
        found["stateless"] = replayed(*files, "--url", one.url, "--compare", one.url)["compared"]
        found["another"] = replayed(*files, "--url", one.url, "--compare", two.url)["compared"]
    for name, c in found.items():
        saved = c["computed_tokens"] - c["own_computed_tokens"]
        bar(
            f"replay: requests not equal to the last bit, {name}",
            c["asked"] - c["same"],
            limit=0,
            asked=c["asked"],
            saved_tokens=saved,
        )
    assert found["no-cache"]["computed_tokens"] > 2 * found["no-cache"]["own_computed_tokens"]
