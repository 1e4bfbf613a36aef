"""Kill a real server under load, look at what it had acknowledged, and go on in the same directory.

python kill_server.py DIRECTORY KILLS SEED [--points STEP | --named] [--fill COUNT]

Each round a fresh process serves HTTP on the directory; clients step through sessions and put into a ledger what
`GET /v1/sessions/{id}` lists as durable: session, head, tokens, and the deepest durable position; and sessions they deleted. The
server is killed at a random moment; with --points at the n-th call of the store into the file system, n going up by STEP each
round; with --named at each named point of a put and a delete in turn, further in each time. The next server has to know every
acknowledged head (409 otherwise) and to go on from that position or deeper, and must not know what was deleted. --fill: so many
other checkpoints are in the store from the beginning. Prints one JSON object.

Servers are forked from a process that has the model loaded, so that a round takes a second or two.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from many_checkpoints import filled

import flide_agent.api.server as server
from flide_agent.client import Client
from flide_agent.errors import FlideError, HeadConflict, NotFound, Unreachable
from flide_agent.local import Service, load
from flide_agent.settings import Settings
from flide_agent.store import CheckpointStore
from flide_agent.store.files import Files
from flide_agent.store.identity import identity

SESSIONS = 6
NEWEST = 40
QUESTIONS = {"q": {"type": "noul", "instructions": "Is it done?"}}


POINTS = ("open", "write", "fsync", "rename", "fsync_dir", "commit", "committed", "unlink")
"""Of a put all but the last, of a delete the last three."""


class Deadly(Files):
    """Ends the process at the n-th call after the start, of all or of those at one point."""

    at, calls, name = -1, 0, ""

    def point(self, name: str) -> None:
        if Deadly.name in ("", name):
            Deadly.calls += 1
            if Deadly.calls == Deadly.at:
                os.kill(os.getpid(), signal.SIGKILL)


class Loaded:
    """The model, once for all servers."""

    parts: tuple[Any, ...] = ()


def settings(store: Path, port: int) -> Settings:
    return Settings(device="cpu", store=store, port=port, memory_bytes=96 << 20, disk_bytes=512 << 20, kept_steps=1 << 20)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def timed(path: Path) -> Callable[[Settings], Service]:
    """Opens the service and adds a line with the seconds that the store took."""

    def around(settings: Settings) -> Service:
        real = CheckpointStore.open.__func__

        def open_store(cls: type[CheckpointStore], *args: Any, **options: Any) -> CheckpointStore:
            start = time.perf_counter()
            store: CheckpointStore = real(cls, *args, **options | {"files": Deadly})
            with path.open("a") as f:
                f.write(f"{time.perf_counter() - start}\n")
            return store

        CheckpointStore.open = classmethod(open_store)  # type: ignore[assignment]
        return Service.around(settings, *Loaded.parts)

    return around


def serve(store: Path, port: int, at: int, name: str = "") -> int:
    """Fork a server; returns its process id."""
    pid = os.fork()
    if pid == 0:
        log = os.open(store.with_name("server.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        Deadly.at, Deadly.calls, Deadly.name = at, 0, name
        try:
            server.serve(settings(store, port), timed(store.with_name("starts")))
        finally:
            os._exit(1)
    return pid


def ready(client: Client, pid: int) -> bool:
    """False when the server died before it served."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        try:
            client.sessions()
        except FlideError:
            time.sleep(0.02)
        else:
            return True
    raise SystemExit("the server does not start")


def text(rng: random.Random) -> str:
    return " ".join(str(rng.randrange(1000)) for _ in range(rng.randrange(5, 60)))


class Load(threading.Thread):
    """A client that steps through its sessions until the server is gone."""

    def __init__(
        self, url: str, names: list[str], seed: int, book: list[list[Any]], heads: dict[str, str], gone: list[str]
    ) -> None:
        super().__init__(daemon=True)
        self.client, self.names, self.rng = Client(url, timeout=20, retries=0), names, random.Random(seed)
        self.book, self.heads = book, heads
        self.listed: set[tuple[str, str]] = {(line[0], line[1]) for line in book}
        self.gone = gone
        self.steps = 0
        self.fault: Exception | None = None

    def run(self) -> None:
        try:
            while True:
                self._step(self.rng.choice(self.names))
        except Unreachable:
            return  # the server is gone, as it should
        except Exception as error:
            self.fault = error

    def _come_and_go(self) -> None:
        """A session that is deleted again: once that is acknowledged, it stays away."""
        name = f"spare-{self.rng.randrange(1 << 40)}"
        message = {"role": "user", "content": text(self.rng) * 3}
        first = self.client.decide(name, questions=QUESTIONS, messages=[message])
        assert first.x_session is not None
        self.client.decide(name, questions=QUESTIONS, append=[message], head=first.x_session.head)
        self.client.delete(name)
        self.gone.append(name)

    def _step(self, name: str) -> None:
        if self.rng.random() < 0.15:
            self._come_and_go()
        message = {"role": "user", "content": text(self.rng)}
        if name not in self.heads or self.rng.random() < 0.1:
            self.client.decide(name, questions=QUESTIONS, messages=[message])
        else:
            self.client.decide(name, questions=QUESTIONS, append=[message], head=self.heads[name])
        self.steps += 1
        seen = self.client.session(name)
        self.heads[name] = seen["head"]
        for step in seen["steps"]:
            if step["durable"] and (name, step["head"]) not in self.listed:
                self.listed.add((name, step["head"]))
                deepest = max((c["m"] for c in step["checkpoints"] if c["durable"]), default=0)
                self.book.append([name, step["head"], step["tokens"], deepest])


