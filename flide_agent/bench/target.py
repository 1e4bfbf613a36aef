"""The server that is asked: one of our own on loopback, as a process of its own, or one that runs already.

A tenant never sees another one's checkpoints. So a server of our own gets a tenant for each copy of the requests: their texts are
the same, their states cold all the same, and every answer under load can be compared with the single client's cold answer. A server
that is given by its URL has one tenant; there each copy has texts of its own, and the single client asks the same afterwards.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from flide_agent.bench import wire
from flide_agent.bench.machine import GpuWatch, peak_resident
from flide_agent.keys import ENVIRONMENT, OPERATOR

ROOM = {"max_queue": 4096, "max_queue_tokens": 1 << 26, "max_wait_seconds": 0.0, "log_format": "text"}
"""Settings of a server of our own: nothing is refused, what waits is part of what is measured."""
START_SECONDS = 600.0
STOP_SECONDS = 5.0
"""Nobody needs the store of a server that was measured: what it still writes is not waited for."""


class ServerFailed(RuntimeError):
    """The server did not start, or could not be asked; the message holds the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Requests that share no checkpoint with those of another lane. copy: which texts they have."""

    headers: str
    copy: int


@dataclass(slots=True)
class Meter:
    """What a span took, known when it has ended. counts: growth of the engine's counters, empty when it does not tell.

    resources: engine_share (of the span, a round was in the engine), busy (a kernel ran), memory_bytes; None where unknown.
    """

    counts: dict[str, float] = field(default_factory=dict)
    resources: dict[str, float | None] = field(default_factory=dict)


class Target:
    """url: where it listens. separate: lanes are tenants. pid: of a server of our own. watch: on its GPU."""

    def __init__(self, url: str, keys: list[str], operator: str | None, separate: bool, pid: int | None = None) -> None:
        self.url, self.separate, self.pid = url.rstrip("/"), separate, pid
        self.watch: GpuWatch | None = None
        self._keys, self._operator, self._used = keys, operator, 0

    def fresh(self) -> Lane:
        """A lane that nobody has used since `restart`. Raises ValueError when there are no more."""
        at, self._used = self._used, self._used + 1
        if not self.separate:
            return Lane(_headers(self._keys[0] if self._keys else None), at)
        if at >= len(self._keys):
            raise ValueError(f"more than {len(self._keys)} lanes")
        return Lane(_headers(self._keys[at]), 0)

    def restart(self) -> None:
        """Before requests whose texts were not sent yet."""
        self._used = 0

    def get(self, path: str) -> Any:
        """JSON of a GET as the operator; None when it is refused."""

        async def ask() -> wire.Got:
            connection = wire.Connection(self.url)
            try:
                return await connection.send("GET", path, b"", _headers(self._operator))
            finally:
                connection.close()

        got = wire.run(ask())
        return msgspec.json.decode(got.body) if got.status == 200 else None

    @contextmanager
    def metered(self) -> Iterator[Meter]:
        """Around what is measured, and nothing else."""
        meter, before, started = Meter(), self._counters(), time.perf_counter()
        yield meter
        ended, after = time.perf_counter(), self._counters()
        meter.counts = {name: value - before[name] for name, value in after.items() if name in before}
        inside = meter.counts.get("engine_seconds")
        meter.resources["engine_share"] = None if inside is None else min(1.0, inside / (ended - started))
        meter.resources["busy"] = meter.resources["memory_bytes"] = None
        if self.watch is not None:
            meter.resources |= self.watch.between(started, ended)
        if meter.resources["memory_bytes"] is None and self.pid is not None:
            meter.resources["memory_bytes"] = peak_resident(self.pid)

    def _counters(self) -> dict[str, float]:
        stats = self.get("/v1/stats")
        return {} if stats is None else {k: v for k, v in stats["engine"].items() if isinstance(v, int | float)}


def _headers(key: str | None) -> str:
    return "content-type: application/json\r\n" + (f"authorization: Bearer {key}\r\n" if key else "")


class OwnServer:
    """A server process with `lanes` tenants. Entering starts it and waits until it is ready; leaving ends it.

    settings: of `flide_agent.settings.Settings`, by name. ready_seconds: from the process' start until it was ready.
    Raises ServerFailed.
    """

    def __init__(
        self, settings: dict[str, Any], lanes: int, max_memory: int | None = None, environment: dict[str, str] | None = None
    ) -> None:
        self._settings, self._max_memory, self._environment = settings, max_memory, environment or {}
        self._keys = [f"fl_{secrets.token_urlsafe(24)}" for _ in range(lanes)]
        self._operator = f"fl_{secrets.token_urlsafe(24)}"
        self._folder = tempfile.TemporaryDirectory(prefix="flide-bench-")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the server is left)
        self._process: subprocess.Popen[bytes] | None = None
        self.ready_seconds = 0.0

    def __enter__(self) -> Target:
        try:
            return self._start()
        except BaseException:  # an interrupt while it starts must not leave it behind
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._stop(self._process)
            self._process = None
        self._log.close()
        self._folder.cleanup()

    def _start(self) -> Target:
        port = _free_port()
        settings = {"store": str(Path(self._folder.name) / "store"), "port": port, **ROOM, **self._settings}
        given = msgspec.json.encode({"settings": settings, "max_memory": self._max_memory}).decode()
        keys = [f"bench-{i}={key}" for i, key in enumerate(self._keys)] + [f"{OPERATOR}={self._operator}"]
        environment = os.environ | self._environment | {ENVIRONMENT: ",".join(keys)}
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flide_agent.bench.served", given],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=environment, start_new_session=True,
        )  # fmt: skip
        target = Target(f"http://127.0.0.1:{port}", self._keys, self._operator, True, self._process.pid)
        while (ready := target.get("/ready")) is None or not ready["ready"]:
            if self._process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                raise ServerFailed(f"the server did not get ready:\n{self.output()}")
            time.sleep(0.05)
        self.ready_seconds = time.perf_counter() - began
        return target

    def output(self) -> str:
        """The last lines that the server printed."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode("utf-8", "replace").splitlines()[-20:])

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> None:
        """SIGTERM, and SIGKILL to it and the processes that it has started when it takes too long."""
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10.0)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
