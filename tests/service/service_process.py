"""A real server on loopback: a process of its own with a store of its own."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from flide_agent.client import Client

SMALL = ("--memory", "128MiB", "--device", "cpu")
Start = Callable[..., "Running"]


class Running:
    """A server process. stop() asks it to end and returns its exit code; kill() does not ask."""

    def __init__(self, store: Path, *options: str, port: int = 0) -> None:
        command = [
            sys.executable,
            "-m",
            "flide_agent.cli",
            "serve",
            "--port",
            str(port),
            "--store",
            str(store),
            *SMALL,
            *options,
        ]
        env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.errors: list[str] = []
        threading.Thread(target=self._read_out, daemon=True).start()
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self.url = ""

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def wait(self, seconds: float = 60.0) -> Running:
        """Until it says where it serves."""
        line = self.lines.get(timeout=seconds)
        assert line is not None, "".join(self.errors)
        self.url = next(word for word in line.split() if word.startswith("http://"))
        return self

    def client(self, timeout: float = 60.0) -> Client:
        return Client(self.url, timeout=timeout)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60.0)

    def stop(self, seconds: float = 30.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
