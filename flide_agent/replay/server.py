"""A server of our own as a child process on loopback, for the demo and for tests of restarts."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from flide_agent.client import Client
from flide_agent.errors import FlideError

START_SECONDS = 120.0


class ServerDied(RuntimeError):
    """The server ended before it was ready; the message holds the end of what it printed."""


class ServerProcess:
    """`flide-agent serve` on a free port of 127.0.0.1. Entering starts it and waits until it is ready; leaving stops it.

    seconds: from start to ready, of the last start. Raises ServerDied.
    """

    def __init__(self, store: Path, model: str = "default", device: str = "cpu") -> None:
        self.store, self.model, self.device = store, model, device
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.seconds = 0.0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the server is left)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ServerProcess:
        try:
            self.start()
        except BaseException:  # an interrupt while it starts must not leave it behind
            self.kill()
            self._log.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._log.close()

    def start(self) -> None:
        """Start it and wait until /ready says so."""
        begun = time.perf_counter()
        argv = [sys.executable, "-m", "flide_agent.cli", "serve", "--store", str(self.store), "--port", str(self.port)]
        argv += ["--model", self.model, "--device", self.device]
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        with Client(self.url, retries=0, timeout=5.0) as client:
            while not _ready(client):
                if self._process.poll() is not None or time.perf_counter() - begun > START_SECONDS:
                    self.kill()
                    raise ServerDied(f"the server did not get ready:\n{self.output()}")
                time.sleep(0.05)
        self.seconds = time.perf_counter() - begun

    def kill(self) -> None:
        """SIGKILL: nothing is written any more, as in a crash."""
        self._end(signal.SIGKILL, 10.0)

    def stop(self) -> None:
        """SIGTERM: the server finishes what it has begun; SIGKILL when it does not."""
        try:
            self._end(signal.SIGTERM, 60.0)
        except subprocess.TimeoutExpired:
            self.kill()

    def output(self) -> str:
        """The last lines that the server printed."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode("utf-8", "replace").splitlines()[-20:])

    def _end(self, number: signal.Signals, seconds: float) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        process.wait(seconds)
        self._process = None


def _ready(client: Client) -> bool:
    try:
        client.ready()
    except FlideError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
