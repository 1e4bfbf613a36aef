"""Questions on every step, and whether they end the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.decisions import Question
from langchain_core.messages import BaseMessage, ToolMessage

from langchain_flide.errors import FlideQuestionError
from langchain_flide.policies import Moment, Watch
from langchain_flide.questions import checked
from langchain_flide.routing import ROUTE
from langchain_flide.verdicts import check_threshold, measure, reached

Counts = dict[str, int]
"""By watch: in how many asked steps in a row its threshold was reached."""


def read_watches(watch: Mapping[str, Question | Watch] | None) -> dict[str, Watch]:
    """Plain questions as watches. Raises FlideQuestionError."""
    found = {key: w if isinstance(w, Watch) else Watch(question=w) for key, w in (watch or {}).items()}
    if ROUTE in found:
        raise FlideQuestionError(f"watch.{ROUTE}: this id is the route's own")
    if found:
        checked({key: w.question for key, w in found.items()}, "watch")
    for key, w in found.items():
        if w.stop_at is not None:
            check_threshold(f"watch.{key}.stop_at", w.question, w.stop_at)
        if w.after < 1:
            raise FlideQuestionError(f"watch.{key}.after: must be at least 1")
    return found


def due(watches: Mapping[str, Watch], moment: Moment) -> dict[str, Question]:
    """The questions about this moment."""
    return {key: w.question for key, w in watches.items() if w.sees == moment}


def fresh_result(messages: Sequence[BaseMessage]) -> bool:
    return bool(messages) and isinstance(messages[-1], ToolMessage)


def counted(
    watches: Mapping[str, Watch], answers: Mapping[str, Any], was: Counts
) -> tuple[Counts, dict[str, float], str | None]:
    """New counts, the answers as numbers, and the watch that ends the run, if one does. answers: of the watches asked."""
    counts, numbers, ends = dict(was), {}, None
    for key, answer in answers.items():
        watch = watches[key]
        numbers[key] = measure(answer)
        counts[key] = counts.get(key, 0) + 1 if reached(answer, watch.stop_at) else 0
        if counts[key] >= watch.after and ends is None:
            ends = key
    return counts, numbers, ends
