"""The GPU bars against what `bench_all.sh` wrote: python tests/gpu/bench_bars.py OUT. Exit code 1 when one does not hold.

Paper: Table 3 of Flide (one H200, Qwen3.5), latency of one client in ms and requests per second at 64.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAPER = {  # workload: {model: (ms at one client, requests/s at 64)}
    "race_one": {"0.8b": (6.2, 672), "4b": (10.9, 204), "9b": (13.7, 119)},
    "quality_one": {"0.8b": (17.9, 96.5), "4b": (62.3, 19.9), "9b": (102, 11.5)},
    "di": {"0.8b": (None, 236), "4b": (None, 50.4), "9b": (None, 29.2)},
    "race_all": {"0.8b": (7.2, 540), "4b": (14.1, 124), "9b": (20.4, 71.0)},
    "quality_all": {"0.8b": (37.7, 39.1), "4b": (141, 8.6), "9b": (232, 5.1)},
    "multirc": {"0.8b": (16.8, 124), "4b": (50.3, 25.9), "9b": (81.1, 14.9)},
}
RATIOS = {"0.8b": (2.0, 2.1), "4b": (1.35, 1.6), "9b": (1.25, 1.4)}
"""Engine time over the products alone: from LONG rows on, and below."""
LONG = 1300
GIB = 1 << 30
Bar = tuple[str, float | None, str, float]
"""What, the figure, <= or >=, the limit."""


def bars(model: str, tables: dict[str, list[dict[str, Any]]]) -> Iterator[Bar]:
    """All bars that these tables of one model's run can be held against."""
    for row in tables.get("engine", []):
        if row["switches"] == "whole" and model in RATIOS:
            yield f"engine over products, {row['workload']}", row["ratio"], "<=", RATIOS[model][row["rows"] < LONG]
        yield f"engine, equal bits, {row['workload']}, {row['switches']}", row["equal"], ">=", 1.0
    for row in tables.get("server", []):
        latency, pace = PAPER.get(row["workload"], {}).get(model, (None, None))
        if row["clients"] == 1 and latency is not None:
            yield f"HTTP, ms at one client, {row['workload']}", row["median_ms"], "<=", latency
        if row["clients"] == 64 and pace is not None:
            yield f"HTTP, requests/s at 64, {row['workload']}", row["per_second"], ">=", pace
        if row["clients"] > 1:
            yield f"HTTP, equal bits at {row['clients']}, {row['workload']}", row["equal"], ">=", 1.0
    if model != "4b":
        return
    for row in tables.get("growth", []):
        yield "steps, growth of GPU time over attention's", row["over_attention"], "<=", 1.25
        yield "steps in process, ms for each 1,000 tokens", row["ms_per_1000"], "<=", 0.27
    for row in tables.get("agents", []):
        if row["agents"] == 1:
            yield "steps over HTTP, ms for each 1,000 tokens", row["ms_per_1000"], "<=", 0.27
        else:
            yield f"agents, equal bits at {row['agents']}", row["equal"], ">=", 1.0
    for row in tables.get("recurring", []):
        if row["workload"] == "quality_one" and row["clients"] == 1:
            yield "recurring QuALITY state, ms", row["median_ms"], "<=", 8.0
    for row in tables.get("questions", []):
        if row["questions"] == 64:
            yield "64 questions over one", row["over_one"], "<=", 4.0
    for row in tables.get("memory", []):
        if row["switches"] == "whole" and row["without_pool_bytes"]:
            yield "GiB without the checkpoint pool", row["without_pool_bytes"] / GIB, "<=", 20.0


def holds(figure: float | None, relation: str, limit: float) -> bool:
    """A figure of 0 or below under an upper limit is noise, not a success."""
    return figure is not None and (0 < figure <= limit if relation == "<=" else figure >= limit)


def main() -> int:
    missed = 0
    print("| model | bar | figure | limit | holds |\n|---|---|---|---|---|")
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        found = json.loads(path.read_text())
        model = str(found["settings"]["model"]).removeprefix("dummy:")
        for failure in found["failures"]:
            print(f"| {model} | {path.name}: {failure.splitlines()[0][:120]} | | | no |")
            missed += 1
        for what, figure, relation, limit in bars(model, found["tables"]):
            good = holds(figure, relation, limit)
            missed += not good
            shown = "-" if figure is None else f"{figure:.4g}"
            print(f"| {model} | {what} | {shown} | {relation} {limit:g} | {'yes' if good else 'no'} |")
        for row in found["tables"].get("start", []):
            print(f"| {model} | start, compiled kernels: {row['kernels']}, s to the first answer | {row['seconds']:.1f} | | |")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
