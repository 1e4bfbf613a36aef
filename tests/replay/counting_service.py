"""A stand-in for the service, for what is tested without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flide_agent.errors import FlideError
from flide_agent.replies import CandidateReply, Choice, Latency, Noul, Reply, Score, StepReply, Usage

EXAMPLE = Path(__file__).parents[2] / "examples" / "fix_slugify.traj"
GRID = 64


def copies(folder: Path, n: int) -> list[Path]:
    """The example n times: a file that is named twice is replayed once."""
    found = [folder / f"copy-{i}.traj" for i in range(n)]
    for path in found:
        path.write_bytes(EXAMPLE.read_bytes())
    return found


class CountingService:
    """Answers everything alike (nouls about a candidate otherwise), counts a token for every four characters, and goes on from
    the longest known beginning.

    refuse: the error to raise for a history of so many messages.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[Any], Mapping[str, Any]]] = []
        self.tools: list[Any] = []
        self.candidates: list[Mapping[str, Any] | None] = []
        self.deleted: list[str] = []
        self.refuse: dict[int, FlideError] = {}
        self.untrained = True

    def decide(
        self,
        session: str,
        *,
        questions: Mapping[str, Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]] | None = None,
        candidates: Mapping[str, Any] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> Reply:
        assert messages is not None
        self.candidates.append(candidates)
        self.tools.append(tools)
        if len(messages) in self.refuse:
            raise self.refuse[len(messages)]
        before = [known for other, known, _ in self.asked if other == session and list(messages[: len(known)]) == known]
        m = max((tokens(known) for known in before), default=0) // GRID * GRID
        self.asked.append((session, list(messages), questions))
        trunk = tokens(messages)
        step = StepReply(
            session, "h", len(self.asked), m, m, trunk - m + 100, "append" if m else "new", trunk, Latency(total=1.0)
        )
        answers = {name: self.answer(q) for name, q in questions.items()}
        others = {name: self.answer(q, 0.75) for name, q in questions.items()}
        judged = {name: CandidateReply(others) for name in candidates} if candidates else None
        return Reply("counting", answers, Usage(trunk, 0), step, judged, x_untrained=self.untrained)

    def answer(self, question: Mapping[str, Any], yes: float = 0.25) -> Noul | Choice | Score:
        if question["type"] == "noul":
            return Noul(yes)
        if question["type"] == "choice":
            return Choice("run", {"run": 0.5, "other": 0.5}, 0.5)
        return Score(1.5, {}, {"0": 1.0}, 0.5)

    def delete(self, session: str) -> None:
        self.deleted.append(session)


def tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(m["content"]) for m in messages) // 4
