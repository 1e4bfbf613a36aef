"""A replay through the whole service with an engine that computes nothing, in a process of its own.

python null_replay.py ROWS.jsonl REPORT.html [URL]

Sessions, prompts, store, dispatcher are the real ones; only the forward pass is missing. With a URL they are in the server there,
which is to have such an engine too. Prints {"code", "decisions", "computed_tokens", "seconds", "cpu_seconds", "base_bytes",
"peak_bytes"}: base is the process before the replay begins.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from flide_agent.replay import command
from flide_agent.settings import Settings

if TYPE_CHECKING:
    from flide_agent.local import Service


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most. Not ru_maxrss: it keeps the size of the process that this one was
    started from (Linux, exec after vfork)."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def opened(settings: Settings) -> Service:
    """As many states as a model with 8 MiB each has in 2 GiB."""
    from null_engine import NullEngine

    from flide_agent import default_model
    from flide_agent.decide import Served
    from flide_agent.local import Service
    from flide_agent.prompts import Prompts

    prompts = Prompts.load(default_model.DIRECTORY)
    engine = NullEngine(prompts.vocab_size, pages=1 << 14, slots=256)
    served = Served("null", True, engine.info.max_context, date(2026, 1, 1))
    return Service.around(settings, engine, prompts, served)  # type: ignore[arg-type]


def in_process() -> None:
    """Load all that a service here needs, and have it opened around the null engine."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "service"))
    import null_engine  # noqa: F401  (torch)

    from flide_agent import local

    local.Service.open = staticmethod(opened)  # type: ignore[assignment, method-assign]


def main(rows: Path, page: Path, url: str | None) -> None:
    if url is None:
        in_process()
    base, begun = memory("VmRSS"), time.perf_counter()
    out = page.with_suffix(".jsonl")
    code = command.run(command.Options([rows], Settings(), url, json=str(out), html=page))
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
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
