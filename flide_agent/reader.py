"""From a request's content to its tokens, within the limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from flide_engine.segments import Tokens

from flide_agent.asks import ALIASES, Ask
from flide_agent.decision import Served
from flide_agent.errors import InvalidRequest, TooLong, UnknownModel
from flide_agent.messages import InputError, InputErrors
from flide_agent.prompts.encoder import TextTooLong
from flide_agent.prompts.recent import RecentStates
from flide_agent.questions import Question
from flide_agent.reading import Branches, Reading
from flide_agent.settings import Settings

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts
    from flide_agent.retention import Retention
    from flide_agent.sessions import Sessions


def check(ask: Ask, served: Served, label_mass: bool) -> None:
    """Whether the model can be asked this. label_mass: its engine can sum over the vocabulary. Raises UnknownModel, InvalidRequest."""
    if (model := ask.model) is not None and model != served.name and model not in ALIASES:
        raise UnknownModel(f"Unknown model: {model[:100]}; this server has {served.name}")
    if ask.label_mass and not label_mass:
        message = "label mass needs a product over the whole vocabulary, which this server's engine does not compute"
        raise InvalidRequest.at(("x_label_mass",), message, "unsupported")


class StateReader:
    """Of requests outside sessions. Thread-safe. Raises ValueError for prompts that do not show options as the model's card says."""

    def __init__(self, prompts: Prompts, served: Served, settings: Settings) -> None:
        self.prompts, self.states = prompts, RecentStates(prompts)
        self.context, self.card, self.settings = served.context, served.card, settings
        if prompts.sorts_options != (served.card is not None and served.card.options == "sorted"):
            raise ValueError("the prompts were loaded without the model's card, or with another")
        prompts.limit(served.context)

    def state(self, tenant: str, ask: Ask, share_key: bytes = b"") -> Reading:
        """Tokens of everything. Raises InvalidRequest, TooLong."""
        return self._checked(lambda started: self._read_state(tenant, ask, share_key, started), ask)

    def _read_state(self, tenant: str, ask: Ask, share_key: bytes, started: Callable[[], Branches]) -> Reading:
        trunk = self.states.trunk(tenant, ask.state)
        branches = started()
        escaped = trunk.escaped or any(b.escaped for _, _, b in branches)
        return Reading(trunk.tokens, trunk.saves, share_key, escaped, (), branches, None, self.card, ask.label_mass)

    def _checked(self, read: Callable[[Callable[[], Branches]], Reading], ask: Ask) -> Reading:
        """read: given what the questions' tokens come from, which are on their way."""
        try:
            reading = read(self._branches(ask.questions))
        except (InputError, InputErrors) as e:
            raise InvalidRequest(e.details()) from e
        except TextTooLong as e:
            raise TooLong(f"{e}, which is all that the model reads") from e
        except RecursionError as e:
            raise InvalidRequest.at((), "the JSON is nested too deeply", "json_invalid") from e
        self._check_lengths(reading)
        return reading

    def _branches(self, questions: dict[str, Question]) -> Callable[[], Branches]:
        try:
            started = self.prompts.start(list(questions.values()))
        except InputError:
            raise InvalidRequest(self._faults(questions)) from None
        return lambda: tuple(zip(questions, questions.values(), started(), strict=True))

    def _faults(self, questions: dict[str, Question]) -> list[dict[str, Any]]:
        """Of each question that has any."""
        faults: list[dict[str, Any]] = []
        for key, question in questions.items():
            try:
                self.prompts.question(question)
            except InputError as e:  # its loc starts at the question
                faults.append(e.detail() | {"loc": ["body", "questions", key, *e.loc]})
        return faults

    def _check_lengths(self, reading: Reading) -> None:
        """Raises TooLong, naming what is too long and by how much. Nothing is ever cut."""
        s, trunk = self.settings, len(reading.tokens)
        if s.max_state_tokens and trunk > s.max_state_tokens:
            raise TooLong(f"the state has {trunk} tokens; this server takes {s.max_state_tokens}")
        longest, name = max(((len(b.tokens), key) for key, _, b in reading.branches), default=(0, ""))
        if s.max_question_tokens and longest > s.max_question_tokens:
            raise TooLong(f"question {name!r} has {longest} tokens; this server takes {s.max_question_tokens}")
        between = max((len(t) for _, t in reading.candidates), default=0)
        if (whole := trunk + between + longest) > self.context:
            raise TooLong(f"state and question {name!r} have {whole} tokens; the model reads {self.context}")
        if reading.branch_tokens > s.max_request_tokens:
            raise TooLong(
                f"the questions have {reading.branch_tokens} tokens together; this server takes {s.max_request_tokens}"
            )


class Reader(StateReader):
    """Of all requests. Thread-safe."""

    def __init__(self, prompts: Prompts, sessions: Sessions, retention: Retention, served: Served, settings: Settings) -> None:
        super().__init__(prompts, served, settings)
        self.sessions, self.retention = sessions, retention

    def read(self, tenant: str, ask: Ask) -> Reading:
        """Tokens of everything. Raises InvalidRequest, HeadConflict, TooLong."""
        if (session := ask.session) is None:
            return self.state(tenant, ask, self.sessions.share_key(tenant))
        return self._checked(lambda started: self._read_step(tenant, session, ask, started()), ask)

    def _read_step(self, tenant: str, session: str, ask: Ask, branches: Branches) -> Reading:
        step = self.sessions.begin(tenant, session, messages=ask.messages, append=ask.append, head=ask.head, tools=ask.tools)
        if step.opens:
            self.retention.check(tenant)
        candidates: list[tuple[str, Tokens]] = []
        escaped = step.escaped or any(b.escaped for _, _, b in branches)
        if ask.candidates and not self.prompts.incremental:
            # Its blocks cannot be tokenised apart from the history, so a candidate would not read as it does in the history.
            raise InvalidRequest.at(("x_candidates",), f"this model's tokenizer allows no candidates: {self.prompts.reason}")
        for key, messages in ask.candidates.items():
            blocks = [self.prompts.message(step.messages + i, m) for i, m in enumerate(messages, 1)]
            candidates.append((key, np.concatenate([b.tokens for b in blocks]).astype(np.int32)))
            escaped = escaped or any(b.escaped for b in blocks)
        return Reading(
            step.tokens, step.saves, step.share_key, escaped, tuple(candidates), branches, step, self.card, ask.label_mass
        )