def check(client: Client, lines: list[list[Any]], gone: list[str]) -> dict[str, int]:
    """Lost heads, lost positions of the newest ones (older ones may be evicted under the budget), deleted sessions that are back."""
    lost = back = 0
    newest = {(line[0], line[1]) for line in lines[-NEWEST:]}
    for name in gone:
        try:
            client.session(name)
        except NotFound:
            continue
        back += 1
    for name, head, tokens, m in reversed(lines):  # the newest first: looking at others evicts
        try:
            reply = client.decide(name, questions=QUESTIONS, append=[], head=head)
        except HeadConflict:
            lost += 1
            continue
        done = reply.x_session
        assert done is not None
        lost += done.history_tokens != tokens or done.reason != "repeat" or ((name, head) in newest and done.m < m)
    return {"lost": lost, "back": back}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("kills", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--fill", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    store = args.directory / "store"
    engine, prompts, _ = Loaded.parts = load(settings(store, 0))
    if args.fill:
        CheckpointStore.open(store, engine, prompts_digest=prompts.digest, disk_bytes=1 << 30).close()
        filled(store, args.fill, identity(engine.info, prompts.digest))
    book: list[list[Any]] = []
    heads: dict[str, str] = {}
    gone: list[str] = []
    counted = ("kills", "acknowledged", "deleted", "lost", "back", "corrupt", "checked", "steps", "early", "late")
    total: dict[str, float] = dict.fromkeys(counted, 0)
    for n in range(args.kills + 1):
        last = n == args.kills
        port = free_port()
        # the n-th call after the start's own; the last round only looks
        at, name = (3 + n * args.points if args.points else -1), ""
        if args.named:
            turn, name = n // len(POINTS), POINTS[n % len(POINTS)]
            at = 1 + turn if name == "unlink" else 2 + 3 * turn
        pid = serve(store, port, -1 if last else at, name)
        client = Client(f"http://127.0.0.1:{port}", timeout=30, retries=0)
        try:
            if not ready(client, pid):
                total["early"] += 1
                total["kills"] += 1
                continue
            old = book[:-NEWEST]
            some = book if last else rng.sample(old, min(10, len(old))) + book[-NEWEST:]
            heads.clear()
            got = check(client, some, gone if last else gone[-10:])
            total["checked"] += len(some)
            total["lost"] += got["lost"]
            total["back"] += got["back"]
            if any(got.values()):
                print(f"round {n}: {got}", file=sys.stderr)
        except FlideError:
            if at < 0:
                raise
            os.waitpid(pid, 0)  # it met its call while it was looked at
            total["kills"] += 1
            continue
        if last:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            break
        half = SESSIONS // 2
        names = [f"s{i}" for i in range(SESSIONS)]
        loads = [
            Load(client.url, part, args.seed * 1000 + 2 * n + i, book, heads, gone)
            for i, part in enumerate((names[:half], names[half:]))
        ]
        for one in loads:
            one.start()
        if at > 0:
            for one in loads:
                one.join(10)
        else:
            time.sleep(0.3 + rng.random() * 1.4)
        ended, _ = os.waitpid(pid, os.WNOHANG)
        if not ended:
            total["late"] += at > 0  # it did not meet its point
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for one in loads:
            one.join(30)
            if one.fault is not None:
                raise SystemExit(f"round {n}: a client failed: {one.fault!r}")
            total["steps"] += one.steps
        total["kills"] += 1
    total["acknowledged"], total["deleted"] = len(book), len(gone)
    total["slowest_start"] = max(float(line) for line in store.with_name("starts").read_text().split())
    log = store.with_name("server.log").read_text()
    total["corrupt"] = log.count("failed its checks") + log.count("missing or damaged")
    print(json.dumps(total))


if __name__ == "__main__":
    main()
