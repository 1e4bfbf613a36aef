"""Questions: LangChain's own types, checked before anything is sent.

`Noul`, `Choice` and `Score` are those of `langchain_core.decisions`; there is no second set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.decisions import Answer, Box, Choice, ChoiceAnswer, Noul, NoulAnswer, Question, Score, ScoreAnswer

from langchain_flide.errors import FlideQuestionError

MAX_OPTIONS, MAX_LEVELS = 255, 10
_MEDIA = frozenset({"image", "image_url", "audio", "video", "file"})


def checked(questions: Mapping[str, Question], at: str = "questions") -> dict[str, dict[str, Any]]:
    """The questions as the service takes them, by id. Raises FlideQuestionError, naming the place below `at`."""
    if not isinstance(questions, Mapping) or not questions:
        raise FlideQuestionError(f"{at}: needs at least one question")
    return {key: _wire(f"{at}.{key}", key, question) for key, question in questions.items()}


def _wire(at: str, key: Any, question: Any) -> dict[str, Any]:
    if not isinstance(key, str) or not key.strip():
        raise FlideQuestionError(f"{at}: a question's id must be text")
    _written(at, key)
    if isinstance(question, Box):
        raise FlideQuestionError(f"{at}: unsupported question type box; the types are noul, choice and score")
    if not isinstance(question, Noul | Choice | Score):
        raise FlideQuestionError(
            f"{at}: must be a Noul, Choice or Score of langchain_core.decisions, not {type(question).__name__}"
        )
    _no_media(f"{at}.instructions", question.instructions)
    if not question.instructions or (isinstance(question.instructions, str) and not question.instructions.strip()):
        raise FlideQuestionError(f"{at}.instructions: must not be empty")
    wire: dict[str, Any] = {"type": question.type, "instructions": question.instructions}
    if isinstance(question, Noul):
        sides = {} if question.criteria is None else question.criteria.model_dump(exclude_none=True)
        if sides:
            wire["criteria"] = sides
        return wire
    _no_media(f"{at}.criteria", question.criteria)
    if isinstance(question, Choice):
        if not 1 <= len(question.criteria) <= MAX_OPTIONS:
            raise FlideQuestionError(f"{at}.criteria: a choice has 1 to {MAX_OPTIONS} labels, not {len(question.criteria)}")
        if any(not label.strip() for label in question.criteria):
            raise FlideQuestionError(f"{at}.criteria: a label must not be empty")
        for label in question.criteria:
            _written(f"{at}.criteria", label)
    elif not 2 <= len(question.criteria) <= MAX_LEVELS:
        raise FlideQuestionError(f"{at}.criteria: a score has 2 to {MAX_LEVELS} levels, not {len(question.criteria)}")
    elif any(level is None for level in question.criteria):
        raise FlideQuestionError(f"{at}.criteria: a level needs a description")
    wire["criteria"] = question.criteria
    return wire


def _written(at: str, name: str) -> None:
    """Names are keys of the reply: they have to come back as they were sent."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FlideQuestionError(f"{at}: {name!r} has half a character (a lone surrogate)") from None


def _no_media(at: str, value: Any) -> None:
    if isinstance(value, Mapping):
        if value.get("type") in _MEDIA:
            raise FlideQuestionError(f"{at}: this model reads text only, no {value['type']} blocks")
        for item in value.values():
            _no_media(at, item)
    elif isinstance(value, list):
        for item in value:
            _no_media(at, item)


def fits(question: Mapping[str, Any], answer: Answer | None) -> bool:
    """Whether this is an answer to the question (as the service takes it): of its kind, with its labels."""
    match question["type"], answer:
        case "noul", NoulAnswer():
            return True
        case "choice", ChoiceAnswer():
            return set(answer.probabilities) == set(question["criteria"]) and answer.choice in answer.probabilities
        case "score", ScoreAnswer():
            return set(answer.probabilities) == set(range(len(question["criteria"])))
    return False


def certainty(answer: Answer) -> float:
    """How sure an answer is, 0..1, for every kind: |2p - 1| for a noul, else the answer's confidence."""
    if isinstance(answer, NoulAnswer):
        return abs(2 * answer.noul - 1)
    if isinstance(answer, ChoiceAnswer | ScoreAnswer):
        return answer.confidence
    raise FlideQuestionError(f"no certainty of a {answer.type} answer")


def shown(answer: Answer) -> tuple[str, float]:
    """An answer as a label and the probability of that label (of the nearest level for a score)."""
    if isinstance(answer, NoulAnswer):
        return ("yes", answer.noul) if answer.noul >= 0.5 else ("no", 1 - answer.noul)
    if isinstance(answer, ChoiceAnswer):
        return answer.choice, answer.probabilities[answer.choice]
    if isinstance(answer, ScoreAnswer):
        top = max(answer.probabilities, key=lambda level: answer.probabilities[level])
        return f"{answer.score:.2f} of 0..{len(answer.probabilities) - 1}", answer.probabilities[top]
    raise FlideQuestionError(f"a {answer.type} answer cannot be shown")
