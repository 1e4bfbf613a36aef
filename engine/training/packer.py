"""Runs to trunks with many questions each, in the prompt format that the product reads, gathered as a shard."""

from __future__ import annotations

import lzma
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flide_agent.prompts import Prompts
from training import asks
from training.facts import Episode
from training.styles import Style
from training.truths import View

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
        save(path, self.arrays())

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Ragged arrays as one flat array and ends."""
        tables = [np.frombuffer(tokens, np.uint16) for tokens, _ in self.questions]
        labels = np.full((len(tables), LABELS), -1, np.int32)
        for row, (_, own) in zip(labels, self.questions, strict=True):
            row[: len(own)] = own
        return {
            "trunk_tokens": np.concatenate(self.trunks),
            "trunk_ends": np.cumsum([len(t) for t in self.trunks]).astype(np.int64),
            "trunk_source": np.array(self.sources, np.int8),
            "question_tokens": np.concatenate(tables),
            "question_ends": np.cumsum([len(t) for t in tables]).astype(np.int64),
            "question_labels": labels,
            "branches": np.array(self.branches, np.int32),
        }


def save(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """An .npz file, or one inside .xz when the path ends so, in place at once."""
    staging = path.with_name(f".{path.name}.part")
    # Fast, with a dictionary that reaches over the whole file: histories repeat each other far apart.
    packed = [{"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": 1 << 26}]
    with lzma.open(staging, "wb", filters=packed) if path.suffix == ".xz" else staging.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    staging.rename(path)


SOURCES = ("package", "desk", "intercode")


class Packer:
    """Adds runs to a shard, with the answers of every question kept balanced for each source."""

    def __init__(self, prompts: Prompts, rng: random.Random, focus: Sequence[str] = ()) -> None:
        """focus: questions that are asked before others at every prefix, one that is named twice in two wordings."""
        self.prompts, self.rng, self.focus = prompts, rng, tuple(focus)
        self.shard = Shard()
        self._before: Episode | None = None  # a run that another one's prompt may show as an example
        self.counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def begin(self) -> None:
        """Begin a new shard; the balance of answers goes on."""
        self.shard = Shard()

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
            for name in (*self.focus, *rng.sample(asks.NAMES, len(asks.NAMES))):
                one = asks.ask(name, view, rng)
                if one is None or asked == a_fork or not self._balanced(one, episode.source):
                    continue
                asked += self._ask(added, (number, ends[i]), one, episode.source)
            if asked:
                last = ends[i]
        task = trunk.ends[lead + rendered.after[0] - 3]  # of the last message before the first action
        if not episode.partial and rng.random() < 0.5 and SHORTEST // 4 <= task <= LONGEST:
            for name in rng.sample(asks.AT_START, 3):
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
