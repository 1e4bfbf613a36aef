"""A request in tokens: the tree of segments that the engine runs, and the way back from its logits to answers.

trunk tail <- questions, and trunk tail <- candidates <- questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from flide_engine.segments import Kind, Readout, Request, Segment, Tokens

from flide_agent.dispatch import Done
from flide_agent.errors import InternalError
from flide_agent.questions import Question, answer

if TYPE_CHECKING:
    from flide_agent.card import Card
    from flide_agent.prompts import Branch
    from flide_agent.sessions import Step
    from flide_agent.store import Found


Branches: TypeAlias = "tuple[tuple[str, Question, Branch], ...]"
"""Question id, question, its tokens and labels."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A request in tokens.

    tokens: int32 [n], the trunk. saves: where checkpoints are worth taking. escaped: some text spells an added token.
    candidates: id and tokens of each. branches: the questions, asked on the trunk and once more on every candidate.
    step: the session's step when there is one. card: what the model was trained for, where it says so.
    mass: each answer is to tell its labels' share of the whole vocabulary.
    """

    tokens: Tokens
    saves: tuple[int, ...]
    share_key: bytes
    escaped: bool
    candidates: tuple[tuple[str, Tokens], ...]
    branches: Branches
    step: Step | None = None
    card: Card | None = None
    mass: bool = False

    @property
    def outside(self) -> dict[str, str]:
        """Answers that the model's card does not speak for: question id -> why."""
        if self.card is None:
            return {}
        longest = max((len(t) for _, t in self.candidates), default=0)
        return self.card.outside({key: q for key, q, _ in self.branches}, len(self.tokens) + longest)

    @property
    def branch_tokens(self) -> int:
        """Tokens of all branches and candidates: what a request costs beside its trunk."""
        own = sum(len(b.tokens) for _, _, b in self.branches)
        return own * (1 + len(self.candidates)) + sum(len(t) for _, t in self.candidates)


def build_request(reading: Reading, found: Found | None) -> Request:
    """trunk tail <- questions, and trunk tail <- candidates <- questions."""
    m = 0 if found is None else found.m
    segments = [Segment(reading.tokens[m:], saves=tuple(p for p in reading.saves if p > m))]
    segments += [_branch(b, 0, reading.mass) for _, _, b in reading.branches]
    for _, tokens in reading.candidates:
        segments.append(Segment(tokens, parent=0, kind=Kind.LOCAL))
        at = len(segments) - 1
        segments += [_branch(b, at, reading.mass) for _, _, b in reading.branches]
    return Request(tuple(segments), checkpoint=None if found is None else found.checkpoint, share_key=reading.share_key)


def _branch(branch: Branch, parent: int, mass: bool) -> Segment:
    readout = Readout(len(branch.tokens) - 1, branch.labels, mass)
    return Segment(branch.tokens, parent=parent, kind=Kind.LOCAL, readouts=(readout,))


def read_answers(reading: Reading, done: Done) -> tuple[dict[str, Any], dict[str, Any]]:
    """(answers on the bare trunk, {candidate id: {"answers"}}), read back in the order of `build_request`."""
    logits, sums, n = done.result.logits, done.result.sums, len(reading.branches)
    heat = reading.card.temperature if reading.card is not None else _as_it_is

    def one(question: Question, at: int) -> dict[str, Any]:
        out = answer(question, probabilities(logits[at][0], heat(question)))
        return out | ({"x_label_mass": label_mass(logits[at][0], sums[at][0])} if reading.mass else {})

    def read(first: int) -> dict[str, Any]:
        return {key: one(question, at) for at, (key, question, _) in enumerate(reading.branches, first)}

    candidates = {key: {"answers": read(2 + n + i * (n + 1))} for i, (key, _) in enumerate(reading.candidates)}
    return read(1), candidates


def _as_it_is(question: Question) -> float:
    return 1.0


def probabilities(logits: npt.NDArray[np.float32], temperature: float = 1.0) -> npt.NDArray[np.float64]:
    """Softmax of logits / temperature over the labels only, in float64. logits: float32 [labels].

    Raises InternalError when they are not finite.
    """
    x = logits.astype(np.float64) / temperature
    if not np.isfinite(x).all():
        raise InternalError("the model gave numbers that are not finite for this request")
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def label_mass(logits: npt.NDArray[np.float32], total: float | None) -> float:
    """The labels' share of the whole vocabulary's probability, at most 1. total: log(sum(exp)) of all logits, from the engine.

    Both are float32 results of their own sums, which may put the share of labels that hold everything at a rounding above 1.
    """
    if total is None or not np.isfinite(total):
        raise InternalError("the model gave numbers that are not finite for this request")
    return min(1.0, float(np.exp(logits.astype(np.float64) - total).sum()))
