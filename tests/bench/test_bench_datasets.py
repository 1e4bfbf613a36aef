"""The real sets' loaders on small files of the published shapes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from flide_agent.bench import datasets
from flide_agent.bench.sources import Real, measured
from flide_agent.prompts import Prompts
from flide_agent.questions import parse_questions


def words(text: str) -> int:
    return len(text.split())


def write(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def race_file(folder: Path, name: str, part: str = "test/middle") -> None:
    options = [["a", "b", "c", "d"], ["same", "same", "x", ""]]
    write(
        folder / part / f"{name}.txt",
        {"id": name, "article": f"Story {name}.", "questions": ["Who _ ?", "Why?"], "options": options, "answers": ["A", "B"]},
    )


def test_race_takes_the_middle_school_test_set(tmp_path: Path) -> None:
    for i in range(300):
        race_file(tmp_path, str(i))
    race_file(tmp_path, "high", "test/high")
    race_file(tmp_path, "dev", "dev/middle")
    found = datasets.load("race", tmp_path, words)
    assert len(found["race_one"]) == len(found["race_all"]) == 256
    assert {len(r.questions) for r in found["race_one"]} == {1}
    assert {len(r.questions) for r in found["race_all"]} == {2}
    states = {r.state for r in (*found["race_one"], *found["race_all"])}
    assert not states & {"Story high.", "Story dev."}
    assert found == datasets.load("race", tmp_path, words)
    for row in found["race_all"][:3]:
        parse_questions(row.questions)  # options that read the same are told apart
        assert [len(q["criteria"]) for q in row.questions.values()] == [4, 4]


def quality_row(article: str, text: str, questions: int) -> dict[str, Any]:
    asked = [{"question": f"What {i}?", "options": ["one", "two words", "x", "y"], "gold_label": 1} for i in range(questions)]
    return {"article_id": article, "set_unique_id": f"{article}_{questions}", "article": text, "questions": asked}


def test_quality_cuts_articles_at_lines_and_joins_their_questions(tmp_path: Path) -> None:
    long = "\n".join("word " * 9 + f"line{i}" for i in range(500)) + "\n"
    rows = [quality_row("1", long, 9), quality_row("2", "Short.\n", 4), quality_row("1", long, 10)]
    write(tmp_path / "QuALITY.v1.0.1.htmlstripped.dev", *rows)
    write(tmp_path / "QuALITY.v1.0.1.dev", quality_row("3", "<p>not this one</p>", 2))
    write(tmp_path / "QuALITY.v1.0.1.htmlstripped.train", quality_row("4", "nor this", 2))
    found = datasets.load("quality", tmp_path, words)
    whole = {r.state: len(r.questions) for r in found["quality_all"]}
    assert whole == {long: 19, "Short.\n": 4}
    assert len(found["quality_one"]) == 23
    cut = [r for r in found["quality_one"] if r.state != "Short.\n"]
    for row in cut:
        room = datasets.CUT_TOKENS - 4  # two words of question, two of the longest option
        assert row.state == long[: len(row.state)]
        assert row.state.endswith("\n")
        assert room - 10 < words(row.state) <= room


def test_multirc_asks_whole_questions_up_to_64(tmp_path: Path) -> None:
    def question(number: int, answers: int) -> dict[str, Any]:
        return {
            "question": f"Which {number}?",
            "answers": [{"text": f"a{i}", "isAnswer": i == 0, "label": 0} for i in range(answers)],
        }

    questions = [question(0, 40), question(1, 20), question(2, 10), question(3, 2)]
    text = "<b>Sent 1: </b>It rained.<br><b>Sent 2: </b>He said 2 < 3.<br>"
    entry = {"id": "x", "paragraph": {"text": text, "questions": questions}}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "dev_83-fixedIds.json").write_text(json.dumps({"data": [entry]}))
    (row,) = datasets.load("multirc", tmp_path / "a", words)["multirc"]
    assert row.state == "It rained.He said 2 < 3."
    assert len(row.questions) == 60  # the third question would have made 70
    assert row.questions["q0"] == {"type": "noul", "instructions": 'Which 0? Is "a0" a correct answer?'}
    write(tmp_path / "b" / "val.jsonl", {"idx": 0, "version": 1, "passage": {"text": "It rained.", "questions": questions[3:]}})
    (row,) = datasets.load("multirc", tmp_path / "b", words)["multirc"]
    assert [q["instructions"] for q in row.questions.values()] == [f'Which 3? Is "a{i}" a correct answer?' for i in range(2)]


def test_the_decision_index_drops_choices_of_more_than_26(tmp_path: Path) -> None:
    def row(i: int, options: int) -> dict[str, Any]:
        asked = {"k": {"type": "choice", "instructions": "?", "criteria": {f"o{k}": "that" for k in range(options)}}}
        return {"id": str(i), "family": "f", "split": "test", "state": {"n": i}, "questions": asked, "expected": {"k": "o0"}}

    with gzip.open(tmp_path / "selected-rows.jsonl.gz", "wt") as out:
        out.writelines(json.dumps(row(i, 27 if i % 4 == 0 else 26)) + "\n" for i in range(40))
    write(
        tmp_path / "added-rows.jsonl", {"state": "s", "questions": {"n": {"type": "noul", "instructions": "?"}}, "expected": {}}
    )
    found = datasets.load("di", tmp_path, words)["di"]
    assert len(found) == 31
    assert {len(q["criteria"]) for r in found for q in r.questions.values() if q["type"] == "choice"} == {26}


@pytest.mark.parametrize("name", list(datasets.SETS))
def test_a_folder_without_the_set_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="needs"):
        datasets.load(name, tmp_path, words)


def test_another_format_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "test/middle/1.txt", {"passage": "x"})
    with pytest.raises(ValueError, match="not the published format of race"):
        datasets.load("race", tmp_path, words)
    with pytest.raises(ValueError, match="none of race"):
        datasets.load("squad", tmp_path, words)


def test_rows_of_a_real_set_carry_a_tag_and_their_own_sizes(tmp_path: Path, prompts: Prompts) -> None:
    race_file(tmp_path, "1")
    found = datasets.load("race", tmp_path, words)
    source = Real(found["race_all"], prompts)
    body, shape = source.body(0, 7)
    sent = json.loads(body)
    assert sent["state"] == "copy 7, row 0\nStory 1."
    assert shape.state == len(prompts.state(sent["state"]).tokens)
    assert [len(prompts.question(q).tokens) for q in parse_questions(sent["questions"]).values()] == list(shape.questions)
    assert measured("x", found, prompts).requests["race_all"][0].questions == shape.questions
