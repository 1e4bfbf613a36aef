"""The replies of the service as Structs, for whoever reads them. Field for field what `docs/api.md` lists.

Unknown fields are ignored, so that an older client reads a newer server.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Noul(msgspec.Struct, frozen=True, tag="noul", tag_field="type"):
    """noul: the probability of yes."""

    noul: float


class Choice(msgspec.Struct, frozen=True, tag="choice", tag_field="type"):
    """choice: the option with the largest probability."""

    choice: str
    probabilities: dict[str, float]
    confidence: float


class Score(msgspec.Struct, frozen=True, tag="score", tag_field="type"):
    """score: sum of level x probability, 0..levels-1. legend, probabilities: by level number as text."""

    score: float
    legend: dict[str, Any]
    probabilities: dict[str, float]
    confidence: float


Answer = Noul | Choice | Score


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

    history_tokens: length of the trunk, so computed_tokens = history_tokens - m + all branches.
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
