"""Runs to token shards: trunks with many questions each, in the prompt format that the product reads.

    python -m training.pack OUT_DIR --runs 3000 --episodes episodes.jsonl.gz --minutes 30 --workers 2

A shard (.npz) holds trunks of whole histories and branches: a fork position in the trunk (the end of a block), a question by index into a
table of question tokens, and the right label. The first `held` part of runs goes to held-*.npz, for temperatures and early figures.
"""

# ruff: noqa: E501 - rows of figures read best a line each
from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flide_agent.default_model import DIRECTORY
from flide_agent.prompts import Prompts
from training import agent, asks, intercode, service_desk
from training.facts import Episode
from training.styles import Style
from training.truths import View
from training.workplace import Templates, packages

LONGEST, SHORTEST = 8192, 128
LABELS = 10
"""Columns of a question's label table; a branch has at most this many options."""
BRANCH_TOKENS = 160
"""Questions of more tokens are left out, so that a branch of up to 63 trunk tokens and a question fits the training forward's rows."""


@dataclass
class Shard:
    """What is being gathered. Token arrays are uint16; positions, indices int32."""

    trunks: list[npt.NDArray[np.uint16]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    questions: dict[tuple[bytes, tuple[int, ...]], int] = field(default_factory=dict)
    branches: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # trunk, fork, question, right, kind

    def question(self, tokens: npt.NDArray[np.uint16], labels: tuple[int, ...]) -> int:
        return self.questions.setdefault((tokens.tobytes(), labels), len(self.questions))

    def write(self, path: Path) -> None:
        """Ragged arrays as one flat array and ends."""
        tables = [np.frombuffer(tokens, np.uint16) for tokens, _ in self.questions]
        labels = np.full((len(tables), LABELS), -1, np.int32)
        for row, (_, own) in zip(labels, self.questions, strict=True):
            row[: len(own)] = own
        np.savez_compressed(
            path,
            trunk_tokens=np.concatenate(self.trunks),
            trunk_ends=np.cumsum([len(t) for t in self.trunks]).astype(np.int64),
            trunk_source=np.array(self.sources, np.int8),
            question_tokens=np.concatenate(tables),
            question_ends=np.cumsum([len(t) for t in tables]).astype(np.int64),
            question_labels=labels,
            branches=np.array(self.branches, np.int32),
        )


DESKS = 3
"""Runs at a desk for each run in a package; they are short."""
SOURCES = ("package", "desk", "intercode")


class Packer:
    """Adds runs to a shard, with the answers of every question kept balanced for each source."""

    def __init__(self, prompts: Prompts, rng: random.Random) -> None:
        self.prompts, self.rng = prompts, rng
        self.shard = Shard()
        self._before: Episode | None = None  # a run that another one's prompt may show as an example
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def add(self, episode: Episode, *, forks: int = 12, a_fork: int = 5) -> int:
        """Render the run in a style of its own and ask up to a_fork questions at up to `forks` prefixes. Returns branches added."""
        rng = self.rng
        shown = episode
        if len(episode.actions) > 6 and rng.random() < 0.2:
            first = rng.randrange(1, len(episode.actions) - 3)
            episode = replace(episode, actions=episode.actions[first:], partial=True)
        rendered = Style(rng, episode, example=self._before).render()
        if shown.source == "package":
            self._before = replace(shown, actions=shown.actions[:8])
        trunk = self.prompts.history(episode.tools, rendered.messages)
        lead = 1 + (1 if episode.tools else 0)  # ends[0] is the frame; block i of a message ends at ends[lead + i]
        ends = [trunk.ends[lead + after - 1] for after in rendered.after]
        usable = [i for i, end in enumerate(ends) if SHORTEST // 2 <= end <= LONGEST and rendered.outputs[i] is not None]
        if not usable:
            return 0
        number, last = len(self.shard.trunks), 0
        added: list[tuple[int, int, int, int, int]] = []
        for i in sorted(rng.sample(usable, min(forks, len(usable)))):
            view = View(
                episode.source,
                episode.actions[: i + 1],
                rendered.outputs[: i + 1],
                rendered.cut[: i + 1],
                rendered.shows_code,
                episode.partial,
            )
            asked = 0
            for name in rng.sample(asks.NAMES, len(asks.NAMES)):
                one = asks.ask(name, view, rng)
                if one is None or asked == a_fork or not self._balanced(one, episode.source):
                    continue
                asked += self._ask(added, (number, ends[i]), one, episode.source)
            if asked:
                last = ends[i]
        task = trunk.ends[lead + rendered.after[0] - 3]  # of the last message before the first action
        if not episode.partial and rng.random() < 0.5 and SHORTEST // 4 <= task <= LONGEST:
            for name in rng.sample(asks.AT_START, 2):
                one = asks.at_start(name, rng)
                if self._balanced(one, episode.source):
                    self._ask(added, (number, task), one, episode.source)
            last = max(last, task)
        if added:
            self.shard.trunks.append(trunk.tokens[:last].astype(np.uint16))
            self.shard.sources.append(SOURCES.index(episode.source))
            self.shard.branches += added
        return len(added)

    def _ask(self, added: list[tuple[int, int, int, int, int]], fork: tuple[int, int], one: asks.Asked, source: str) -> bool:
        """Add a branch at (trunk, position) if its question is short enough."""
        branch = self.prompts.question(one.question)
        if len(branch.tokens) > BRANCH_TOKENS:
            return False
        question = self.shard.question(branch.tokens.astype(np.uint16), branch.labels)
        added.append((*fork, question, one.right, asks.NAMES.index(one.name)))
        self.counts[one.name, source][one.group] += 1
        return True

    def _balanced(self, one: asks.Asked, source: str) -> bool:
        """Whether one more with this answer keeps the groups of answers near each other. A group not seen yet counts as none."""
        counts = self.counts[one.name, source]
        groups = _GROUPS[one.name]
        if one.name in asks.YES_NO:
            # Truth is what must be balanced; the polarity of the wording is drawn at its own rate.
            truth = one.group.split("-")[0]
            mine = sum(n for g, n in counts.items() if g.startswith(truth))
            other = sum(n for g, n in counts.items() if not g.startswith(truth))
            return mine <= other + 3
        return counts[one.group] <= min((counts[g] for g in groups), default=0) * 1.3 + 6


_GROUPS: dict[str, tuple[str, ...]] = dict.fromkeys(asks.NAMES, ("",)) | {
    "step_count": ("0", "1", "2", "3"),
    "last_tool_kind": ("look", "search", "edit", "run"),
}


def _made(job: tuple[str, list[Path], list[int]]) -> list[Episode]:
    folder, chosen, seeds = job
    templates = Templates(Path(folder))
    return [agent.episode(templates, chosen, seed) for seed in seeds]


def runs(count: int, first: int, workers: int, until: float) -> Iterator[Episode]:
    """`count` package runs from seed `first`, in the order of seeds whatever the workers; fewer when the clock passes `until`."""
    chosen = packages()
    with tempfile.TemporaryDirectory(prefix="runs") as folder, ProcessPoolExecutor(workers) as pool:
        ahead = 2 * workers
        seeds = [list(range(s, min(s + 10, first + count))) for s in range(first, first + count, 10)]
        waiting = [pool.submit(_made, (folder, chosen, some)) for some in seeds[:ahead]]
        for some in [*seeds[ahead:], *[[]] * ahead]:
            if not waiting:
                return
            yield from waiting.pop(0).result()
            if some and time.monotonic() < until:
                waiting.append(pool.submit(_made, (folder, chosen, some)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run; other first seeds give other data")
    parser.add_argument("--styles", type=int, default=6, help="how many styles each run is rendered in")
    parser.add_argument("--episodes", type=Path, help="InterCode episodes, gzipped JSON lines")
    parser.add_argument("--held", type=float, default=0.05, help="part of the runs kept for temperatures")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=2)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    prompts = Prompts.load(DIRECTORY)
    until = time.monotonic() + 60 * a.minutes
    rng = random.Random(f"pack-{a.first}")
    packers = {part: Packer(prompts, random.Random(f"{part}-{a.first}")) for part in ("train", "held")}

    def take(episode: Episode, part: str) -> None:
        for _ in range(a.styles):
            packers[part].add(episode)

    recorded = intercode.split(list(intercode.episodes(a.episodes)), random.Random("tasks"), a.held) if a.episodes else ([], [])
    made = 0
    for made, episode in enumerate(runs(a.runs, a.first, a.workers, until), 1):
        # By seed and not by chance, so that a run is on one side in every style.
        take(episode, "held" if made % round(1 / a.held) == 0 else "train")
        for i in range(DESKS):
            packers["held" if made % round(1 / a.held) == 0 else "train"].add(service_desk.episode(10 * (a.first + made) + i))
        for part, found in zip(("train", "held"), recorded, strict=True):
            if found and (part == "train" or made % 20 == 0):
                packers[part].add(rng.choice(found))
    (a.out / "names.json").write_text(json.dumps({"names": asks.NAMES, "format": prompts.format}) + "\n", encoding="utf-8")
    for part, packer in packers.items():
        if packer.shard.trunks:
            packer.shard.write(a.out / f"{part}-{a.first}.npz")
        figures = {f"{name}/{source}": dict(counts) for (name, source), counts in sorted(packer.counts.items())}
        (a.out / f"{part}-{a.first}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        print(
            f"{part}: {made} runs, {len(packer.shard.trunks)} trunks, {sum(map(len, packer.shard.trunks)):,} tokens, {len(packer.shard.branches):,} questions"
        )


if __name__ == "__main__":
    main()
