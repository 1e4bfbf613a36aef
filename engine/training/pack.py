"""Runs to token shards, on many cores and within a time.

    python -m training.pack OUT_DIR --minutes 4 --workers 28 --episodes episodes.jsonl.gz

Every worker makes runs of its own seeds and packs them. A shard (.npz) holds trunks of whole histories and branches: a fork position in the
trunk (the end of a block), a question by index into a table of question tokens, and the right label. The `held` part of runs goes to
held-*.npz, for temperatures and early figures. With --mib the workers' shards are joined into --files compressed ones of together at most
so many MiB (what has no room is left out); without it each worker's stay as they are, uncompressed. --minutes is the whole time, joining
included: a worker that is not done by then is stopped, and what it wrote before counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flide_agent.default_model import DIRECTORY
from flide_agent.prompts import Prompts
from training import agent, asks, intercode, service_desk, sketch
from training.facts import Episode
from training.packer import Packer, save
from training.workplace import Templates, packages

PARTS = ("train", "held")
DESKS = 3
"""Runs at a desk for each run in a package; they are short."""
PARTLY = 4_000_000
"""Tokens after which a worker writes what it has and begins a new shard."""


@dataclass(frozen=True)
class Job:
    """What all workers share. until: when to stop, by time.monotonic(), which is one clock for all processes."""

    folder: Path
    first: int
    runs: int
    styles: int
    held: float
    workers: int
    until: float
    episodes: Path | None
    sketches: int = 0
    focus: tuple[str, ...] = ()


def work(job: Job, templates: Templates, chosen: list[Path], w: int) -> None:
    """Worker w: runs of seeds first + w, first + w + workers, ... as shards {part}-{first}-{w}-{n}.npz in the folder."""
    prompts = Prompts.load(DIRECTORY)
    rng = random.Random(f"pack-{job.first}-{w}")
    every = round(1 / job.held)
    packers = {part: Packer(prompts, random.Random(f"{part}-{job.first}-{w}"), job.focus) for part in PARTS}
    recorded: dict[str, list[Episode]] = {part: [] for part in PARTS}
    if job.episodes is not None:
        found = intercode.split(list(intercode.episodes(job.episodes)), random.Random("tasks"), job.held)
        recorded = dict(zip(PARTS, found, strict=True))
    number = 0

    def write() -> None:
        nonlocal number
        for part, packer in packers.items():
            if packer.shard.trunks:
                save(job.folder / f"{part}-{job.first}-{w}-{number}.npz", packer.shard.arrays())
                packer.begin()
        number += 1

    for i in range(w, job.runs, job.workers):
        if time.monotonic() > job.until:
            break
        # By number and not by chance, so that a run is on one side in every style.
        part = "held" if i % every == every - 1 else "train"
        episode = agent.episode(templates, chosen, job.first + i)
        for _ in range(job.styles):
            packers[part].add(episode)
        for j in range(DESKS):
            packers[part].add(service_desk.episode(DESKS * (job.first + i) + j))
        for j in range(job.sketches):
            packers[part].add(sketch.episode(job.sketches * (job.first + i) + j))
        if recorded[part]:
            packers[part].add(rng.choice(recorded[part]))
        if sum(map(len, packers["train"].shard.trunks)) > PARTLY:
            write()
    write()


def make(job: Job, grace: float) -> None:
    """Run all workers; those that take `grace` seconds more than they have are stopped."""
    chosen = packages()
    context = multiprocessing.get_context("fork")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory(prefix="runs", ignore_cleanup_errors=True) as folder:
        templates = Templates(Path(folder))
        workers = [context.Process(target=work, args=(job, templates, chosen, w)) for w in range(job.workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0.0, job.until + grace - time.monotonic()))
        for worker in workers:
            if worker.is_alive():
                worker.kill()
                worker.join()
        failed = sum(worker.exitcode != 0 for worker in workers)
        if failed:
            print(f"{failed} of {len(workers)} workers did not end by themselves")


def joined(paths: Sequence[Path]) -> dict[str, npt.NDArray[Any]]:
    """Several shards as one: the same question of two is one question."""
    names = ("trunk_tokens", "trunk_ends", "trunk_source", "question_tokens", "question_ends", "question_labels", "branches")
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
    known: dict[tuple[bytes, bytes], int] = {}
    trunks = tokens = asked = 0
    for path in paths:
        with np.load(path, allow_pickle=False) as shard:
            own = {name: shard[name] for name in names}
        place = np.zeros(len(own["question_ends"]), np.int32)
        for i, question in enumerate(np.split(own["question_tokens"], own["question_ends"][:-1])):
            key = (question.tobytes(), own["question_labels"][i].tobytes())
            if key not in known:
                known[key] = len(known)
                asked += len(question)
                parts["question_tokens"].append(question)
                parts["question_ends"].append(np.array([asked]))
                parts["question_labels"].append(own["question_labels"][i : i + 1])
            place[i] = known[key]
        branches = own["branches"]
        branches[:, 2] = place[branches[:, 2]]
        branches[:, 0] += trunks
        parts["branches"].append(branches)
        parts["trunk_tokens"].append(own["trunk_tokens"])
        parts["trunk_ends"].append(own["trunk_ends"] + tokens)
        parts["trunk_source"].append(own["trunk_source"])
        trunks, tokens = trunks + len(own["trunk_ends"]), tokens + len(own["trunk_tokens"])
    return {name: np.concatenate(some) for name, some in parts.items()}


def first_of(shard: dict[str, npt.NDArray[Any]], part: float) -> dict[str, npt.NDArray[Any]]:
    """The first trunks of a shard, with their branches; the table of questions stays whole."""
    n = max(1, int(part * len(shard["trunk_ends"])))
    kept = shard["branches"][:, 0] < n
    cut = {"trunk_tokens": shard["trunk_tokens"][: shard["trunk_ends"][n - 1]], "branches": shard["branches"][kept]}
    return shard | cut | {name: shard[name][:n] for name in ("trunk_ends", "trunk_source")}


def join(paths: Sequence[Path], out: Path, bytes_most: int) -> tuple[int, int]:
    """Join shards into one compressed file of at most so many bytes. Returns (tokens, bytes)."""
    shard = joined(paths)
    while True:
        save(out, shard)
        size = out.stat().st_size
        if size <= bytes_most:
            return len(shard["trunk_tokens"]), size
        shard = first_of(shard, 0.95 * bytes_most / size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=10**6)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run; other first seeds give other data")
    parser.add_argument("--styles", type=int, default=6, help="how many styles each run is rendered in")
    parser.add_argument("--sketches", type=int, default=0, help="sketched runs for each run in a package")
    parser.add_argument("--focus", nargs="+", default=[], choices=asks.NAMES, help="questions to ask first everywhere")
    parser.add_argument("--episodes", type=Path, help="InterCode episodes, gzipped JSON lines")
    parser.add_argument("--held", type=float, default=0.05, help="part of the runs kept for temperatures")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mib", type=float, default=0.0, help="MiB of all files together; 0 for uncompressed ones of any size")
    parser.add_argument("--files", type=int, default=6, help="training files with --mib")
    a = parser.parse_args()
    begin = time.monotonic()
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "names.json").write_text(
        json.dumps({"names": asks.NAMES, "format": Prompts.load(DIRECTORY).format}) + "\n", encoding="utf-8"
    )
    seconds = 60 * a.minutes
    joining = min(0.2 * seconds, 40.0) if a.mib else 0.0
    grace = min(0.1 * seconds, 12.0)
    with tempfile.TemporaryDirectory(prefix="shards") as staging:
        folder = Path(staging) if a.mib else a.out
        make(
            Job(
                folder,
                a.first,
                a.runs,
                a.styles,
                a.held,
                a.workers,
                begin + seconds - joining - grace,
                a.episodes,
                a.sketches,
                tuple(a.focus),
            ),
            grace,
        )
        found = {part: sorted(folder.glob(f"{part}-{a.first}-*.npz")) for part in PARTS}
        print(f"runs end after {time.monotonic() - begin:.0f} s; {sum(map(len, found.values()))} shards", flush=True)
        if not a.mib:
            return
        most = int(a.mib * 2**20)
        with ProcessPoolExecutor(a.files + 1) as pool:
            wanted = [
                (found["train"][n :: a.files], f"train-{a.first}-{n}", (most - most // 10) // a.files) for n in range(a.files)
            ]
            wanted.append((found["held"], f"held-{a.first}", most // 10))
            jobs = [pool.submit(join, mine, a.out / f"{name}.npz.xz", room) for mine, name, room in wanted if mine]
            sizes = Counter[str]()
            for job in jobs:
                tokens, size = job.result()
                sizes.update(tokens=tokens, bytes=size)
    print(f"{sizes['tokens']:,} tokens in {sizes['bytes'] / 2**20:.1f} MiB after {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
