"""Questions as clients ask them, and the answers that go back: the System One wire format without HTTP or tokens.

`parse_questions` checks everything at once; `answer` turns label probabilities into the wire answer.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from flide_agent.messages import InputError, InputErrors, Loc, dumps, well_formed

MAX_OPTIONS = 255
MAX_LEVELS = 10


class Option(msgspec.Struct, frozen=True):
    """One option of a choice. name: as sent, byte for byte; description: its text, "" when the name speaks for itself."""

    name: str
    description: str = ""


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """One of 1..255 options, in the order asked."""

    instructions: str
    options: tuple[Option, ...]


class Score(msgspec.Struct, frozen=True, tag="score"):
    """A level 0..n-1 of 1..10. levels: texts as the model reads them; legend: the levels as sent, echoed in the answer."""

    instructions: str
    levels: tuple[str, ...]
    legend: tuple[Any, ...]


class Noul(msgspec.Struct, frozen=True, tag="noul"):
    """Yes or no. true, false: what either side means, "" when not described."""

    instructions: str
    true: str = ""
    false: str = ""


Question = Choice | Score | Noul


def labels_of(question: Question) -> int:
    """How many labels the question reads: its options, its levels, or yes and no."""
    if isinstance(question, Choice):
        return len(question.options)
    return len(question.levels) if isinstance(question, Score) else 2


def parse_questions(raw: object, loc: Loc = ("body", "questions")) -> dict[str, Question]:
    """Questions by id, in the order asked. Raises InputErrors with every fault, each at loc + (id, type, field, ...)."""
    if raw is None:
        raise InputErrors([InputError(loc, "questions are required: an object of at least one question by id", "missing")])
    if not isinstance(raw, dict):
        raise InputErrors([InputError(loc, "questions must be an object of questions by id", "dict_type")])
    if not raw:
        raise InputErrors([InputError(loc, "ask at least one question", "too_short")])
    questions: dict[str, Question] = {}
    errors: list[InputError] = []
    for key, value in raw.items():
        found = len(errors)
        if not isinstance(key, str) or not key:
            errors.append(InputError((*loc, str(key)), "a question's id must be a non-empty string", "string_too_short"))
        elif key != well_formed(key):
            errors.append(InputError((*loc, well_formed(key)), "a question's id must be valid Unicode", "string_unicode"))
        question = _question(value, (*loc, well_formed(str(key))), errors)
        if question is not None and len(errors) == found:
            questions[key] = question
    if errors:
        raise InputErrors(errors)
    return questions


def answer(question: Question, probabilities: npt.ArrayLike) -> dict[str, Any]:
    """The wire answer, with confidence by the reference formulas of the System One API. Nothing is rounded.

    probabilities: [options | levels | yes, no], finite, not negative; normalised here, uniform when all are 0.
    Raises ValueError for another length or value.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    n = labels_of(question)
    if p.shape != (n,) or not np.isfinite(p).all() or (p < 0).any():
        raise ValueError(f"{n} finite probabilities are needed, none negative")
    total = p.sum()
    return answer_of(question, p / total if total > 0 else np.full(n, 1 / n))


def answer_of(question: Question, p: npt.NDArray[np.float64], order: Sequence[int] = ()) -> dict[str, Any]:
    """`answer` of what is normalised already. p: [n], one for each label, sums to 1.

    order: of a choice, which option stands at each label; () for the order asked. The answer lists the options in the order asked.
    """
    values: list[float] = p.tolist()
    if isinstance(question, Noul):
        return {"type": "noul", "noul": values[0]}
    if isinstance(question, Choice):
        # Of equal probabilities the first label's wins: not the first asked, or the order asked would decide.
        top = values.index(max(values))
        asked = [x for _, x in sorted(zip(order, values, strict=True))] if order else values
        return {
            "type": "choice",
            "choice": question.options[order[top] if order else top].name,
            "probabilities": {o.name: x for o, x in zip(question.options, asked, strict=True)},
            "confidence": choice_confidence(values),
        }
    return {
        "type": "score",
        "score": float(p @ np.arange(len(values))),
        "legend": {str(i): level for i, level in enumerate(question.legend)},
        "probabilities": {str(i): x for i, x in enumerate(values)},
        "confidence": score_confidence(p),
    }


def choice_confidence(p: Sequence[float]) -> float:
    """(max p - 1/n) / (1 - 1/n): 0 for uniform, 1 for certain. p: [n], sums to 1."""
    n = len(p)
    return 1.0 if n == 1 else min(1.0, max(0.0, (max(p) - 1 / n) / (1 - 1 / n)))


def score_confidence(p: npt.NDArray[np.float64]) -> float:
    """1 - mean distance from the top level over that of uniform levels from their middle, at least 0. p: [n], sums to 1."""
    n = len(p)
    if n == 1:
        return 1.0
    levels = np.arange(n)
    spread = float(np.abs(levels - (n - 1) / 2).mean())
    return min(1.0, max(0.0, 1 - float(p @ np.abs(levels - int(p.argmax()))) / spread))


