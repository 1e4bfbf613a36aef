"""The printed table: every cell ends where its title does, however long numbers, reasons and options are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counting_service import CountingService
from rich.cells import cell_len
from test_replay_options import replay

from flide_agent.replay.decision import Decision
from flide_agent.replay.records import Run, Step
from flide_agent.replay.report import Layout

NOUL = {"type": "noul", "instructions": "?"}
LEVELS = {"type": "score", "instructions": "?", "criteria": [str(i) for i in range(120)]}
CHOICE = {"type": "choice", "instructions": "?", "criteria": {"a": "", "b": ""}}
ANSWERS: dict[str, Any] = {
    "yes": {"type": "noul", "noul": 0.5},
    "how_far": {"type": "score", "score": 110.25},
    "which": {"type": "choice", "choice": "a-long-name-of-an-option", "probabilities": {"a-long-name-of-an-option": 0.5}},
}
STEP = Step(1, [], "history", "ls")
PLAIN = Decision(Run("f", 1, "", "chat", []), STEP, "s", ANSWERS, 500, 448, 448, 52, "append", 12.5, 12.0, "m", False)


def ends(text: str, cells: list[str]) -> list[int]:
    """Where each of these ends, in columns of the terminal."""
    found, at = [], 0
    for one in cells:
        at = text.index(one, at) + len(one)
        found.append(cell_len(text[:at]))
    return found


@pytest.mark.parametrize(
    ("index", "more", "shown"),
    [
        (7, {}, ["7", "500", "448", "448", "52", "append", "0.50", "110.25", "a-lon… 0.50", "12.5"]),
        (123_456, {}, ["123456", "500", "448", "448", "52", "append", "0.50", "110.25", "a-lon… 0.50", "12.5"]),
        (
            7,
            {"history_tokens": 12_345_678, "m": 64, "reason": "a reason of another server", "milliseconds": 654_321.98},
            ["7", "12345678", "64", "448", "52", "a reaso…", "0.50", "110.25", "a-lon… 0.50", "654322"],
        ),
        (
            7,
            {"answers": ANSWERS | {"which": {"type": "choice", "choice": "検索と編集", "probabilities": {"検索と編集": 0.5}}}},
            ["7", "500", "448", "448", "52", "append", "0.50", "110.25", "検索… 0.50", "12.5"],
        ),
        (
            7,
            {"out_of_scope": dict.fromkeys(ANSWERS, "question")},
            ["7", "500", "448", "448", "52", "append", "0.50?", "110.25?", "a-lon… 0.50?", "12.5"],
        ),
    ],
)
def test_cells_end_where_their_titles_do(index: int, more: dict[str, Any], shown: list[str]) -> None:
    layout = Layout.fitting({"yes": NOUL, "how_far": LEVELS, "which": CHOICE}, None, last=index)
    titles = [title for title, _ in layout.columns]
    wanted = ends(layout.header(), titles)
    if "history_tokens" in more:  # eight digits where six have room: the next column makes up for it
        wanted[1] += 2 - (wanted[0] - 4)
    row = layout.row(replace(PLAIN, step=replace(STEP, index=index), **more))
    assert ends(row, shown) == wanted
    assert row.endswith("  ls")


def test_what_comes_next_is_cut_to_the_terminal() -> None:
    layout = Layout.fitting({"yes": NOUL}, 90)
    row = layout.row(replace(PLAIN, step=replace(STEP, action="編集" * 60)))
    assert 85 < cell_len(row) <= 90


def test_a_long_run_has_room_for_its_steps(service: CountingService, tmp_path: Path) -> None:
    said = [m for i in range(10_001) for m in ({"role": "assistant", "content": str(i)}, {"role": "user", "content": "?"})]
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "go"}, *said]}))
    lines = replay(path, "--steps", "9999-").output.splitlines()
    head = next(i for i, text in enumerate(lines) if text.startswith(" step "))
    assert [text[:6] for text in lines[head : head + 4]] == [" step ", " 9999 ", "10000 ", "10001 "]
