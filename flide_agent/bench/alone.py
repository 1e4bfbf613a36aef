"""Products and attention alone for rows that were measured through HTTP, in a process of its own once the server is gone."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec

from flide_agent.bench.shapes import Shape


class Item(msgspec.Struct):
    """A round of these requests, each behind `history` tokens (a multiple of 64) that are there already."""

    shapes: list[Shape]
    history: int = 0


class Found(msgspec.Struct):
    """Milliseconds of one round; rows of its passes, padded."""

    products_ms: float
    attention_ms: float
    padded_rows: int


class Job(msgspec.Struct):
    model: str
    device: str
    dtype: str
    memory_bytes: int
    max_stream: int
    items: list[Item]


def measure(job: Job) -> list[Found]:
    """Raises RuntimeError with the end of what the process printed."""
    if not job.items:
        return []
    done = subprocess.run(
        [sys.executable, "-m", "flide_agent.bench.alone"], input=msgspec.json.encode(job), capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"products alone could not be measured:\n{done.stderr.decode('utf-8', 'replace')[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Found])


class Beside:
    """Rows that still lack what stands beside them; `fill` measures all at once. each: share of the round that a row's time is."""

    def __init__(self, model: str, device: str, dtype: str, memory_bytes: int, max_stream: int) -> None:
        self._job = Job(model, device, dtype, memory_bytes, max_stream, [])
        self._rows: list[tuple[dict[str, Any], float, str]] = []

    def want(self, row: dict[str, Any], shapes: list[Shape], *, history: int = 0, time_key: str, each: int = 1) -> None:
        """row[time_key]: milliseconds of one request. each: requests in the round of `shapes`."""
        self._job.items.append(Item(shapes, history // 64 * 64))
        self._rows.append((row, each, time_key))

    def fill(self) -> None:
        for (row, each, key), found in zip(self._rows, measure(self._job), strict=True):
            row["products_ms"], row["attention_ms"] = found.products_ms / each, found.attention_ms / each
            row["ratio"] = row[key] / row["products_ms"]


def main() -> None:
    """Reads a Job from stdin, writes its Founds as the last line of stdout."""
    from flide_engine.segments import Round

    from flide_agent.bench.ablation import Drawn, Switches
    from flide_agent.bench.beside import Yardstick
    from flide_agent.bench.inside import load
    from flide_agent.bench.leash import end_with_parent

    end_with_parent()
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    engine = load(job.model, job.device, job.dtype, job.memory_bytes, job.max_stream, True)
    drawn, yardstick = Drawn(engine.info.vocab_size, Switches()), Yardstick(engine)
    out: list[Found] = []
    for item in job.items:
        checkpoint = None
        if item.history:
            checkpoint = engine.run(Round((drawn.trunk(item.history, 1),))).results[0].checkpoints[0, item.history]
        requests = [r for i, shape in enumerate(item.shapes) for r in drawn.request(shape, i, checkpoint)]
        found = yardstick.measure(Round(tuple(requests)))
        if checkpoint is not None:
            checkpoint.release()
        out.append(Found(found.products_ms, found.attention_ms, found.padded_rows))
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(out) + b"\n")


if __name__ == "__main__":
    main()
