"""Processor time of a request in the engine process, by thread, with an engine whose device does nothing.

python request_cpu.py WORKLOADS.json [--only NAME,NAME] [--clients 64] [--requests 640] [--fronts 2]

Closed-loop clients ask cold string states of the workloads' sizes over loopback, as `flide-agent bench server` does: each copy of
a workload is another tenant's. Prints a line a workload: milliseconds of user and system time a request (engine process, its
threads, all front ends), requests a second, median latency, requests a round.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from flide_agent import default_model
from flide_agent.bench import wire
from flide_agent.bench.shapes import read
from flide_agent.bench.sources import Generated
from flide_agent.bench.target import Target
from flide_agent.bench.texts import Texts
from flide_agent.keys import ENVIRONMENT, OPERATOR
from flide_agent.prompts import Prompts

WORKLOADS = ("race_one", "race_all", "quality_one", "quality_all", "multirc")
TICK = 1e3 / os.sysconf("SC_CLK_TCK")
WARM = 128
"""Requests before those that count, at least."""


def used(path: Path) -> float:
    """Milliseconds of user and system time, from a stat file of /proc."""
    fields = path.read_text().rsplit(")", 1)[1].split()
    return TICK * (int(fields[11]) + int(fields[12]))


@dataclass(slots=True)
class Server:
    """target: where to ask. pid: the engine process. out: what it prints."""

    target: Target
    pid: int
    out: IO[str]
    fronts: list[int] = field(default_factory=list)

    def threads(self) -> dict[str, float]:
        """Milliseconds by name of thread, numbers at names' ends left out."""
        os.kill(self.pid, signal.SIGUSR1)
        line = self.out.readline()
        while not line.startswith("threads "):
            line = self.out.readline()
        names = json.loads(line.partition(" ")[2])
        spent: Counter[str] = Counter()
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            spent[names.get(task.name, "library").rstrip("_0123456789")] += used(task / "stat")
        return dict(spent)

    def times(self) -> dict[str, float]:
        fronts = sum(used(Path(f"/proc/{pid}/stat")) for pid in self.fronts)
        return {"engine process": used(Path(f"/proc/{self.pid}/stat")), "front ends": fronts, **self.threads()}


@contextmanager
def served(fronts: int, tenants: int) -> Iterator[Server]:
    keys = [f"fl_{secrets.token_urlsafe(24)}" for _ in range(tenants)]
    operator = f"fl_{secrets.token_urlsafe(24)}"
    given = [f"t{i}={key}" for i, key in enumerate(keys)] + [f"{OPERATOR}={operator}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).with_name("idle_engine.py")), f"{folder}/store", str(fronts)]
        environment = os.environ | {ENVIRONMENT: ",".join(given), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        try:
            url = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield Server(Target(url, keys, operator, True, process.pid), process.pid, process.stdout, list(map(int, children)))
        finally:
            process.terminate()
            process.wait(60)


def ask(server: Server, source: Generated, bodies: list[bytes], count: int, clients: int) -> tuple[list[wire.Got], float]:
    """So many requests, row by row, each round over the rows as a tenant of its own. Returns (replies, seconds)."""
    lanes = [server.target.fresh() for _ in range(-(-count // source.rows))]
    got: list[wire.Got] = []

    async def work(connection: wire.Connection, number: int, job: None) -> None:
        lane, row = divmod(number, source.rows)
        got.append(await connection.send("POST", "/v1/systemone", bodies[row], lanes[lane].headers))

    began, _, ended = wire.run(wire.closed_loop(server.target.url, clients, [None] * count, work))
    bad = [g for g in got if g.status != 200]
    assert not bad, bad[0].body
    return got, ended - began


def measure(server: Server, source: Generated, clients: int, requests: int) -> dict[str, Any]:
    bodies = [source.body(row, 0)[0] for row in range(source.rows)]
    server.target.restart()
    ask(server, source, bodies, max(WARM, 2 * source.rows), clients)
    before, rounds = server.times(), server.target.get("/v1/stats")["engine"]["rounds"]
    got, seconds = ask(server, source, bodies, requests, clients)
    after = server.times()
    rounds = server.target.get("/v1/stats")["engine"]["rounds"] - rounds
    spent = {name: round((after[name] - before.get(name, 0.0)) / requests, 3) for name in after}
    return {
        **{name: ms for name, ms in sorted(spent.items(), key=lambda item: -item[1]) if ms >= 0.005},
        "requests/s": round(requests / seconds, 1), "p50 ms": round(statistics.median(g.ms for g in got), 2),
        "a round": round(requests / max(1, rounds), 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", type=Path)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=640)
    parser.add_argument("--fronts", type=int, default=2)
    options = parser.parse_args()
    workloads, texts = read(options.workloads), Texts(Prompts.load(default_model.DIRECTORY))
    for number, name in enumerate(options.only.split(",")):
        source = Generated(workloads.requests[name], texts, number)
        tenants = -(-options.requests // source.rows) + -(-max(WARM, 2 * source.rows) // source.rows)
        with served(options.fronts, tenants) as server:
            print(name, json.dumps(measure(server, source, options.clients, options.requests)), flush=True)


if __name__ == "__main__":
    main()
