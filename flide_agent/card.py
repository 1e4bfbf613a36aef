"""What a model was trained and judged for: `card.json` beside its weights.

It says which questions and which lengths an answer can be trusted on; others are answered all the same, and marked. It also
holds the temperatures at which the model's probabilities are calibrated, and in which order the model is shown a choice's options. A
model without a card is served as it is.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from flide_agent.questions import Choice, Noul, Question, Score

FILE = "card.json"
QUESTION, HISTORY = "question", "history"
"""Why an answer is out of scope: the question is none of the card's, or the history is longer than any it was trained on."""

_SPACE = re.compile(r"\s+")


class CardError(ValueError):
    """A card that cannot be read. The message names the file."""


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An option as it was trained: one of the names with one of the texts as its description, or a text as its name."""

    names: tuple[str, ...]
    texts: tuple[str, ...]


class CardQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of question. type: as on the wire. wordings: instructions that ask the same. opposite: of a noul, those that ask for the
    opposite. ask: as it is best sent, an object of the wire; None where its options come from the history.

    sides: of a noul, the described pairs (true, false) of its wordings; those of the opposite are turned around. options: of a choice,
    what each option may be called. names: of a choice among names taken from the history, how many. levels: of a score. figures:
    accuracy and calibration on held-out sources.
    """

    type: str
    wordings: tuple[str, ...]
    opposite: tuple[str, ...] = ()
    ask: dict[str, Any] | None = None
    sides: tuple[tuple[str, str], ...] = ()
    options: dict[str, Kind] = {}
    names: int = 0
    levels: tuple[tuple[str, ...], ...] = ()
    figures: dict[str, Any] = {}

    def covers(self, question: Question) -> bool:
        """Whether the question is one of those that were trained, up to spaces, capitals and final punctuation."""
        text = plain(question.instructions)
        turned = text in _plain_all(self.opposite)
        if type_of(question) != self.type or not (turned or text in _plain_all(self.wordings)):
            return False
        if isinstance(question, Noul):
            sides = {(plain(a), plain(b)) for a, b in self.sides}
            own = plain(question.true), plain(question.false)
            return (own[::-1] if turned else own) in sides or own == ("", "")
        if isinstance(question, Score):
            return tuple(map(plain, question.levels)) in {tuple(map(plain, some)) for some in self.levels}
        if self.names:
            return len(question.options) == self.names and not any(o.description for o in question.options)
        called = [self._called(plain(o.name), plain(o.description)) for o in question.options]
        return sorted(called) == sorted(self.options)

    def _called(self, name: str, description: str) -> str:
        for key, kind in self.options.items():
            names, texts = ({plain(t) for t in some} for some in (kind.names, kind.texts))
            if (name in names and description in texts) or (name in texts and not description):
                return key
        return ""


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """trained_tokens: the longest history in training. temperatures: by id of a question below, else by type of question;
    softmax(logits / t) is calibrated.

    questions: those that passed, by id. about: one line for people. options: "sorted" has the prompt list the options of a choice by
    their text, whatever the order asked; "asked" as they are asked.
    """

    trained_tokens: int
    temperatures: dict[str, float]
    questions: dict[str, CardQuestion]
    about: str = ""
    options: Literal["asked", "sorted"] = "asked"

    @classmethod
    def read(cls, directory: Path) -> Card | None:
        """The card in a model's directory, None where there is none. Raises CardError."""
        path = directory / FILE
        if not path.exists():
            return None
        try:
            card = msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as e:
            raise CardError(f"{path}: {e}") from e
        if not all(0 < t < 1e6 for t in card.temperatures.values()):
            raise CardError(f"{path}: a temperature must be a number above 0")
        return card

    def temperature(self, question: Question) -> float:
        """Of the card's question that it is one of, where that has its own; else of its type."""
        for key, known in self.questions.items():
            if key in self.temperatures and known.covers(question):
                return self.temperatures[key]
        return self.temperatures.get(type_of(question), 1.0)

    def outside(self, questions: dict[str, Question], tokens: int) -> dict[str, str]:
        """Of questions by id, why each that is out of scope is: HISTORY or QUESTION. tokens: of the history."""
        if tokens > self.trained_tokens:
            return dict.fromkeys(questions, HISTORY)
        known = self.questions.values()
        return {key: QUESTION for key, q in questions.items() if not any(c.covers(q) for c in known)}

    def asks(self) -> dict[str, dict[str, Any]]:
        """The questions that can be sent as they stand, by id."""
        return {key: q.ask for key, q in self.questions.items() if q.ask is not None}


def type_of(question: Question) -> str:
    """As it is called on the wire."""
    return "noul" if isinstance(question, Noul) else "choice" if isinstance(question, Choice) else "score"


@functools.lru_cache(256)
def _plain_all(texts: tuple[str, ...]) -> frozenset[str]:
    """Made once for the wordings of a card, which every request is held against."""
    return frozenset(map(plain, texts))


def plain(text: str) -> str:
    """The text without what does not change a wording: capitals, runs of spaces, punctuation at its end."""
    return _SPACE.sub(" ", text).strip().casefold().rstrip(" .?!:")