def _question(raw: object, loc: Loc, errors: list[InputError]) -> Question | None:
    if not isinstance(raw, dict):
        errors.append(InputError(loc, "a question must be an object with a type", "dict_type"))
        return None
    kind = raw.get("type")
    if kind is None:
        errors.append(InputError((*loc, "type"), "a question needs a type: choice, score or noul", "missing"))
        return None
    parse = _PARSERS.get(kind) if isinstance(kind, str) else None
    if parse is None:
        msg = "unknown question type; the types are choice, score and noul"
        errors.append(InputError((*loc, "type"), msg, "union_tag_invalid"))
        return None
    loc = (*loc, str(kind))
    for key in raw:
        if key not in ("type", "instructions", "criteria"):
            errors.append(InputError((*loc, well_formed(str(key))), "unknown field of a question", "extra_forbidden"))
    instructions = _content(raw.get("instructions"), (*loc, "instructions"), errors)
    return parse(instructions, raw.get("criteria"), loc, errors)


def _content(value: object, loc: Loc, errors: list[InputError]) -> str:
    """The text of a string, an object or an array; "" for null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return well_formed(value)
    if not isinstance(value, dict | list):
        errors.append(InputError(loc, "must be a string, an object, an array or null", "string_type"))
        return ""
    try:
        return dumps(value, loc)
    except InputError as error:
        errors.append(error)
        return ""


def _choice(instructions: str, criteria: object, loc: Loc, errors: list[InputError]) -> Choice | None:
    loc = (*loc, "criteria")
    if not isinstance(criteria, dict):
        kind = "missing" if criteria is None else "dict_type"
        errors.append(InputError(loc, "a choice needs criteria: an object of option names with a description or null", kind))
        return None
    if not criteria:
        errors.append(InputError(loc, "a choice needs at least one option", "too_short"))
        return None
    if len(criteria) > MAX_OPTIONS:
        errors.append(InputError(loc, f"a choice has at most {MAX_OPTIONS} options, not {len(criteria)}", "too_long"))
        return None
    options: list[Option] = []
    seen: dict[str, str] = {}
    for name, description in criteria.items():
        if not isinstance(name, str) or not name.strip():
            errors.append(InputError((*loc, str(name)), "an option needs a name", "string_too_short"))
            continue
        # The name is a key of the reply, which is UTF-8: a lone surrogate could not go back byte for byte.
        if well_formed(name) != name:
            errors.append(InputError((*loc, well_formed(name)), "an option's name must be valid Unicode", "string_unicode"))
            continue
        option = Option(name, _content(description, (*loc, name), errors))
        line = _as_read(option)
        if line in seen:
            msg = f"options collide: the model reads the same text for {seen[line]!r} and {name!r}"
            errors.append(InputError((*loc, name), msg, "options_collide"))
        seen.setdefault(line, name)
        options.append(option)
    return Choice(instructions, tuple(options))


def option_text(option: Option) -> str:
    """What stands behind an option's label in the prompt."""
    return f"{option.name} - {option.description}" if option.description else option.name


def _as_read(option: Option) -> str:
    """The option's text less what a model cannot tell apart: canonically equivalent characters and amounts of white space."""
    return " ".join(unicodedata.normalize("NFC", option_text(option)).split())


def _score(instructions: str, criteria: object, loc: Loc, errors: list[InputError]) -> Score | None:
    loc = (*loc, "criteria")
    if not isinstance(criteria, list):
        kind = "missing" if criteria is None else "list_type"
        errors.append(InputError(loc, "a score needs criteria: a list of level descriptions from low to high", kind))
        return None
    if not 1 <= len(criteria) <= MAX_LEVELS:
        kind = "too_long" if criteria else "too_short"
        errors.append(InputError(loc, f"a score has 1 to {MAX_LEVELS} levels, not {len(criteria)}", kind))
        return None
    for i, level in enumerate(criteria):
        if level is None:
            errors.append(InputError((*loc, i), "a level needs a description", "string_type"))
    levels = tuple(_content(level, (*loc, i), errors) for i, level in enumerate(criteria))
    return Score(instructions, levels, tuple(_echo(level) for level in criteria))


def _echo(value: Any) -> Any:
    """A level as sent, in a form that can go back as UTF-8."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, list):
        return [_echo(item) for item in value]
    if isinstance(value, dict):
        return {well_formed(str(key)): _echo(item) for key, item in value.items()}
    return value


def _noul(instructions: str, criteria: object, loc: Loc, errors: list[InputError]) -> Noul | None:
    where = (*loc, "criteria")
    if criteria is None:
        criteria = {}
    if not isinstance(criteria, dict):
        errors.append(InputError(where, "the criteria of a noul must be an object with true and/or false", "dict_type"))
        return None
    for key in criteria:
        if key not in ("true", "false"):
            msg = "a noul has the sides true and false only"
            errors.append(InputError((*where, well_formed(str(key))), msg, "extra_forbidden"))
    true, false = (_content(criteria.get(side), (*where, side), errors) for side in ("true", "false"))
    faulty = any(e.loc[: len(loc)] == loc for e in errors)
    if not faulty and not (instructions.strip() or true.strip() or false.strip()):
        errors.append(InputError((*loc, "instructions"), "a noul needs instructions or at least one described side", "missing"))
    return Noul(instructions, true, false)


_PARSERS: dict[str, Callable[[str, object, Loc, list[InputError]], Question | None]] = {
    "choice": _choice,
    "score": _score,
    "noul": _noul,
}
