"""A request's content, checked: from decoded JSON to what `decide` works on. No tokens yet, no HTTP any more.

Every mistake of a request is found in one reading and named by its place.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flide_agent.errors import InvalidRequest
from flide_agent.messages import InputError, InputErrors, Loc, Message, canonical_all
from flide_agent.questions import Choice, Question, parse_questions
from flide_agent.settings import Settings

SESSION_ID = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]{1,512}")
"""What fits into one part of a URL's path once it is quoted."""

ALIASES = ("jev-latest", "default")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One decision to make: on `state`, or on a session's history (`messages`, or `append` after `head`).

    label_mass: each answer is to say how much of the whole vocabulary's probability its labels hold.
    arrived, deadline: of time.perf_counter, which all processes of a machine share; a deadline of 0.0 is none.
    """

    questions: dict[str, Question]
    state: Any = None
    session: str | None = None
    messages: list[Message] | None = None
    append: list[Message] | None = None
    head: str | None = None
    tools: list[Any] | None = None
    candidates: dict[str, list[Message]] = field(default_factory=dict)
    model: str | None = None
    label_mass: bool = False
    arrived: float = field(default_factory=time.perf_counter)
    deadline: float = 0.0


@dataclass(frozen=True, slots=True)
class Opening:
    """A session to open or to fork into. id: None for one that the server makes."""

    id: str | None = None
    metadata: dict[str, Any] | None = None
    tools: list[Any] | None = None


class Faults:
    """Collects the mistakes of one request."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []

    def add(self, loc: Loc, msg: str, type: str = "value_error") -> None:
        self.items.append({"loc": ["body", *loc], "msg": msg, "type": type})

    def read(self, parse: Callable[[], T]) -> T | None:
        """What `parse` gives, or None with its faults noted."""
        try:
            return parse()
        except (InputError, InputErrors) as e:
            self.items += e.details()
        except RecursionError:
            self.add((), "the JSON is nested too deeply", "json_invalid")
        return None

    def messages(self, raw: Any, loc: Loc, settings: Settings) -> list[Message]:
        if isinstance(raw, list) and len(raw) > settings.max_messages:
            self.add(loc, f"at most {settings.max_messages} messages a request, not {len(raw)}", "too_long")
            return []
        return self.read(lambda: canonical_all(raw, ("body", *loc))) or []

    def done(self) -> None:
        if self.items:
            raise InvalidRequest(self.items)


def parse_systemone(raw: Any, settings: Settings) -> Ask:
    """The body of POST /v1/systemone. Raises InvalidRequest. Fields that the contract does not know are ignored."""
    body, faults, arrived = _object(raw), Faults(), time.perf_counter()
    questions = _questions(body, faults, settings)
    state = body.get("state")
    if state is None:
        faults.add(("state",), "a state is required: a string, an object or an array", "missing")
    elif not isinstance(state, str | dict | list):
        faults.add(("state",), "a state must be a string, an object or an array", "state_type")
    if body.get("assets") is not None:
        faults.add(("assets",), "this server reads no images", "assets_unsupported")
    mass = label_mass(body, faults)
    model, raw_session = _model(body, faults), body.get("x_session")
    candidates = _candidates(body, faults, settings)
    if raw_session is None:
        if candidates:
            faults.add(("x_candidates",), "candidates need a session: send x_session, or use /v1/sessions/{id}/decide")
        faults.done()
        return Ask(questions, state, model=model, label_mass=mass, arrived=arrived)
    if isinstance(raw_session, str):
        raw_session = {"id": raw_session}
    if not isinstance(raw_session, dict):
        faults.add(("x_session",), "x_session must be a session id or an object with an id", "dict_type")
        raw_session = {"id": "?"}
    session = _session_id(raw_session.get("id"), ("x_session", "id"), faults)
    head = _head(raw_session, ("x_session",), faults)
    tools = _tools(raw_session, ("x_session",), faults)
    if state is not None and not isinstance(state, list):
        faults.add(("state",), "with x_session the state must be a list of messages", "list_type")
    messages = faults.messages(state if isinstance(state, list) else [], ("state",), settings)
    faults.done()
    whole, tail = (None, messages) if head is not None else (messages, None)
    return Ask(questions, None, session, whole, tail, head, tools, candidates, model, mass, arrived)


def parse_decide(raw: Any, session: str, settings: Settings) -> Ask:
    """The body of POST /v1/sessions/{id}/decide. Raises InvalidRequest."""
    body, faults, arrived = _object(raw), Faults(), time.perf_counter()
    check_session_id(session)
    mass = label_mass(body, faults)
    questions = _questions(body, faults, settings)
    whole, tail, head = _history(body, faults, settings)
    tools = _tools(body, (), faults)
    candidates = _candidates(body, faults, settings)
    model = _model(body, faults)
    faults.done()
    return Ask(questions, None, session, whole, tail, head, tools, candidates, model, mass, arrived)


