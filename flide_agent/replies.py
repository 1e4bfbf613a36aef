"""The replies of the service as Structs, for whoever reads them. Field for field what `docs/api.md` lists.

Unknown fields are ignored, so that an older client reads a newer server.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Noul(msgspec.Struct, frozen=True, tag="noul", tag_field="type"):
    """noul: the probability of yes. x_label_mass: where asked for, the labels' share of the whole vocabulary's probability."""

    noul: float
    x_label_mass: float | None = None


class Choice(msgspec.Struct, frozen=True, tag="choice", tag_field="type"):
    """choice: the option with the largest probability."""

    choice: str
    probabilities: dict[str, float]
    confidence: float
    x_label_mass: float | None = None


class Score(msgspec.Struct, frozen=True, tag="score", tag_field="type"):
    """score: sum of level x probability, 0..levels-1. legend, probabilities: by level number as text."""

    score: float
    legend: dict[str, Any]
    probabilities: dict[str, float]
    confidence: float
    x_label_mass: float | None = None


Answer = Noul | Choice | Score


class Prefetched(msgspec.Struct, frozen=True):
    """What a step on this history would start from. tier: where its checkpoint was, None when there is none."""

    id: str
    history_tokens: int
    m: int
    tier: str | None
    loaded_bytes: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the request as the model read it; x_cached_tokens of them were not computed again."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    x_cached_tokens: int = 0


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds in each part of a step, in order: text to tokens, the checkpoint, the line, the round, what is kept."""

    render: float = 0.0
    find: float = 0.0
    queue: float = 0.0
    engine: float = 0.0
    keep: float = 0.0
    total: float = 0.0


class StepReply(msgspec.Struct, frozen=True):
    """What a step did: fork point m, tokens reused and computed, and why (append, edit, repeat, fork, new, ...).

    history_tokens: length of the trunk. computed_tokens: rows that the engine ran, history_tokens - m + all branches, and a few
    more where a long request ran in slices (see docs/api.md).
    """

    id: str
    head: str
    step: int
    m: int
    reused_tokens: int
    computed_tokens: int
    reason: str
    history_tokens: int = 0
    latency: Latency = Latency()


class StepEvent(StepReply, frozen=True):
    """A step was answered. number: pass it as `after` to go on behind it. at: seconds since the epoch.

    answers_left_out: they were too many to be kept.
    """

    number: int = 0
    at: float = 0.0
    answers: dict[str, Answer] = {}
    answers_left_out: bool = False


class DurableEvent(msgspec.Struct, frozen=True):
    """The step of this head would survive a crash. checkpoints: m, tiers, bytes, durable of each."""

    head: str
    step: int
    checkpoints: list[dict[str, Any]]


class DeletedEvent(msgspec.Struct, frozen=True):
    """The session is gone, and the stream with it."""


SessionEvent = StepEvent | DurableEvent | DeletedEvent


class CandidateReply(msgspec.Struct, frozen=True):
    answers: dict[str, Answer]


class Reply(msgspec.Struct, frozen=True):
    """The answers to one request, by question id."""

    model: str
    answers: dict[str, Answer]
    usage: Usage
    x_session: StepReply | None = None
    x_candidates: dict[str, CandidateReply] | None = None
    x_prompt_format: str = ""
    x_untrained: bool = False
    x_escaped: bool = False
    x_out_of_scope: dict[str, str] = {}
    """Question id -> why the model's card does not speak for its answer: "question" or "history"."""
