"""Questions as asked and answers as sent: limits, faults with their places, the reference formulas."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from flide_agent.messages import InputErrors
from flide_agent.questions import Choice, Noul, Option, Score, answer, labels_of, parse_questions


def one(question: Any) -> Any:
    return parse_questions({"q": question})["q"]


def faults(raw: Any) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(InputErrors) as caught:
        parse_questions(raw)
    assert all(item["loc"][:2] == ["body", "questions"] and item["msg"] for item in caught.value.details())
    return [(e.loc[2:], e.type) for e in caught.value.errors]


def test_questions_are_read() -> None:
    choice = {"type": "choice", "instructions": "Which?", "criteria": {"b": "x", "a ": None, "1": {"é": [1]}, "d": ["y"]}}
    options = (Option("b", "x"), Option("a "), Option("1", '{"é": [1]}'), Option("d", '["y"]'))
    assert one(choice) == Choice("Which?", options)
    assert one({"type": "score", "criteria": ["low", {"a": 1}]}) == Score("", ("low", '{"a": 1}'), ("low", {"a": 1}))
    assert one({"type": "noul", "instructions": {"ask": "é"}, "criteria": None}) == Noul('{"ask": "é"}')
    assert one({"type": "noul", "criteria": {"true": "t"}}) == Noul("", "t")
    assert one({"type": "noul", "instructions": None, "criteria": {"false": ["f"], "true": None}}) == Noul("", "", '["f"]')
    ids = ["a b", "é.😀", "한글", " "]
    assert list(parse_questions({k: {"type": "noul", "instructions": "x"} for k in ids})) == ids


@pytest.mark.parametrize("n", [1, 2, 26, 27, 255])
def test_option_counts(n: int) -> None:
    assert labels_of(one({"type": "choice", "criteria": {f"o{i}": None for i in range(n)}})) == n


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (None, ((), "missing")),
        ([], ((), "dict_type")),
        ({}, ((), "too_short")),
        ({"": {"type": "noul", "instructions": "x"}}, (("",), "string_too_short")),
        ({"q\ud800": {"type": "noul", "instructions": "x"}}, (("q\ufffd",), "string_unicode")),
        ({"q": None}, (("q",), "dict_type")),
        ({"q": {"instructions": "x"}}, (("q", "type"), "missing")),
        ({"q": {"type": "boolean", "instructions": "x"}}, (("q", "type"), "union_tag_invalid")),
        ({"q": {"type": ["noul"]}}, (("q", "type"), "union_tag_invalid")),
        ({"q": {"type": "noul", "instructions": "x", "critera": {}}}, (("q", "noul", "critera"), "extra_forbidden")),
        ({"q": {"type": "noul", "instructions": 5}}, (("q", "noul", "instructions"), "string_type")),
        ({"q": {"type": "noul"}}, (("q", "noul", "instructions"), "missing")),
        ({"q": {"type": "noul", "instructions": " ", "criteria": {"true": None}}}, (("q", "noul", "instructions"), "missing")),
        ({"q": {"type": "noul", "instructions": "x", "criteria": []}}, (("q", "noul", "criteria"), "dict_type")),
        (
            {"q": {"type": "noul", "instructions": "x", "criteria": {"True": "t"}}},
            (("q", "noul", "criteria", "True"), "extra_forbidden"),
        ),
        (
            {"q": {"type": "noul", "instructions": "x", "criteria": {"true": 1}}},
            (("q", "noul", "criteria", "true"), "string_type"),
        ),
        ({"q": {"type": "choice", "instructions": "x"}}, (("q", "choice", "criteria"), "missing")),
        ({"q": {"type": "choice", "criteria": ["a", "b"]}}, (("q", "choice", "criteria"), "dict_type")),
        ({"q": {"type": "choice", "criteria": {}}}, (("q", "choice", "criteria"), "too_short")),
        ({"q": {"type": "choice", "criteria": {str(i): None for i in range(256)}}}, (("q", "choice", "criteria"), "too_long")),
        ({"q": {"type": "choice", "criteria": {"a": 1}}}, (("q", "choice", "criteria", "a"), "string_type")),
        ({"q": {"type": "choice", "criteria": {" ": "x"}}}, (("q", "choice", "criteria", " "), "string_too_short")),
        ({"q": {"type": "choice", "criteria": {"a\udc00": "x"}}}, (("q", "choice", "criteria", "a\ufffd"), "string_unicode")),
        ({"q": {"type": "score", "instructions": "x"}}, (("q", "score", "criteria"), "missing")),
        ({"q": {"type": "score", "criteria": {"0": "a"}}}, (("q", "score", "criteria"), "list_type")),
        ({"q": {"type": "score", "criteria": []}}, (("q", "score", "criteria"), "too_short")),
        ({"q": {"type": "score", "criteria": ["x"] * 11}}, (("q", "score", "criteria"), "too_long")),
        ({"q": {"type": "score", "criteria": ["x", None]}}, (("q", "score", "criteria", 1), "string_type")),
        ({"q": {"type": "score", "criteria": ["x", 2]}}, (("q", "score", "criteria", 1), "string_type")),
    ],
)
def test_faults(raw: Any, fault: tuple[tuple[str | int, ...], str]) -> None:
    assert faults(raw) == [fault]


@pytest.mark.parametrize(
    ("criteria", "collides"),
    [
        ({"a": None, "a ": None}, True),
        ({"a b": None, "a\n b": None}, True),
        ({"\u00e9": None, "e\u0301": None}, True),
        ({"a": "b - c", "a - b": "c"}, True),
        ({"a": None, "a ": "described"}, False),
        ({"a": None, "A": None}, False),
        ({"a": "same", "b": "same"}, False),
    ],
)
def test_options_that_read_the_same_collide(criteria: dict[str, Any], collides: bool) -> None:
    question = {"q": {"type": "choice", "criteria": criteria}}
    if collides:
        assert faults(question) == [(("q", "choice", "criteria", list(criteria)[1]), "options_collide")]
    else:
        assert labels_of(parse_questions(question)["q"]) == 2


def test_every_fault_is_told_at_once() -> None:
    raw = {
        "a": {"type": "noul", "instructions": "fine"},
        "b": {"type": "score", "criteria": {"0": "x"}, "extra": 1},
        "c": {"type": "choice", "instructions": 3, "criteria": {"x": 1, "y": 2}},
    }
    assert faults(raw) == [
        (("b", "score", "extra"), "extra_forbidden"),
        (("b", "score", "criteria"), "list_type"),
        (("c", "choice", "instructions"), "string_type"),
        (("c", "choice", "criteria", "x"), "string_type"),
        (("c", "choice", "criteria", "y"), "string_type"),
    ]


def test_noul_answer() -> None:
    assert answer(Noul("x"), np.array([0.3, 0.1])) == {"type": "noul", "noul": pytest.approx(0.75)}


def test_choice_answer() -> None:
    question = Choice("", (Option("b"), Option("é "), Option("c")))
    got = answer(question, [0.2, 0.7, 0.1])
    assert list(got) == ["type", "choice", "probabilities", "confidence"]
    assert got["choice"] == "é "
    assert got["probabilities"] == pytest.approx({"b": 0.2, "é ": 0.7, "c": 0.1})
    assert got["confidence"] == pytest.approx((0.7 - 1 / 3) / (2 / 3))
    nothing = answer(question, [0, 0, 0])
    assert nothing["confidence"] == 0.0
    assert list(nothing["probabilities"].values()) == [1 / 3] * 3
    assert answer(Choice("", (Option("b"),)), [0.4]) == {
        "type": "choice",
        "choice": "b",
        "probabilities": {"b": 1.0},
        "confidence": 1.0,
    }


def test_score_answer() -> None:
    question = Score("", ("low", '{"a": 1}', "high"), ("low", {"a": 1}, "high"))
    got = answer(question, [0.1, 0.3, 0.6])
    assert got["score"] == pytest.approx(1.5)
    assert got["legend"] == {"0": "low", "1": {"a": 1}, "2": "high"}
    assert got["probabilities"] == pytest.approx({"0": 0.1, "1": 0.3, "2": 0.6})
    # D = (1 + 0 + 1) / 3; distance from level 2 = 0.1 * 2 + 0.3
    assert got["confidence"] == pytest.approx(1 - 0.5 / (2 / 3))
    assert answer(question, [0.5, 0.0, 0.5])["confidence"] == 0.0
    assert answer(Score("", ("x",), ("x",)), [0.2])["confidence"] == 1.0


def test_nothing_is_rounded_and_numbers_are_plain_json() -> None:
    p = np.array([1 / 3, 2 / 3], dtype=np.float32)
    got = answer(Choice("", (Option("a"), Option("b"))), p)
    assert got["probabilities"]["a"] == float(p[0]) / (float(p[0]) + float(p[1]))
    assert json.loads(json.dumps(got, allow_nan=False)) == got


@pytest.mark.parametrize("p", [[0.5], [0.5, 0.5, 0.0], [np.nan, 1], [np.inf, 1], [-0.1, 1.1]])
def test_probabilities_that_are_none(p: list[float]) -> None:
    with pytest.raises(ValueError, match="2 finite probabilities"):
        answer(Noul("x"), p)


def test_a_legend_can_go_back_as_utf8() -> None:
    question = one({"type": "score", "criteria": [{"a\ud800": ["\ud800"]}, "x\udc00"]})
    assert json.dumps(answer(question, [1, 1]), ensure_ascii=False).encode()
