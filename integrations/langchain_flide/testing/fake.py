"""FakeFlide: the service's routes answered in process, with answers that the test chooses and a record of every dispatch."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx

from langchain_flide.decision_model import FlideDecisionModel


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as it is put: on the history, or after a candidate (its id and messages)."""

    id: str
    question: dict[str, Any]
    messages: list[dict[str, Any]] | None
    state: Any = None
    candidate: str | None = None
    proposed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def call(self) -> tuple[str, dict[str, Any]] | None:
        """Name and arguments of the proposed tool call, if there is one."""
        for message in reversed(self.proposed):
            for made in message.get("tool_calls", ()):
                return made["function"]["name"], json.loads(made["function"]["arguments"] or "{}")
        return None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One request that was answered. branches: questions on the history and after each candidate; tail: tokens not reused (about)."""

    session: str | None
    messages: list[dict[str, Any]] | None
    state: Any
    questions: dict[str, Any]
    candidates: dict[str, list[dict[str, Any]]]
    reason: str
    m: int
    tail: int

    @property
    def branches(self) -> int:
        return len(self.questions) * (1 + len(self.candidates))


Answers = Mapping[str, Any] | Callable[[Asked], Any] | Sequence[Mapping[str, Any]]
Failure = int | Exception | None


class FakeFlide:
    """A Flide service without a server.

    answers: by question id, a function of `Asked`, or a list with one mapping for each dispatch in turn (the last one stays). An answer is
    a probability of yes (noul), a label or a mapping of labels to probabilities (choice), a level or a list of probabilities (score), or
    an Exception to raise from the test's own code. Questions without an answer get uniform probabilities.
    latency: seconds before each answer. fail_with: an HTTP status or an httpx error for every request from now on; None: none.
    """

    def __init__(self, answers: Answers | None = None, *, latency: float = 0.0, fail_with: Failure = None) -> None:
        self.answers: Answers = answers if answers is not None else {}
        self.latency, self.fail_with = latency, fail_with
        self.dispatches: list[Dispatch] = []
        self.requests = 0
        self._known: dict[bytes, int] = {}
        self._last: dict[str, list[dict[str, Any]]] = {}
        self._steps: dict[str, int] = {}
        self._lock = threading.Lock()
        self.transport = _Transport(self)

    def model(self, **options: Any) -> FlideDecisionModel:
        """A decision model that asks this fake."""
        given: dict[str, Any] = {"base_url": "http://fake", "max_retries": 0, "transport": self.transport} | options
        return FlideDecisionModel(**given)

    def reply(self, request: httpx.Request) -> httpx.Response:
        """The reply to one request of the client."""
        with self._lock:
            self.requests += 1
            failure = self.fail_with
            if isinstance(failure, Exception):
                raise failure
            if failure is not None:
                detail: Any = {"message": "fake failure"}
                if failure == 422:
                    detail = [{"loc": ["body"], "msg": "fake failure", "type": "value_error"}]
                return httpx.Response(failure, json={"detail": detail}, request=request)
            parts = [unquote(p) for p in request.url.raw_path.decode().split("?")[0].strip("/").split("/")]
            if parts == ["v1", "systemone"]:
                body = json.loads(request.content)
                session = body.get("x_session") or {}
                return httpx.Response(200, json=self._answer(session.get("id"), body), request=request)
            if len(parts) == 4 and parts[:2] == ["v1", "sessions"] and parts[3] == "decide":
                return httpx.Response(200, json=self._answer(parts[2], json.loads(request.content)), request=request)
            return httpx.Response(404, json={"detail": {"error_type": "not_found", "message": "not faked"}}, request=request)

    def _answer(self, session: str | None, body: dict[str, Any]) -> dict[str, Any]:
        state, questions = body.get("state"), body["questions"]
        messages = body.get("messages", state if _is_messages(state) else None)
        candidates = {key: c["messages"] for key, c in (body.get("x_candidates") or {}).items()}
        m, total = self._reuse(messages if messages is not None else [state])
        reason = "" if session is None else self._reason(session, messages or [])
        dispatch = Dispatch(session, messages, state, questions, candidates, reason, m, total - m)
        self.dispatches.append(dispatch)

        def answers(candidate: str | None) -> dict[str, Any]:
            proposed = [] if candidate is None else candidates[candidate]
            asked = (Asked(key, q, messages, state, candidate, proposed) for key, q in questions.items())
            return {a.id: wire_answer(a.question, self._chosen(a)) for a in asked}

        reply: dict[str, Any] = {
            "model": "fake",
            "answers": answers(None),
            "usage": {"input_tokens": total, "output_tokens": 0, "x_cached_tokens": m},
            "x_prompt_format": "fake",
        }
        if candidates:
            reply["x_candidates"] = {key: {"answers": answers(key)} for key in candidates}
        if session is not None:
            self._last[session] = messages or []
            self._steps[session] = self._steps.get(session, 0) + (reason != "repeat")
            reply["x_session"] = {
                "id": session,
                "head": _digest(b"head", messages).hex(),
                "step": self._steps[session],
                "m": m,
                "reused_tokens": m,
                "computed_tokens": total - m,
                "history_tokens": total,
                "reason": reason,
            }
        return reply

    def _chosen(self, asked: Asked) -> Any:
        if callable(self.answers):
            return self.answers(asked)
        if isinstance(self.answers, Mapping):
            return self.answers.get(asked.id)
        return self.answers[min(len(self.dispatches), len(self.answers)) - 1].get(asked.id)

    def _reuse(self, units: Sequence[Any]) -> tuple[int, int]:
        """Tokens known from any earlier history, down to the grid of 64, and all tokens; four characters count as one."""
        chain, tokens, known = b"", 0, 0
        for unit in units:
            chain = _digest(chain, unit)
            tokens += len(json.dumps(unit, ensure_ascii=False)) // 4 + 1
            if chain in self._known:
                known = tokens
            self._known[chain] = tokens
        return known // 64 * 64, tokens

    def _reason(self, session: str, messages: list[dict[str, Any]]) -> str:
        last = self._last.get(session)
        if last is None:
            return "new"
        if last == messages:
            return "repeat"
        if messages[: len(last)] == last:
            return "append"
        return "truncate" if last[: len(messages)] == messages else "edit"


def _is_messages(state: Any) -> bool:
    return isinstance(state, list) and all(isinstance(m, dict) and "role" in m for m in state)


class _Transport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    def __init__(self, fake: FakeFlide) -> None:
        self.fake = fake

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.fake.latency:
            wait, late = self._wait(request)
            time.sleep(wait)
            if late:
                raise httpx.ReadTimeout("fake latency", request=request)
        return self.fake.reply(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.fake.latency:
            wait, late = self._wait(request)
            await asyncio.sleep(wait)
            if late:
                raise httpx.ReadTimeout("fake latency", request=request)
        return self.fake.reply(request)

    def _wait(self, request: httpx.Request) -> tuple[float, bool]:
        limit = (request.extensions.get("timeout") or {}).get("read")
        if limit is not None and self.fake.latency > limit:
            return float(limit), True
        return self.fake.latency, False


def wire_answer(question: Mapping[str, Any], chosen: Any) -> dict[str, Any]:
    """The answer in the service's form. chosen: as `FakeFlide` takes it; None: uniform."""
    if isinstance(chosen, Exception):
        raise chosen
    kind = question["type"]
    if kind == "noul":
        return {"type": "noul", "noul": 0.5 if chosen is None else float(chosen)}
    labels = list(question["criteria"]) if kind == "choice" else list(range(len(question["criteria"])))
    p = _probabilities(labels, chosen)
    top = max(labels, key=lambda label: p[label])
    sure = 1.0 if len(labels) == 1 else max(0.0, (p[top] - 1 / len(labels)) / (1 - 1 / len(labels)))
    if kind == "choice":
        return {"type": "choice", "choice": top, "probabilities": p, "confidence": sure}
    return {
        "type": "score",
        "score": sum(level * p[level] for level in labels),
        "legend": {str(i): text for i, text in enumerate(question["criteria"])},
        "probabilities": {str(level): p[level] for level in labels},
        "confidence": sure,
    }


def _probabilities(labels: list[Any], chosen: Any) -> dict[Any, float]:
    if chosen is None:
        return dict.fromkeys(labels, 1 / len(labels))
    if isinstance(chosen, Mapping):
        return {label: float(chosen.get(label, 0.0)) for label in labels}
    if isinstance(chosen, list | tuple):
        return dict(zip(labels, map(float, chosen), strict=True))
    if chosen not in labels:
        raise ValueError(f"{chosen!r} is none of {labels}")
    return {label: float(label == chosen) for label in labels}


def _digest(chain: bytes, unit: Any) -> bytes:
    return hashlib.sha256(
        chain + json.dumps(unit, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    ).digest()
