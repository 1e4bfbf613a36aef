"""A front-end process: HTTP, keys, JSON and the checks of requests, before the engine process that has all the rest.

Started by `fleet` with descriptors as arguments: its end of the pipe, the listening socket, the board of bytes in flight, and
its row on that board. It ends when it is told to, or when the engine process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import signal
import socket
import sys
from collections.abc import Generator
from pathlib import Path

from flide_agent import logs
from flide_agent.api import frames as f
from flide_agent.api.app import make_app
from flide_agent.api.http import Server, loop_factory, settle_in
from flide_agent.api.remote import Remote
from flide_agent.errors import StartError
from flide_agent.inflight import Board, Inflight
from flide_agent.keys import keys_of
from flide_agent.prompts import PromptError, Prompts

log = logging.getLogger("flide_agent.api")


class _Server(Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the engine process's; it says when to stop."""
        yield


class Front:
    """One front end. row: on the board."""

    def __init__(self, memory: int, row: int) -> None:
        self._memory, self._row = memory, row
        self._hello: asyncio.Future[f.Hello] = asyncio.get_running_loop().create_future()
        self._backend: Remote | None = None
        self._server: _Server | None = None
        self._stopping = False

    async def run(self, connection: socket.socket, listening: socket.socket) -> None:
        pipe: f.Pipe[f.FromEngine] = f.Pipe(f.FromEngine, self._take, self._lost)
        await asyncio.get_running_loop().create_unix_connection(lambda: pipe, sock=connection)
        hello = await self._hello
        settings = f.settings_of(hello.settings)
        logs.start(settings.log_format)
        inflight = Inflight(settings.max_inflight_bytes, Board(mmap.mmap(self._memory, 0)), self._row)
        self._backend = Remote(hello, _prompts(hello), inflight, pipe.send)
        gate = make_app(self._backend, keys_of(settings))
        self._server = _Server(gate, settings, lambda: pipe.send(f.Up()))
        self._server.should_exit = self._stopping
        settle_in()
        await self._server.serve([listening])
        pipe.close()

    def _take(self, frame: f.FromEngine) -> None:
        if isinstance(frame, f.Hello):
            self._hello.set_result(frame)
        elif isinstance(frame, f.Stop):
            self._end()
        elif self._backend is not None:
            self._backend.take(frame)

    def _lost(self) -> None:
        """Without the engine nothing can be answered."""
        if not self._hello.done():
            self._hello.set_exception(StartError("the engine process has ended"))
        if self._backend is not None:
            self._backend.lost()
        if self._server is not None:
            self._server.force_exit = True
        self._end()

    def _end(self) -> None:
        self._stopping = True
        if self._server is not None:
            self._server.should_exit = True


def _prompts(hello: f.Hello) -> Prompts:
    """The engine process's prompts. Raises StartError where they are not the same any more."""
    try:
        prompts = Prompts.load(Path(hello.tokenizer), hello.served.card)
    except PromptError as e:
        raise StartError(str(e)) from e
    if prompts.digest != hello.digest:
        raise StartError(f"the tokenizer in {hello.tokenizer} has changed since the engine process read it; start again")
    return prompts


async def _run(connection: int, listening: int, memory: int, row: int) -> None:
    await Front(memory, row).run(socket.socket(fileno=connection), socket.socket(fileno=listening))


def main() -> None:
    """`python -m flide_agent.api.front CONNECTION LISTENING MEMORY ROW`."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    connection, listening, memory, row = map(int, sys.argv[1:5])
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_run(connection, listening, memory, row))
    except StartError as e:
        print(f"flide-agent: front end: {e.message}", file=sys.stderr)
        raise SystemExit(1) from e


if __name__ == "__main__":
    main()
