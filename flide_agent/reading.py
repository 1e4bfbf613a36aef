"""A request in tokens: the tree of segments that the engine runs, and the way back from its logits to answers.

trunk tail <- questions, and trunk tail <- candidates <- questions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from flide_engine.segments import LOCAL, Readout, Request, Segment, Tokens

from flide_agent.errors import InternalError
from flide_agent.questions import Question, answer_of

if TYPE_CHECKING:
    from flide_agent.card import Card
    from flide_agent.decision import Served, Times
    from flide_agent.line import Done
    from flide_agent.prompts import Branch
    from flide_agent.sessions import Step
    from flide_agent.store import Found

Logits: TypeAlias = npt.NDArray[np.floating[Any]]
NOTHING = np.zeros(0)
NOT_FINITE = "the model gave numbers that are not finite for this request"
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


class Tokenised(msgspec.Struct, frozen=True, array_like=True):
    """A request outside sessions in tokens, as it goes from the process that read it to the one that runs it.

    trunk: int32, as bytes. questions: the tokens of all of them, end to end. lengths, labels: of each. saves, mass: as of `Reading`.
    arrived, deadline: of time.perf_counter, as of `Ask`; read: when its tokens were known.
    """

    trunk: bytes
    saves: tuple[int, ...]
    questions: bytes
    lengths: tuple[int, ...]
    labels: tuple[tuple[int, ...], ...]
    mass: bool
    arrived: float
    deadline: float
    read: float

    @classmethod
    def of(cls, reading: Reading, arrived: float, deadline: float, read: float) -> Tokenised:
        own = [b for _, _, b in reading.branches]
        questions = b"".join([b.tokens.tobytes() for b in own])
        lengths, labels = tuple([len(b.tokens) for b in own]), tuple([b.labels for b in own])
        return cls(reading.tokens.tobytes(), reading.saves, questions, lengths, labels, reading.mass, arrived, deadline, read)

    @property
    def tokens(self) -> Tokens:
        """int32 [n], the trunk."""
        return np.frombuffer(self.trunk, np.int32)

    def request(self, tokens: Tokens, found: Found | None, share_key: bytes) -> Request:
        """What `build_request` makes of the reading. tokens: the trunk's."""
        m, at, questions = 0 if found is None else found.m, 0, np.frombuffer(self.questions, np.int32)
        segments = [Segment(tokens[m:], saves=tuple([p for p in self.saves if p > m]))]
        for n, labels in zip(self.lengths, self.labels, strict=True):
            segments.append(Segment(questions[at : at + n], 0, LOCAL, (), (Readout(n - 1, labels, self.mass),)))
            at += n
        return Request(tuple(segments), None if found is None else found.checkpoint, share_key)


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What the engine said to a `Tokenised` request. logits: float64 of all labels of all questions, end to end, as bytes. sums: of
    each question. m: tokens of the checkpoint that it went on from; saved: of the deepest new one, m when there is none."""

    logits: bytes
    sums: tuple[float | None, ...]
    m: int
    saved: int

    @classmethod
    def of(cls, done: Done, m: int) -> Outcome:
        """Raises InternalError when logits are not finite."""
        logits = np.concatenate([readouts[0] for readouts in done.result.logits[1:]], dtype=np.float64)
        if not np.isfinite(logits).all():
            raise InternalError(NOT_FINITE)
        sums = tuple([readouts[0] for readouts in done.result.sums[1:]])
        return cls(logits.tobytes(), sums, m, max([position for _, position in done.result.checkpoints], default=m))

    def answers(self, reading: Reading) -> dict[str, Any]:
        """Of the reading that it is an answer to."""
        flat, at = np.frombuffer(self.logits, np.float64), 0
        logits: list[tuple[Logits, ...]] = [()]
        for _, _, branch in reading.branches:
            logits.append((flat[at : at + len(branch.labels)],))
            at += len(branch.labels)
        return read_answers(reading, logits, [(), *((x,) for x in self.sums)])[0]


def build_request(reading: Reading, found: Found | None) -> Request:
    """trunk tail <- questions, and trunk tail <- candidates <- questions."""
    m = 0 if found is None else found.m
    segments = [Segment(reading.tokens[m:], saves=tuple(p for p in reading.saves if p > m))]
    segments += [_branch(b, 0, reading.mass) for _, _, b in reading.branches]
    for _, tokens in reading.candidates:
        segments.append(Segment(tokens, parent=0, kind=LOCAL))
        at = len(segments) - 1
        segments += [_branch(b, at, reading.mass) for _, _, b in reading.branches]
    return Request(tuple(segments), checkpoint=None if found is None else found.checkpoint, share_key=reading.share_key)


def _branch(branch: Branch, parent: int, mass: bool) -> Segment:
    readout = Readout(len(branch.tokens) - 1, branch.labels, mass)
    return Segment(branch.tokens, parent=parent, kind=LOCAL, readouts=(readout,))


def reply_to(
    reading: Reading, served: Served, format: str, m: int, answers: dict[str, Any], candidates: dict[str, Any]
) -> dict[str, Any]:
    """The reply, as JSON-able data, less what is said of a session. m: tokens of the checkpoint that the request went on from."""
    tokens = len(reading.tokens) + reading.branch_tokens
    reply: dict[str, Any] = {
        "model": served.name,
        "answers": answers,
        "usage": {"input_tokens": tokens, "output_tokens": 0, "x_cached_tokens": m},
        "x_prompt_format": format,
    }
    if served.untrained:
        reply["x_untrained"] = True
    if reading.escaped:
        reply["x_escaped"] = True
    if outside := reading.outside:
        reply["x_out_of_scope"] = outside
    if candidates:
        reply["x_candidates"] = candidates
    return reply


def about_step(step: Step, m: int, tokens: int, done: Done, times: Times) -> dict[str, Any]:
    """`x_session` of a reply. tokens: of the history."""
    total = 1e3 * (time.perf_counter() - times.start)
    return {
        "id": step.session_id,
        "head": step.head,
        "step": step.number,
        "m": m,
        "reused_tokens": m,
        "computed_tokens": done.result.computed_tokens + done.result.shared_tokens,
        "reason": step.reason,
        "history_tokens": tokens,
        "latency": {name: round(ms, 3) for name, ms in times.parts.items()} | {"total": round(total, 3)},
    }


def read_answers(
    reading: Reading, logits: Sequence[Sequence[Logits]], sums: Sequence[Sequence[float | None]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(answers on the bare trunk, {candidate id: {"answers"}}), read back in the order of `build_request`.

    Sums go over labels, whose order is the prompt's: the bits of an answer do not depend on the order in which its options were asked.
    logits, sums: of each segment's readouts, as in RequestResult. Raises InternalError when they are not finite.
    """
    n = len(reading.branches)
    heats = [1.0 if reading.card is None else reading.card.temperature(q) for _, q, _ in reading.branches]

    def read(first: int) -> dict[str, Any]:
        own = [readouts[0] for readouts in logits[first : first + n]]
        found = zip(reading.branches, distributions(own, heats), strict=True)
        answers = {key: answer_of(question, p, branch.order) for (key, question, branch), p in found}
        if reading.mass:
            for at, (key, x) in enumerate(zip(answers, own, strict=True), first):
                answers[key]["x_label_mass"] = label_mass(x, sums[at][0])
        return answers

    candidates = {key: {"answers": read(2 + n + i * (n + 1))} for i, (key, _) in enumerate(reading.candidates)}
    return read(1), candidates


