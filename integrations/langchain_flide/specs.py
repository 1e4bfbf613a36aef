"""Questions as a chat model writes them: a flat list, which models fill more reliably than a mapping of unions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from langchain_core.decisions import Choice, Noul, Question, Score
from langchain_core.tools import InjectedToolArg
from pydantic import BaseModel, Field, ValidationError, create_model

from langchain_flide.errors import FlideQuestionError
from langchain_flide.questions import checked

_LINE = re.compile(r"[:\"]|\(p=")
"""What stands around names and labels in an answer line."""
EXAMPLE = '{"questions": [{"id": "done", "type": "noul", "instructions": "Is the task done?"}]}'


class QuestionSpec(BaseModel):
    """One question about the history."""

    id: str = Field(description="Short name of the question; with a preset's name nothing else is needed.")
    type: Literal["noul", "choice", "score"] | None = Field(
        default=None, description="noul: yes or no; choice; score: a level."
    )
    instructions: str | None = Field(default=None, description="The whole question.")
    options: list[str] | dict[str, str] | None = Field(
        default=None, description="For choice: names, or names with descriptions."
    )
    levels: list[str] | None = Field(default=None, description="For score: 2 to 10 descriptions from low to high.")


def args_schema(presets: Sequence[str], allow_custom: bool) -> type[BaseModel]:
    """The tool's arguments. `runtime` is filled in by LangGraph's tool node and hidden from the model.

    It has to be a field of the schema: an injected parameter of the body alone is not filled in when a tool brings its own schema.
    """
    item: Any = QuestionSpec if allow_custom else Literal[tuple(presets)]
    what = "The questions to ask."
    if presets:
        what += f" Presets: {', '.join(presets)}."
    focus = "What in the history the questions are about, if not all of it."
    return create_model(
        "FlideDecide",
        questions=(list[item], Field(description=what, min_length=1)),
        focus=(str | None, Field(default=None, description=focus)),
        runtime=(Annotated[Any, InjectedToolArg], None),
    )


def read_specs(specs: Sequence[QuestionSpec | str], presets: Mapping[str, Question], most: int) -> dict[str, Question]:
    """The questions by id. Raises FlideQuestionError, naming the field and what is allowed."""
    if len(specs) > most:
        raise FlideQuestionError(f"questions: at most {most} at a time, not {len(specs)}")
    found: dict[str, Question] = {}
    for i, spec in enumerate(specs):
        at = f"questions[{i}]"
        key = spec if isinstance(spec, str) else spec.id
        if key in found:
            raise FlideQuestionError(f"{at}.id: {key!r} is there twice; every question needs its own id")
        found[key] = _question(at, spec, presets)
    checked(found)
    return found


def _question(at: str, spec: QuestionSpec | str, presets: Mapping[str, Question]) -> Question:
    key = spec if isinstance(spec, str) else spec.id
    if isinstance(spec, str) or (spec.type is None and spec.instructions is None):
        if key in presets:
            return presets[key]
        known = f"; presets: {', '.join(presets)}" if presets else ""
        raise FlideQuestionError(f"{at}: give type (noul, choice or score) and instructions{known}")
    if not spec.instructions or not spec.instructions.strip():
        raise FlideQuestionError(f"{at}.instructions: must not be empty")
    match spec.type:
        case "noul":
            return Noul(instructions=spec.instructions)
        case "choice":
            options: dict[str, Any] = (
                dict.fromkeys(spec.options) if isinstance(spec.options, list) else dict(spec.options or {})
            )
            if len(options) < 2:
                raise FlideQuestionError(f"{at}.options: a choice needs at least 2 different options")
            return Choice(instructions=spec.instructions, criteria=options)
        case "score":
            levels: list[Any] = list(spec.levels or [])
            if not 2 <= len(levels) <= 10:
                raise FlideQuestionError(f"{at}.levels: a score needs 2 to 10 levels from low to high")
            return Score(instructions=spec.instructions, criteria=levels)
    raise FlideQuestionError(f"{at}.type: must be noul, choice or score")


def correction(error: ValidationError | Exception) -> str:
    """What a chat model needs to correct its arguments, in one line: the fields, what is allowed, an example. No traceback."""
    if isinstance(error, ValidationError):
        places = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False, include_url=False)]
        said = "; ".join(places)
    else:
        said = str(error)
    return f"The questions could not be asked. {escaped(said)}. Example: {EXAMPLE}"


def escaped(text: str) -> str:
    """The text in one line: what is not printable as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain(text: str) -> str:
    """A name or label as it stands in an answer line: in quotes when it could be taken for more than that."""
    return text if text.isprintable() and not _LINE.search(text) else json.dumps(text)
