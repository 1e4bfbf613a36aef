"""The service's replies as LangChain's answers, with what the step reused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from langchain_core.decisions import Answer, ClassifierResponse
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from flide_agent.replies import Reply
from langchain_flide.errors import FlideProtocolError
from langchain_flide.questions import fits

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


def response_of(
    reply: Reply, questions: Mapping[str, Mapping[str, Any]], candidates: Iterable[str] = (), tail: str | None = None
) -> FlideResponse:
    """The reply as a response to these questions about the history and after these candidates.

    tail: the candidate whose answers are the answers, when something stood after the history. Raises FlideProtocolError when the reply
    lacks an answer or has one of another kind.
    """
    found = {key: _answers(c.answers, questions) for key, c in (reply.x_candidates or {}).items()}
    if lacking := ({*candidates} | ({tail} if tail else set())) - set(found):
        raise FlideProtocolError(f"the reply has no answers for {len(lacking)} of the candidates")
    answers = _answers(reply.answers, questions) if tail is None else found[tail]
    step = reply.x_session
    usage = reply.usage
    reused = usage.x_cached_tokens
    tokens = usage.input_tokens or 0
    fields: dict[str, Any] = {
        "model": reply.model,
        "answers": answers,
        "candidates": {key: found[key] for key in candidates},
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


def _answers(answers: Any, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
    try:
        read = _ANSWERS.validate_python(msgspec.to_builtins(answers))
    except ValidationError as e:
        raise FlideProtocolError(f"the reply has {e.error_count()} answers that are none") from None
    if wrong := [key for key, question in questions.items() if not fits(question, read.get(key))]:
        raise FlideProtocolError(f"the reply answers {len(wrong)} of {len(questions)} questions wrongly or not at all")
    return {key: read[key] for key in questions}