def parse_prefetch(raw: Any, session: str, settings: Settings) -> Ask:
    """The body of POST /v1/sessions/{id}/prefetch: a decision's, without questions. Raises InvalidRequest."""
    body, faults, arrived = _object(raw), Faults(), time.perf_counter()
    check_session_id(session)
    whole, tail, head = _history(body, faults, settings)
    tools = _tools(body, (), faults)
    faults.done()
    return Ask({}, None, session, whole, tail, head, tools, arrived=arrived)


def _history(
    body: dict[str, Any], faults: Faults, settings: Settings
) -> tuple[list[Message] | None, list[Message] | None, str | None]:
    """(messages, append, head) of a step."""
    messages, append = body.get("messages"), body.get("append")
    head = _head(body, (), faults)
    if messages is None and append is None:
        faults.add(("messages",), "send the history as messages, or what is new as append with the head it follows", "missing")
    elif messages is not None and append is not None:
        faults.add(("append",), "send either messages or append, not both")
    elif append is not None and head is None:
        faults.add(("head",), "append needs the head that it follows", "missing")
    whole = None if messages is None else faults.messages(messages, ("messages",), settings)
    tail = None if append is None else faults.messages(append, ("append",), settings)
    return whole, tail, head


def parse_opening(raw: Any) -> Opening:
    """The body of POST /v1/sessions and of a fork; an empty body is an empty object. Raises InvalidRequest."""
    body, faults = _object({} if raw is None else raw), Faults()
    session = None if body.get("id") is None else _session_id(body["id"], ("id",), faults)
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        faults.add(("metadata",), "metadata must be an object", "dict_type")
    tools = _tools(body, (), faults)
    faults.done()
    return Opening(session, metadata, tools)


def check_session_id(session: str) -> str:
    """The id, if it is one. Raises InvalidRequest."""
    if not SESSION_ID.fullmatch(session):
        raise InvalidRequest([{"loc": ["path", "id"], "msg": _ID_RULE, "type": "string_pattern_mismatch"}])
    return session


_ID_RULE = "a session id is text of 1 to 512 characters without slashes and control characters"


def _object(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InvalidRequest.at((), "the body must be a JSON object", "dict_type")
    return raw


def _questions(body: dict[str, Any], faults: Faults, settings: Settings) -> dict[str, Question]:
    raw = body.get("questions")
    if isinstance(raw, dict) and len(raw) > settings.max_questions:
        faults.add(("questions",), f"at most {settings.max_questions} questions a request, not {len(raw)}", "too_long")
        return {}
    questions = faults.read(lambda: parse_questions(raw, ("body", "questions"))) or {}
    for key, question in questions.items():
        if isinstance(question, Choice) and len(question.options) > settings.max_options:
            message = f"a choice has at most {settings.max_options} options here, not {len(question.options)}"
            faults.add(("questions", key, "choice", "criteria"), message, "too_long")
    return questions


def label_mass(body: dict[str, Any], faults: Faults) -> bool:
    """The field `x_label_mass`."""
    asked = body.get("x_label_mass")
    if asked is not None and not isinstance(asked, bool):
        faults.add(("x_label_mass",), "x_label_mass is true or false", "bool_type")
    return asked is True


def _model(body: dict[str, Any], faults: Faults) -> str | None:
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        faults.add(("model",), "a model is a name", "string_type")
        return None
    return model


def _session_id(value: Any, loc: Loc, faults: Faults) -> str:
    if not isinstance(value, str) or not SESSION_ID.fullmatch(value):
        faults.add(loc, _ID_RULE, "missing" if value is None else "string_pattern_mismatch")
        return ""
    return value


def _head(body: dict[str, Any], loc: Loc, faults: Faults) -> str | None:
    head = body.get("head")
    if head is not None and not isinstance(head, str):
        faults.add((*loc, "head"), "a head is a string from an earlier reply", "string_type")
        return None
    return head


def _tools(body: dict[str, Any], loc: Loc, faults: Faults) -> list[Any] | None:
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        faults.add((*loc, "tools"), "tools must be a list of tool schemas", "list_type")
        return None
    return tools


def _candidates(body: dict[str, Any], faults: Faults, settings: Settings) -> dict[str, list[Message]]:
    raw = body.get("x_candidates")
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        faults.add(("x_candidates",), "candidates must be an object of {messages} by id", "dict_type")
        return {}
    if len(raw) > settings.max_candidates:
        faults.add(("x_candidates",), f"at most {settings.max_candidates} candidates a request, not {len(raw)}", "too_long")
        return {}
    out: dict[str, list[Message]] = {}
    for key, value in raw.items():
        loc = ("x_candidates", key)
        messages = value.get("messages") if isinstance(value, dict) else None
        if not isinstance(messages, list) or not messages:
            faults.add((*loc, "messages"), "a candidate needs at least one message", "missing")
            continue
        out[key] = faults.messages(messages, (*loc, "messages"), settings)
    return out
