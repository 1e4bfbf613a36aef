"""Where the requests of a level come from: generated sizes or the rows of a real set, as bodies of POST /v1/systemone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from flide_agent.bench.shapes import Shape, Workloads
from flide_agent.bench.texts import Texts
from flide_agent.questions import parse_questions

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts


class Source(Protocol):
    """rows: how many distinct requests there are."""

    rows: int

    def body(self, row: int, copy: int) -> tuple[bytes, Shape]:
        """A request's JSON and its size. Copies of a row differ in the tag at the start of the state, and so in their answers."""
        ...

    def asked_again(self, row: int, copy: int) -> tuple[bytes, Shape]:
        """Another request with the state of this copy; of a real set the same one."""
        ...


class Generated:
    """Texts of exactly these sizes. number: of the first text; each workload of a run has a range of its own."""

    RANGE = 20_000

    def __init__(self, shapes: Sequence[Shape], texts: Texts, number: int) -> None:
        self.rows, self._shapes, self._texts, self._first = len(shapes), shapes, texts, number * self.RANGE

    def body(self, row: int, copy: int) -> tuple[bytes, Shape]:
        return self._body(row, copy, copy)

    def asked_again(self, row: int, copy: int) -> tuple[bytes, Shape]:
        return self._body(row, copy, self.RANGE // self.rows - 1 - copy)

    def _body(self, row: int, copy: int, questions: int) -> tuple[bytes, Shape]:
        shape = self._shapes[row]
        if max(copy, questions) * self.rows + row >= self.RANGE:
            raise ValueError(f"more than {self.RANGE} texts of one workload")
        state = self._texts.state(shape.state, self._first + copy * self.rows + row)
        asked = self._texts.questions(shape.questions, self._first + questions * self.rows + row)
        return msgspec.json.encode({"state": state, "questions": asked}), shape


@dataclass(frozen=True, slots=True)
class Row:
    """A request of a real set. questions: as they go over the wire."""

    state: Any
    questions: dict[str, dict[str, Any]]


class Real:
    """Rows of a real set; each copy's state begins with a line that names copy and row. States that are JSON are sent as text."""

    def __init__(self, rows: Sequence[Row], prompts: Prompts) -> None:
        self.rows, self._rows, self._prompts = len(rows), rows, prompts

    def asked_again(self, row: int, copy: int) -> tuple[bytes, Shape]:
        return self.body(row, copy)

    def body(self, row: int, copy: int) -> tuple[bytes, Shape]:
        state, questions = self._rows[row].state, self._rows[row].questions
        tag = f"copy {copy}, row {row}\n"
        text = tag + (state if isinstance(state, str) else msgspec.json.encode(state).decode())
        sizes = tuple(len(self._prompts.question(q).tokens) for q in parse_questions(questions).values())
        shape = Shape(len(self._prompts.state(text).tokens), sizes)
        return msgspec.json.encode({"state": text, "questions": questions}), shape


def measured(source: str, sets: dict[str, list[Row]], prompts: Prompts) -> Workloads:
    """Sizes of the rows of real sets, with the tag of copy 0."""
    requests = {}
    for name, rows in sets.items():
        reader = Real(rows, prompts)
        requests[name] = tuple(reader.body(i, 0)[1] for i in range(len(rows)))
    return Workloads(f"real sets: {', '.join(sets)} (instead of {source})", requests, (), ())
