"""A replay through the whole service with an engine that computes nothing, in a process of its own.

python null_replay.py ROWS.jsonl REPORT.html [options of replay]

Sessions, prompts, store, dispatcher are the real ones; only the forward pass is missing. Prints {"code", "decisions",
"computed_tokens", "seconds", "cpu_seconds", "base_bytes", "peak_bytes"}: base is the process before the replay begins.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "service"))

from null_engine import NullEngine

from flide_agent import default_model, local
from flide_agent.decide import Served
from flide_agent.prompts import Prompts
from flide_agent.replay import command
from flide_agent.settings import Settings


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most. Not ru_maxrss: it keeps the size of the process that this one was
    started from (Linux, exec after vfork)."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def opened(settings: Settings) -> local.Service:
    prompts = Prompts.load(default_model.DIRECTORY)
    engine = NullEngine(prompts.vocab_size, pages=1 << 14, slots=256)
    served = Served("null", True, engine.info.max_context, date(2026, 1, 1))
    return local.Service.around(settings, engine, prompts, served)  # type: ignore[arg-type]


def main(rows: Path, page: Path, more: dict[str, Any]) -> None:
    local.Service.open = staticmethod(opened)  # type: ignore[assignment, method-assign]
    base, begun = memory("VmRSS"), time.perf_counter()
    out = page.with_suffix(".jsonl")
    code = command.run(command.Options([rows], Settings(), json=str(out), html=page, **more))
    seconds = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_SELF)
    with out.open("rb") as f:
        f.seek(max(out.stat().st_size - (1 << 16), 0))
        summary = json.loads(f.read().splitlines()[-1])
    figures = {
        "code": code,
        "decisions": summary["decisions"],
        "computed_tokens": summary["computed_tokens"],
        "seconds": seconds,
    }
    print(
        json.dumps(figures | {"cpu_seconds": used.ru_utime + used.ru_stime, "base_bytes": base, "peak_bytes": memory("VmHWM")})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
