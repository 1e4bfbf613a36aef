"""A replay around a service that does nothing, in a process of its own: what reading, walking and writing cost.

python null_replay.py ROWS.jsonl REPORT.html     prints {"decisions", "seconds", "peak_bytes"}
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flide_agent.replay import command
from flide_agent.replies import Answer, Choice, Latency, Noul, Reply, Score, StepReply, Usage
from flide_agent.settings import Settings


class NullService:
    """Answers at once, the same to everything."""

    def __init__(self) -> None:
        self.decisions = 0

    def decide(
        self,
        session: str,
        *,
        questions: Mapping[str, Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> Reply:
        self.decisions += 1
        answers: dict[str, Answer] = {}
        for name, q in questions.items():
            if q["type"] == "noul":
                answers[name] = Noul(0.25)
            elif q["type"] == "choice":
                answers[name] = Choice("run", {**dict.fromkeys(q["criteria"], 0.1), "run": 0.5}, 0.5)
            else:
                answers[name] = Score(1.5, {}, {"0": 0.25, "1": 0.25, "2": 0.5}, 0.5)
        step = StepReply(session, "h", 1, 64, 64, 100, "append", 164, Latency(total=0.1))
        return Reply("null", answers, Usage(164, 0), step)

    def delete(self, session: str) -> None:
        pass


def main(rows: Path, page: Path) -> None:
    service = NullService()

    @contextmanager
    def given(options: command.Options) -> Iterator[NullService]:
        yield service

    command._service = given
    begun = time.perf_counter()
    code = command.run(command.Options([rows], Settings(), json=str(page.with_suffix(".jsonl")), html=page))
    seconds = time.perf_counter() - begun
    # Not ru_maxrss: it keeps the size of the process that this one was started from (Linux, exec after vfork).
    status = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert status is not None
    peak = 1024 * int(status[1])
    print(json.dumps({"code": code, "decisions": service.decisions, "seconds": seconds, "peak_bytes": peak}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
