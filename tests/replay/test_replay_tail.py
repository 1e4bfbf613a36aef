"""A server is sent what it has not heard yet, and answers as if it had been sent everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import seeded_rows
from test_replay_bars import null_server

from flide_agent.client import Client
from flide_agent.errors import HeadConflict
from flide_agent.replay.decision import Decision
from flide_agent.replay.reading import all_runs
from flide_agent.replay.tail import Tail
from flide_agent.replay.walk import Walk
from flide_agent.replies import Reply, StepReply, Usage

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": str(i)} for i in range(5)]


class Heard:
    """Answers with the number of its calls as the head; forgets: heads that it says it does not know."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.forgets: set[str] = set()

    def decide(self, session: str, **sent: Any) -> Reply:
        self.calls.append(sent)
        if sent.get("head") in self.forgets:
            raise HeadConflict("unknown", None)
        head = str(len(self.calls))
        return Reply("m", {}, Usage(), x_session=StepReply(session, head, 1, 0, 0, 0, "append"))


def told(service: Heard, tail: Tail, messages: list[Any]) -> list[tuple[str | None, int]]:
    """(head, messages sent) of each call that one decision took."""
    service.calls.clear()
    tail.decide(service, "s", messages, {"q": {}}, tools=None)  # type: ignore[arg-type]
    return [(c.get("head"), len(c["append"] if "append" in c else c["messages"])) for c in service.calls]


def test_only_what_is_new_is_sent() -> None:
    service, tail = Heard(), Tail()
    assert told(service, tail, MESSAGES[:2]) == [(None, 2)]
    assert told(service, tail, MESSAGES[:4]) == [("1", 2)]
    assert told(service, tail, MESSAGES[:4]) == [(None, 4)]  # nothing new
    edited = [dict(MESSAGES[0]), *MESSAGES[1:5]]
    assert told(service, tail, edited) == [(None, 5)]  # not the same message, so not taken for it
    assert told(service, tail, edited[:3]) == [(None, 3)]
    service.forgets.add("1")
    assert told(service, tail, edited) == [("1", 2), (None, 5)]


def test_the_decisions_are_the_same(tmp_path: Path) -> None:
    seeded_rows.write(tmp_path / "rows.jsonl", 300_000)
    seen: list[list[tuple[Any, ...]]] = []
    with null_server(tmp_path / "store") as url, Client(url) as client:
        for served in (False, True):
            walk = Walk(client, {"q": {"type": "noul", "instructions": "Is it?"}}, served=served)
            found = walk.over(all_runs([tmp_path / "rows.jsonl"], "as-sent", None))
            seen.append([(d.run.row, d.step.index, d.m, d.computed_tokens, d.reason, d.answers)
                         for d in found if isinstance(d, Decision)])  # fmt: skip
            walk.forget()
    assert seen[0] == seen[1]
    assert len(seen[0]) > 20
