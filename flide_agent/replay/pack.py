"""Question packs: questions, and for each what its answers are compared with and from which probability on it fires."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flide_agent.replay.moments import BEFORE, MOMENTS
from flide_agent.replay.questions import DEFAULT, Questions, QuestionsError

OWN = ("moment", "reference", "map", "threshold", "temperature", "needs_action")
"""Keys of a question in a pack that are for replay; the service never sees them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """When a question is asked, and how its answers are read.

    moment: of each step: "before" the agent speaks, with its message "proposed", "after" the result is there.
    reference: name of the label to compare with, "" for none. map: from the label's value (as text) to an option's name, a
    level's number, or true and false. threshold: of P(yes), or of the probability of the chosen option; None for none.
    temperature: divides the logits before a threshold is looked at. needs_action: not asked before the agent's first message.
    """

    reference: str = ""
    map: dict[str, Any] = field(default_factory=dict)
    threshold: float | None = None
    temperature: float = 1.0
    moment: str = BEFORE
    needs_action: bool = False


@dataclass(frozen=True, slots=True)
class Pack:
    """questions: what is asked. readings: for every question when it is asked and how its answers are read."""

    questions: Questions
    readings: dict[str, Reading]

    @property
    def moments(self) -> dict[str, str]:
        """Of every question."""
        return {name: r.moment for name, r in self.readings.items()}

    @property
    def needing(self) -> frozenset[str]:
        """The questions that need an action."""
        return frozenset(name for name, r in self.readings.items() if r.needs_action)

    def calibrated(self, name: str, answer: dict[str, Any]) -> dict[str, float]:
        """Probabilities of an answer's options at the question's temperature; of a noul "true" and "false"."""
        return tempered(probabilities(answer), self.readings[name].temperature)

    def fires(self, name: str, answer: dict[str, Any]) -> bool:
        """Whether an answer passes its question's threshold."""
        threshold = self.readings[name].threshold
        if threshold is None:
            return False
        p = self.calibrated(name, answer)
        return (p["true"] if answer["type"] == "noul" else max(p.values())) >= threshold


DEFAULT_PACK = Pack(
    DEFAULT,
    {
        "last_command_failed": Reading("last_failed", threshold=0.5),
        "last_tool_kind": Reading(needs_action=True),
        "step_count": Reading(needs_action=True),  # its lowest level is 1 to 3
        "traceback": Reading(),
        "empty_output": Reading(needs_action=True),
    },
)
"""The default questions; whether the last command failed is compared with what the formats hold of it (return codes, error marks)."""


def load(path: Path) -> Pack:
    """A pack from a TOML or JSON file: an object of id -> question, or that under the key "questions". Raises QuestionsError.

    Only the outline is checked here; the service checks each question and names every mistake at once.
    """
    return pack_of(_parsed(path), str(path))


def pack_of(value: Any, path: str) -> Pack:
    """The same of the value that a file holds; path: what errors call it. Raises QuestionsError."""
    if isinstance(value, dict) and isinstance(value.get("questions"), dict):
        value = value["questions"]
    if not isinstance(value, dict) or not value:
        raise QuestionsError(f"{path}: needs an object of question id -> question, with at least one")
    questions: Questions = {}
    readings: dict[str, Reading] = {}
    for name, question in value.items():
        if not isinstance(question, dict) or "type" not in question:
            raise QuestionsError(f"{path}: question {name!r} needs an object with a type (choice, score or noul)")
        questions[name] = {k: v for k, v in question.items() if k not in OWN}
        readings[name] = _reading(question, f"{path}: question {name!r}")
    return Pack(questions, readings)


def written(pack: Pack) -> str:
    """The pack as a JSON file that `load` reads."""
    return json.dumps({"questions": described(pack)}, indent=1, ensure_ascii=False) + "\n"


def described(pack: Pack) -> dict[str, Any]:
    """The pack as an object that `pack_of` reads."""
    out: dict[str, Any] = {}
    for name, question in pack.questions.items():
        r = pack.readings[name]
        moment = "" if r.moment == BEFORE else r.moment
        own: dict[str, Any] = {
            "moment": moment,
            "reference": r.reference,
            "map": r.map,
            "threshold": r.threshold,
            "temperature": r.temperature,
            "needs_action": r.needs_action or None,
        }
        out[name] = {**question, **{k: v for k, v in own.items() if v not in ("", {}, None)}}
    return out


def probabilities(answer: dict[str, Any]) -> dict[str, float]:
    """Of each option of an answer; a noul has "true" and "false"."""
    if answer["type"] == "noul":
        return {"true": answer["noul"], "false": 1.0 - answer["noul"]}
    return dict(answer["probabilities"])


def tempered(p: dict[str, float], temperature: float) -> dict[str, float]:
    """softmax(log p / temperature)."""
    if temperature == 1.0:
        return p
    logs = {k: math.log(max(v, 1e-300)) / temperature for k, v in p.items()}
    top = max(logs.values())
    weights = {k: math.exp(v - top) for k, v in logs.items()}
    total = sum(weights.values())
    return {k: w / total for k, w in weights.items()}


def _parsed(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as e:
        raise QuestionsError(f"{path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise QuestionsError(f"{path}: is not UTF-8: {e.reason} at byte {e.start}") from e
    if (text.lstrip().startswith(("{", "[")) and path.suffix != ".toml") or path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as e:
            raise QuestionsError(f"{path}:{e.lineno}:{e.colno}: not valid JSON: {e.msg}") from e
        except (ValueError, RecursionError) as e:
            raise QuestionsError(f"{path}: not valid JSON: {e}") from e
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise QuestionsError(f"{path}: not valid TOML: {e}") from e


def _reading(question: dict[str, Any], where: str) -> Reading:
    reference, table = question.get("reference", ""), question.get("map", {})
    threshold, temperature = question.get("threshold"), question.get("temperature", 1.0)
    moment, needs = question.get("moment", BEFORE), question.get("needs_action", False)
    if moment not in MOMENTS:
        raise QuestionsError(f"{where}: moment must be one of {', '.join(MOMENTS)}")
    if not isinstance(reference, str):
        raise QuestionsError(f"{where}: reference must be the name of a label")
    if not isinstance(table, dict):
        raise QuestionsError(f"{where}: map must be an object of label -> option")
    if threshold is not None and (not _number(threshold) or not 0 <= threshold <= 1):
        raise QuestionsError(f"{where}: threshold must be a number from 0 to 1")
    if not _number(temperature) or not 0 < temperature < 1e6:
        raise QuestionsError(f"{where}: temperature must be a number above 0")
    if not isinstance(needs, bool):
        raise QuestionsError(f"{where}: needs_action must be true or false")
    return Reading(reference, table, None if threshold is None else float(threshold), float(temperature), moment, needs)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
