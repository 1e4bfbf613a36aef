"""The service's replies as LangChain's answers, with what the step reused."""

from __future__ import annotations

from typing import Any

import msgspec
from langchain_core.decisions import Answer, ClassifierResponse
from pydantic import BaseModel, Field, TypeAdapter

from flide_agent.replies import Reply

_ANSWERS: TypeAdapter[dict[str, Answer]] = TypeAdapter(dict[str, Answer])


class Reuse(BaseModel):
    """What a step took from earlier ones. m: the fork point in tokens; reason: append, repeat, edit, fork, truncate, tools, new."""

    m: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    history_tokens: int = 0
    reason: str = ""


class FlideResponse(ClassifierResponse):
    """Answers on the history, and for each candidate those after it.

    reuse, session, head, step: of the session's step; latency_ms: by part, as the service measured it. untrained: the model's weights are
    random, the answers mean nothing. escaped: some text spelled a control token and was read as plain text.
    """

    candidates: dict[str, dict[str, Answer]] = Field(default_factory=dict)
    reuse: Reuse = Field(default_factory=Reuse)
    latency_ms: dict[str, float] = Field(default_factory=dict)
    session: str | None = None
    head: str | None = None
    step: int | None = None
    prompt_format: str = ""
    untrained: bool = False
    escaped: bool = False


def response_of(reply: Reply, tail: str | None = None) -> FlideResponse:
    """The reply as a response. tail: the candidate whose answers are the answers, when something stood after the history."""
    found = reply.x_candidates or {}
    answers: Any = reply.answers if tail is None else found[tail].answers
    step = reply.x_session
    usage = reply.usage
    reused = usage.x_cached_tokens
    tokens = usage.input_tokens or 0
    fields: dict[str, Any] = {
        "model": reply.model,
        "answers": _answers(answers),
        "candidates": {key: _answers(c.answers) for key, c in found.items() if key != tail},
        "usage": {
            "input_tokens": tokens,
            "output_tokens": usage.output_tokens or 0,
            "total_tokens": tokens + (usage.output_tokens or 0),
            "input_token_details": {"cache_read": reused},
        },
        "prompt_format": reply.x_prompt_format,
        "untrained": reply.x_untrained,
        "escaped": reply.x_escaped,
    }
    if step is None:
        return FlideResponse(**fields, reuse=Reuse(m=reused, reused_tokens=reused))
    reuse = Reuse(
        m=step.m,
        reused_tokens=step.reused_tokens,
        computed_tokens=step.computed_tokens,
        history_tokens=step.history_tokens,
        reason=step.reason,
    )
    return FlideResponse(
        **fields,
        reuse=reuse,
        latency_ms=msgspec.structs.asdict(step.latency),
        session=step.id,
        head=step.head,
        step=step.step,
        # The head names exactly the history that was read, and the service's session view lists it.
        request_id=step.head,
    )


def _answers(answers: Any) -> dict[str, Answer]:
    return _ANSWERS.validate_python(msgspec.to_builtins(answers))
