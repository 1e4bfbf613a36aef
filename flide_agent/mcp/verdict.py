"""Replies as flat JSON, which is what models read well."""

from __future__ import annotations

from typing import Any

from flide_agent.errors import (
    DeadlineExceeded,
    FlideError,
    InvalidRequest,
    NotFound,
    Overloaded,
    TooLong,
    UnexpectedReply,
    UnknownModel,
)
from flide_agent.replies import Answer, Choice, Noul, Reply

HINT = "Start the service with `flide-agent serve`, or give its address with --url."


def answer_row(key: str, answer: Answer) -> dict[str, Any]:
    """id, label, p (of the label) and confidence 0..1; two decimals, so that the text of a repeated call stays the same."""
    if isinstance(answer, Noul):
        yes = answer.noul >= 0.5
        row = {
            "label": "yes" if yes else "no",
            "p": answer.noul if yes else 1 - answer.noul,
            "confidence": abs(2 * answer.noul - 1),
        }
    elif isinstance(answer, Choice):
        row = {"label": answer.choice, "p": answer.probabilities[answer.choice], "confidence": answer.confidence}
    else:
        row = {"label": f"{answer.score:.2f}", "p": max(answer.probabilities.values()), "confidence": answer.confidence}
    return {"id": key, "label": row["label"], "p": round(float(row["p"]), 2), "confidence": round(float(row["confidence"]), 2)}


def decided(reply: Reply) -> dict[str, Any]:
    """The result of flide_decide."""
    return {"status": "ok", "answers": [answer_row(key, a) for key, a in reply.answers.items()]} | _about(reply)


def guarded(reply: Reply, question: str, candidate: str, block_at: float, review_at: float) -> dict[str, Any]:
    """The result of flide_guard: action allow, review or block by the probability of yes after the call."""
    assert reply.x_candidates is not None
    after, before = reply.x_candidates[candidate].answers[question], reply.answers[question]
    assert isinstance(after, Noul)
    assert isinstance(before, Noul)
    p = after.noul
    action = "block" if p >= block_at else "review" if p >= review_at else "allow"
    return {
        "status": "ok",
        "action": action,
        "reason_code": f"p_{action}",
        "p": round(p, 2),
        "p_before": round(before.noul, 2),
    } | _about(reply)


def _about(reply: Reply) -> dict[str, Any]:
    about: dict[str, Any] = {"model": reply.model}
    if (step := reply.x_session) is not None:
        about |= {
            "session": step.id,
            "head": step.head,
            "step": step.step,
            "reused_tokens": step.reused_tokens,
            "reason": step.reason,
        }
    if reply.x_untrained:
        about["untrained"] = True
    if reply.x_out_of_scope:
        about["out_of_scope"] = reply.x_out_of_scope
    return about


def failed(error: FlideError, url: str) -> dict[str, Any]:
    """status and what to do about it. Never raises: an outage is an answer too."""
    match error:
        case InvalidRequest() | UnknownModel() | NotFound():
            status, said = "invalid", error.message
        case TooLong():
            status, said = "overflow", error.message
        case DeadlineExceeded():
            status, said = "timeout", error.message
        case Overloaded():
            status, said = "overloaded", error.message
        case UnexpectedReply():
            status, said = "invalid", f"{url} does not answer as a Flide service: {error.message}"
        case _:
            status, said = "unavailable", f"no service at {url}. {HINT}"
    return {"status": status, "error": said}
