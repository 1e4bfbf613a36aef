"""Bars of replay: a large file in little memory, counters that are the server's, comparisons to the last bit."""

from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from counting_service import EXAMPLE
from prometheus_client.parser import text_string_to_metric_families

from flide_agent.replay.server import ServerProcess

MIB = 1 << 20


def replayed(*arguments: object) -> dict[str, Any]:
    """The summary of a replay in a process of its own."""
    argv = [sys.executable, "-m", "flide_agent.cli", "replay", *map(str, arguments), "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def metrics(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = httpx.get(f"{url}/metrics", timeout=30.0).text
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in text_string_to_metric_families(text) for s in f.samples}


def null_replay(rows: Path, tmp_path: Path) -> dict[str, Any]:
    argv = [sys.executable, str(Path(__file__).with_name("null_replay.py")), str(rows), str(tmp_path / "r.html")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def many_rows(shared: Path, path: Path, size: int) -> int:
    """Rows of nebius, again and again under other names, up to a size in bytes; how many steps they have."""
    rows = [json.loads(r) for r in (shared / "data/trajectories/nebius-6rows.jsonl").read_text(encoding="utf-8").splitlines()]
    written = steps = n = 0
    with path.open("w", encoding="utf-8") as f:
        while written < size:
            row = rows[n % len(rows)]
            written += f.write(json.dumps({**row, "instance_id": f"{row['instance_id']}-{n}"}) + "\n")
            steps += sum(m["role"] == "ai" for m in row["trajectory"])
            n += 1
    return steps


def test_a_file_of_rows_in_little_memory(shared: Path, tmp_path: Path) -> None:
    steps = many_rows(shared, tmp_path / "rows.jsonl", 2 * MIB)
    found = null_replay(tmp_path / "rows.jsonl", tmp_path)
    assert (found["code"], found["decisions"]) == (0, steps)
    assert 20 * MIB < found["peak_bytes"] < 300 * MIB


@pytest.mark.bars
@pytest.mark.timeout(1800)
def test_two_hundred_megabytes_of_rows(shared: Path, tmp_path: Path, bar: Callable[..., None]) -> None:
    steps = many_rows(shared, tmp_path / "rows.jsonl", 200_000_000)
    found = null_replay(tmp_path / "rows.jsonl", tmp_path)
    assert (found["code"], found["decisions"]) == (0, steps)
    report = (tmp_path / "r.html").stat().st_size
    bar(
        "replay: steps a second over 200 MB of rows, JSONL and report written",
        steps / found["seconds"],
        at_least=200,
        steps=steps,
    )
    bar("replay: MB of memory over 200 MB of rows", found["peak_bytes"] / 1e6, limit=300, report_mib=round(report / MIB, 1))


@pytest.mark.bars
@pytest.mark.timeout(1800)
def test_counters_are_the_servers_own(tmp_path: Path, bar: Callable[..., None]) -> None:
    with ServerProcess(tmp_path / "store") as server:
        before = metrics(server.url)
        summary = replayed(EXAMPLE, EXAMPLE, "--url", server.url)
        after = metrics(server.url)

    def grown(name: str, **labels: str) -> float:
        return sum(
            v - before.get(k, 0.0) for k, v in after.items() if k[0] == name and all((x, y) in k[1] for x, y in labels.items())
        )

    told = {
        "computed": grown("flide_prompt_tokens_total", source="computed"),
        "reused": grown("flide_prompt_tokens_total") - grown("flide_prompt_tokens_total", source="computed"),
        "decisions": grown("flide_steps_total"),
        **{f"reason {r}": grown("flide_steps_total", reason=r) for r in summary["reasons"]},
    }
    own = {
        "computed": summary["computed_tokens"],
        "reused": summary["computed_without_reuse"] - summary["computed_tokens"],
        "decisions": summary["decisions"],
        **{f"reason {r}": n for r, n in summary["reasons"].items()},
    }
    print(told, own)
    bar("replay: counters that are not the server's", sum(told[k] != own[k] for k in own), limit=0, counters=len(own))

    route = next(
        dict(k[1])["route"] for k in after if k[0] == "flide_http_request_seconds_bucket" and "decide" in dict(k[1])["route"]
    )
    edges = sorted({float(dict(k[1])["le"]) for k in after if k[0] == "flide_http_request_seconds_bucket"})
    counts = [grown("flide_http_request_seconds_bucket", route=route, le=le) for le in _texts(after, edges)]
    theirs = next(i for i, n in enumerate(counts) if n >= counts[-1] / 2)
    mine = bisect_left(edges, summary["milliseconds"]["p50"] / 1000)
    bar(
        "replay: histogram buckets between its p50 and the server's",
        abs(mine - theirs),
        limit=1,
        p50_ms=summary["milliseconds"]["p50"],
    )


def _texts(samples: dict[Any, float], edges: list[float]) -> list[str]:
    found = {float(dict(k[1])["le"]): dict(k[1])["le"] for k in samples if k[0] == "flide_http_request_seconds_bucket"}
    return [found[e] for e in edges]


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
            f"replay: decisions not equal to the last bit, {name}",
            c["asked"] - c["same"],
            limit=0,
            asked=c["asked"],
            saved_tokens=saved,
        )
    assert found["no-cache"]["computed_tokens"] > 2 * found["no-cache"]["own_computed_tokens"]
