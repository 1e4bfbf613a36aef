"""Sizes of requests, and texts that have exactly these sizes for the served tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from flide_agent.bench import shapes
from flide_agent.bench.shapes import Shape
from flide_agent.bench.sources import Generated
from flide_agent.bench.texts import Texts
from flide_agent.messages import canonical_all
from flide_agent.prompts import Prompts
from flide_agent.questions import parse_questions


def test_built_in_sizes_have_the_means_of_table_2() -> None:
    found = shapes.built_in(64)
    for name, want in shapes.TABLE_2.items():
        rows = found.requests[name]
        assert np.mean([s.state for s in rows]) == pytest.approx(want.state, rel=0.05), name
        assert np.mean([s.tokens for s in rows]) == pytest.approx(want.stream, rel=0.05), name
        assert np.mean([len(s.questions) for s in rows]) == pytest.approx(want.questions, rel=0.1), name
    assert found == shapes.built_in(64)
    assert found.requests != shapes.built_in(64, seed=1).requests
    assert max(sum(steps) for steps in found.agents) > 20_000


def test_a_file_of_sizes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sizes.json"
    raw = {
        "few": [{"state": 200, "questions": [40, 50]}],
        "agents": [{"source": "x", "steps": [{"append": 300}, {"append": 90}]}],
        "agent_questions": [44],
    }
    path.write_text(json.dumps(raw))
    found = shapes.read(path)
    assert found.requests == {"few": (Shape(200, (40, 50)),)}
    assert found.agents == ((300, 90),)
    assert found.agent_questions == (44,)
    scaled = found.scaled(0.5)
    assert scaled.requests["few"] == (Shape(100, (40, 50)),)
    assert scaled.agents == ((150, 45),)
    assert "x 0.5" in scaled.source


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("{", "sizes.json"),
        ("[]", "an object"),
        ('{"a": [{"state": 1.5, "questions": [4]}]}', "a is no list"),
        ('{"a": [{"state": 10, "questions": []}]}', "without a question"),
        ('{"a": []}', "no request"),
        ('{"agents": [{"steps": [1]}]}', "agents must be"),
    ],
)
def test_a_file_that_holds_no_sizes_is_refused(tmp_path: Path, raw: str, says: str) -> None:
    path = tmp_path / "sizes.json"
    path.write_text(raw)
    with pytest.raises(ValueError, match=says):
        shapes.read(path)


def test_texts_have_exactly_their_tokens(prompts: Prompts, texts: Texts) -> None:
    for n in (*range(32, 64), 100, 777, 3000):
        assert len(prompts.state(texts.state(n, n)).tokens) == n
    for n in (*range(27, 60), 148):
        (question,) = parse_questions({"q": texts.question(n, n)}).values()
        assert len(prompts.question(question).tokens) == n
    for n in (24, 25, 93, 2000):
        for index in (1, 9, 10, 123):
            (message,) = canonical_all([texts.message(n, index, "tool", n)], ())
            assert len(prompts.message(index, message).tokens) == n


def test_a_text_too_short_to_write_is_refused(texts: Texts) -> None:
    with pytest.raises(ValueError, match="the shortest has"):
        texts.question(12, 0)
    with pytest.raises(ValueError, match="the shortest has"):
        texts.state(5, 0)


def test_no_two_texts_agree_over_64_tokens(prompts: Prompts, texts: Texts) -> None:
    """Whatever their numbers, or a request could start from another one's checkpoint. The control: the same number does."""
    numbers = [0, 1, len(texts.words), len(texts.words) ** 3, 20_000, 1_064_009]
    heads = [prompts.state(texts.state(300, n)).tokens[:64].tobytes() for n in numbers]
    assert len(set(heads)) == len(numbers)
    assert prompts.state(texts.state(300, 1)).tokens[:64].tobytes() == heads[1]


def test_copies_differ_and_rows_ask_again(texts: Texts) -> None:
    source = Generated([Shape(100, (40, 30)), Shape(90, (50,))], texts, 3)
    first, shape = source.body(0, 0)
    assert shape == Shape(100, (40, 30))
    assert source.body(0, 0)[0] == first
    assert len({source.body(row, copy)[0] for row in range(2) for copy in range(3)}) == 6
    again = msgspec.json.decode(source.asked_again(0, 0)[0])
    once = msgspec.json.decode(first)
    assert again["state"] == once["state"]
    assert again["questions"] != once["questions"]
