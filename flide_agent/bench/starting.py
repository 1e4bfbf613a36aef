"""From the start of a server to its first answer, with and without compiled kernels at hand."""

from __future__ import annotations

import tempfile
import time

import msgspec

from flide_agent.bench.over_http import OverHttp
from flide_agent.bench.states import ask

COLUMNS = {
    "kernels": "compiled kernels",
    "ready_seconds": "ready s",
    "first_answer_ms": "first answer ms",
    "seconds": "in all s",
}
STATE, QUESTION = 250, 75
"""Tokens of the first request: a short one."""


def measure(run: OverHttp) -> None:
    """Two starts of a server with one cache folder of its own, which the first one finds empty. On a CPU nothing is compiled."""
    texts = run.texts()
    body = msgspec.json.encode({"state": texts.state(STATE, 0), "questions": {"q": texts.question(QUESTION, 0)}})
    gpu = run.common.device.startswith("cuda")
    with tempfile.TemporaryDirectory(prefix="flide-bench-kernels-") as cache:
        for kernels in ("none", "all") if gpu else ("not needed",):
            began = time.perf_counter()
            with run.target(1, {"TRITON_CACHE_DIR": cache}) as (target, _):
                (got,), _ = ask(target, [(body, target.fresh())], 1)
                seconds = time.perf_counter() - began
            if got.status != 200:
                run.report.failures.append(f"start: {got.status} {got.body[:200]!r}")
            row = {
                "kernels": kernels,
                "ready_seconds": run.report.facts["ready_seconds"],
                "first_answer_ms": got.ms,
                "seconds": seconds,
            }
            run.report.add("start", row)
