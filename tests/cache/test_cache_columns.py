"""`flide-agent cache ls` for people: its columns stay below each other, whatever ids clients choose."""

from __future__ import annotations

from session_house import House
from test_cache_command import closed, house, prompts, run  # noqa: F401  (two are fixtures)

from flide_agent.messages import Message


def test_long_ids_move_no_column(house: House) -> None:  # noqa: F811
    long = "a-session-id-that-somebody-made-of-three-words-and-a-number-1"
    for session in ("short", long, "x" * 200):
        house.step(session, "default", messages=[Message("user", "go")])
    assert house.store.flush(20)
    with closed(house):
        head, *rows = run("ls", "--store", house.path).splitlines()[:-1]
    assert len(rows) == 3
    assert {row.index("default ") for row in rows} == {head.index("TENANT")}
    assert {len(row) for row in rows} == {len(head)}
    assert sum(long in row for row in rows) == 1
    assert sum("x" * 79 + "…" in row for row in rows) == 1
