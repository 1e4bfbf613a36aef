"""The engine process with front ends before it: starts them, starts them again, and ends them in order.

All accept from one listening socket. A front end that dies loses its own connections, and what they asked for is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO

from flide_agent.api import frames as f
from flide_agent.api.desk import Desk
from flide_agent.api.http import loop_factory
from flide_agent.api.inside import Inside
from flide_agent.errors import StartError
from flide_agent.inflight import Board

log = logging.getLogger("flide_agent.api")
START_SECONDS = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a front end is started again, doubled each time that one did not live for as long as the longest."""
GRACE = 5.0
"""Seconds beyond `shutdown_seconds` after which a front end is ended without asking."""


class Fleet:
    """The front ends of one engine process. Belongs to one event loop."""

    def __init__(self, inside: Inside, bound: socket.socket) -> None:
        self.inside, self._bound = inside, bound
        self._memory: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._memory.truncate(mmap.PAGESIZE * -(-inside.settings.front_ends * Board.ROW // mmap.PAGESIZE))
        self._board = inside.inflight.board = Board(mmap.mmap(self._memory.fileno(), 0))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._desks: dict[int, Desk] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False
        inside.before_metrics = self._flush

    async def start(self) -> None:
        """Until all accept connections. Raises StartError when one does not."""
        await self.inside.start()
        rows = range(self.inside.settings.front_ends)
        desks = [await self._spawn(row) for row in rows]
        waits = [asyncio.ensure_future(event.wait()) for desk in desks for event in (desk.up, desk.gone)]
        end = time.monotonic() + START_SECONDS
        while not all(d.up.is_set() for d in desks) and not any(d.gone.is_set() for d in desks) and time.monotonic() < end:
            pending = [w for w in waits if not w.done()]
            await asyncio.wait(pending, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not all(d.up.is_set() and not d.gone.is_set() for d in desks):
            raise StartError("a front end did not start; it says above what to change")
        self._keepers = [asyncio.ensure_future(self._keep(row, desk)) for row, desk in zip(rows, desks, strict=True)]

    async def _spawn(self, row: int) -> Desk:
        ours, theirs = socket.socketpair()
        passed = (theirs.fileno(), self._bound.fileno(), self._memory.fileno())
        command = [sys.executable, "-m", "flide_agent.api.front", *map(str, passed), str(row)]
        with theirs:
            # A session of its own: a terminal's Ctrl-C is for the engine process, which then ends its front ends in order.
            process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL, start_new_session=True)
        desk = Desk(self.inside)
        await asyncio.get_running_loop().create_unix_connection(lambda: desk.pipe, sock=ours)
        desk.pipe.send(self.inside.hello())
        self._processes[row], self._desks[row] = process, desk
        return desk

    async def _keep(self, row: int, desk: Desk) -> None:
        """Start it again whenever it ends, until all are to stop."""
        pause = FIRST_PAUSE
        while True:
            started = time.monotonic()
            await desk.gone.wait()
            code = await self._end(row, GRACE)
            if self._stopping:
                return
            self.inside.metrics.front_end_restarts.inc()
            log.error("front end %d ended (%d); its connections are lost, another one starts", row, code)
            pause = FIRST_PAUSE if time.monotonic() - started > LONGEST_PAUSE else min(LONGEST_PAUSE, 2 * pause)
            await asyncio.sleep(pause)
            if self._stopping:
                return
            desk = await self._spawn(row)

    async def _end(self, row: int, seconds: float) -> int:
        """Wait for its end, and bring it about after so long. Returns its exit code."""
        process = self._processes[row]
        try:
            code = await asyncio.to_thread(process.wait, seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            code = await asyncio.to_thread(process.wait)
        self._board.clear(row)
        return code

    async def _flush(self) -> None:
        await asyncio.gather(*(desk.flush() for desk in self._desks.values() if desk.up.is_set() and not desk.gone.is_set()))

    async def stop(self) -> None:
        """Accept no more, let what runs finish, end all, close the backend."""
        self._stopping = True
        self._bound.close()
        self.inside.end_streams()
        for desk in self._desks.values():
            desk.pipe.send(f.Stop())
        seconds = self.inside.settings.shutdown_seconds + GRACE
        await asyncio.gather(*(self._end(row, seconds) for row in self._processes))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self.inside.close()
        self._memory.close()


def serve(inside: Inside, bound: socket.socket, started: Callable[[], None]) -> None:
    """Run until SIGTERM or SIGINT. started: called once all front ends accept connections. Raises StartError."""

    async def run() -> None:
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.set)
        fleet = Fleet(inside, bound)
        try:
            await fleet.start()
            started()
            await told.wait()
        finally:
            await fleet.stop()

    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run())