def distributions(logits: Sequence[Logits], temperatures: Sequence[float]) -> list[npt.NDArray[np.float64]]:
    """`probabilities` of many readouts, each divided by its sum once more. Those of equal length are worked out together; the bits
    are those of each alone. Raises InternalError when they are not finite."""
    out: list[npt.NDArray[np.float64]] = [NOTHING] * len(logits)
    lengths: dict[int, list[int]] = {}
    for i, x in enumerate(logits):
        lengths.setdefault(len(x), []).append(i)
    for members in lengths.values():
        rows: npt.NDArray[np.float64] = np.array([logits[i] for i in members], np.float64)
        p = _softmax(rows / np.array([temperatures[i] for i in members])[:, None])
        for i, row in zip(members, p / p.sum(axis=-1, keepdims=True), strict=True):
            out[i] = row
    return out


def probabilities(logits: Logits, temperature: float = 1.0) -> npt.NDArray[np.float64]:
    """Softmax of logits / temperature over the labels only, in float64. logits: float32 [labels].

    Raises InternalError when they are not finite.
    """
    return _softmax(logits.astype(np.float64) / temperature)


def _softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Over the last axis."""
    if not np.isfinite(x).all():
        raise InternalError(NOT_FINITE)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def label_mass(logits: Logits, total: float | None) -> float:
    """The labels' share of the whole vocabulary's probability, at most 1. total: log(sum(exp)) of all logits, from the engine.

    Both are float32 results of their own sums, which may put the share of labels that hold everything at a rounding above 1.
    """
    if total is None or not np.isfinite(total):
        raise InternalError(NOT_FINITE)
    return min(1.0, float(np.exp(logits.astype(np.float64) - total).sum()))
