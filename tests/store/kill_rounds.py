"""Kill a process that steps through sessions, look at what it had acknowledged, and go on in the same directory.

python kill_rounds.py DIRECTORY ROUNDS SEED [--points STEP] [--hasty]

An outside ledger (one fsynced line a step) records what `get` listed as durable: session, head, digest of the tokens, positions. After each
kill a fresh process checks that every acknowledged head is known with the same tokens, that every acknowledged checkpoint is
found and has the right bits, that files and index agree, and how long the start took. Kills come at random moments; with
--points at the n-th call of the store into the file system, n going up by STEP each round. --hasty acknowledges before anything
is durable: a negative control, which must lose something. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from fake_engine import KEY, FakeEngine, some_tokens

from flide_agent.default_model import DIRECTORY
from flide_agent.errors import HeadConflict
from flide_agent.messages import Message
from flide_agent.prompts import Prompts
from flide_agent.sessions import Sessions
from flide_agent.store import CheckpointStore
from flide_agent.store.files import Files
from flide_agent.store.removal import Removal, remove_state

SESSIONS = 4


class Deadly(Files):
    """Ends the process at the n-th call."""

    at, calls = -1, 0

    def point(self, name: str) -> None:
        Deadly.calls += 1
        if Deadly.calls == Deadly.at:
            os.kill(os.getpid(), signal.SIGKILL)


def opened(path: Path, prompts: Prompts) -> tuple[FakeEngine, CheckpointStore, Sessions]:
    engine = FakeEngine(pages=4096, slots=512)
    store = CheckpointStore.open(path, engine, prompts_digest=prompts.digest, disk_bytes=1 << 30, files=Deadly)
    return engine, store, Sessions(store, prompts)


def work(path: Path, ledger: int, prompts: Prompts, seed: int, hasty: bool) -> None:
    """Step through sessions until killed, acknowledging in the ledger."""
    rng = random.Random(seed)
    engine, store, sessions = opened(path, prompts)
    listed: set[tuple[str, str]] = set()
    while True:
        name = f"s{rng.randrange(SESSIONS)}"
        message = Message("user", " ".join(str(rng.randrange(1000)) for _ in range(rng.randrange(1, 60))))
        if rng.random() < 0.1:
            step = sessions.begin("t", name, messages=[message])
        else:
            step = sessions.begin("t", name, append=[message])
        found = store.find(step.share_key, step.tokens, len(step.tokens))
        parent = None if found is None else found.checkpoint
        saves = step.saves_after(0 if parent is None else parent.m)
        sessions.commit(step, {p: engine.make(step.tokens, p, parent) for p in saves}, m=0 if parent is None else parent.m)
        if found is not None:
            found.release()
        if rng.random() < 0.3:
            churn(engine, store, rng)
        if rng.random() < 0.3 and not hasty:
            store.flush(5)
        for done in sessions.get("t", name).steps:
            if (done.durable or hasty) and (name, done.head) not in listed:
                listed.add((name, done.head))
                again = sessions.begin("t", name, append=[], head=done.head)
                line = [name, done.head, digest(again.tokens), [c.m for c in done.checkpoints if c.durable or hasty]]
                os.write(ledger, json.dumps(line).encode() + b"\n")
                os.fsync(ledger)


def churn(engine: FakeEngine, store: CheckpointStore, rng: random.Random) -> None:
    """A checkpoint that nobody acknowledges leaves both tiers and comes back, the same files again, in any order."""
    tokens = some_tokens(256, rng.randrange(3))
    key = store.publish(KEY, tokens, engine.make(tokens, 256), "churn")
    if rng.random() < 0.5:
        store.flush(5)
    removal = Removal()
    with store._nodes.lock:
        node = store._nodes.by_key[key]
        remove_state(store._nodes, node, removal)
        if node.put is None and node.checkpoint is not None:
            store._nodes.leave_device(node)
    again = engine.make(tokens, 256)
    for act in rng.sample([lambda: store.writer.submit(removal), lambda: store.publish(KEY, tokens, again, "churn")], 2):
        act()


def digest(tokens: object) -> str:
    return hashlib.sha256(tokens.tobytes()).hexdigest()  # type: ignore[attr-defined]


def check(path: Path, lines: list[list[object]], prompts: Prompts) -> dict[str, object]:
    start = time.perf_counter()
    engine, store, sessions = opened(path, prompts)
    seconds = time.perf_counter() - start
    lost: list[object] = []
    bad: list[object] = []
    for name, head, tokens, positions in lines:
        try:
            step = sessions.begin("t", str(name), append=[], head=str(head))
        except HeadConflict:
            lost.append([name, head])
            continue
        if digest(step.tokens) != tokens:
            bad.append([name, head])
        for m in positions:  # type: ignore[attr-defined]
            found = store.find(step.share_key, step.tokens, m)
            if found is None or found.m != m:
                lost.append([name, head, m])
            elif not engine.good(found.checkpoint, step.tokens):
                bad.append([name, head, m])
            if found is not None:
                found.release()
    for seed in range(3):
        tokens_ = some_tokens(256, seed)
        found = store.find(KEY, tokens_, 256)
        if found is not None:
            bad += [] if engine.good(found.checkpoint, tokens_) else [["churn", seed]]
            found.release()
    store.flush(10)
    stats = store.stats()
    on_disk = sum(p.stat().st_size for p in path.glob("objects/*/*"))
    out = {"seconds": seconds, "lost": lost, "bad": bad, "ledger": stats.disk_bytes - on_disk, "corrupt": stats.corrupt,
           "orphans": stats.orphans_swept, "checkpoints": stats.disk_count}  # fmt: skip
    store.close()
    return out


def child(work: object, *args: object) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work(*args)  # type: ignore[operator]
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return pid


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("rounds", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--hasty", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    prompts = Prompts.load(DIRECTORY)
    args.directory.mkdir(parents=True, exist_ok=True)
    book = args.directory / "ledger"
    ledger = os.open(book, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    rng = random.Random(args.seed)
    total = {
        "kills": 0,
        "acknowledged": 0,
        "lost": 0,
        "bad": 0,
        "ledger_off": 0,
        "corrupt": 0,
        "orphans": 0,
        "slowest_start": 0.0,
    }
    store = args.directory / "store"
    for n in range(args.rounds):
        before = book.stat().st_size
        Deadly.at, Deadly.calls = (2 + n * args.points if args.points else -1), 0
        pid = child(work, store, ledger, prompts, args.seed * 1000 + n, args.hasty)
        if not args.points:
            deadline = time.monotonic() + 30
            while book.stat().st_size == before and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(rng.random() * 0.4)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"round {n}: the worker ended by itself with status {status}")
        total["kills"] += 1
        Deadly.at = -1
        lines = [json.loads(line) for line in book.read_bytes().splitlines() if line.endswith(b"]")]
        # Each round all that is new and some of the rest, at the end everything.
        some = lines if n == args.rounds - 1 else rng.sample(lines[:-60], min(60, len(lines[:-60]))) + lines[-60:]
        out = args.directory / "out"
        pid = child(lambda some=some, out=out: out.write_text(json.dumps(check(store, some, prompts))))
        _, status = os.waitpid(pid, 0)
        if status:
            sys.exit(f"round {n}: the check failed")
        got = json.loads(out.read_text())
        total["acknowledged"] = len(lines)
        total["lost"] += len(got["lost"])
        total["bad"] += len(got["bad"])
        total["ledger_off"] += got["ledger"] != 0
        total["corrupt"] += got["corrupt"]
        total["orphans"] += got["orphans"]
        total["slowest_start"] = max(total["slowest_start"], got["seconds"])
        if got["lost"] or got["bad"] or got["ledger"]:
            print(f"round {n}: {got}", file=sys.stderr)
    print(json.dumps(total))


if __name__ == "__main__":
    main()
