"""Options of a choice in an order of the prompt's own, for models whose card says so."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flide_agent.card import Card
from flide_agent.messages import InputError, well_formed
from flide_agent.prompts import Prompts, wording
from flide_agent.questions import Choice, Noul, Option, Question, Score, answer_of, option_text

ASKED = Card(1, {}, {})
SORTED = Card(1, {}, {}, options="sorted")
TEXT = st.text(st.characters(), max_size=6)
OPTIONS = st.lists(st.builds(Option, TEXT, TEXT), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def both(directory: Path) -> tuple[Prompts, Prompts]:
    return Prompts.load(directory, ASKED), Prompts.load(directory, SORTED)


@given(OPTIONS, st.randoms())
def test_the_order_is_that_of_what_the_prompt_shows(options: list[Option], random: Random) -> None:
    shown = [well_formed(option_text(option)) for option in options]
    every = range(len(options))
    order = list(wording.sorted_order(options) or every)
    assert order == sorted(every, key=lambda i: (shown[i], i)), "equal texts as asked"
    again = random.sample(shown, len(shown))
    named = [Option(text or "-") for text in again]
    first, second = (
        [option_text(some[i]) for i in wording.sorted_order(some) or every] for some in (named, list(reversed(named)))
    )
    assert first == second


def test_what_is_sorted(both: tuple[Prompts, Prompts]) -> None:
    asked, by_text = both
    a, b, c = Option("b", "x"), Option("b"), Option("A", "z")
    found = by_text.question(Choice("which?", (a, b, c)))
    assert found.order == (2, 1, 0)
    same = asked.question(Choice("which?", (c, b, a)))
    assert found.tokens.tolist() == same.tokens.tolist()
    assert (found.labels, found.escaped, same.order) == (same.labels, same.escaped, ())
    assert by_text.question(Choice("which?", (c, b, a))).order == ()
    many = Choice("", tuple(Option(f"{i:03}") for i in reversed(range(40))))
    assert by_text.question(many).order == tuple(reversed(range(40)))
    assert by_text.question(many).labels == asked.question(many).labels, "labels are given in the order of the prompt"
    with pytest.raises(InputError, match="options, not"):
        by_text.question(Choice("", tuple(Option(str(i)) for i in range(256))))


@pytest.mark.parametrize("question", [Score("s", ("z", "a", "m"), ("z", "a", "m")), Noul("n", "z", "a"), Noul("n")])
def test_levels_and_sides_stand_as_asked(both: tuple[Prompts, Prompts], question: Question) -> None:
    asked, by_text = (prompts.question(question) for prompts in both)
    assert asked.tokens.tolist() == by_text.tokens.tolist()
    assert (asked.labels, asked.order) == (by_text.labels, by_text.order)


@given(OPTIONS)
def test_prompts_of_other_models_are_as_they_were(embedded: Path, options: list[Option]) -> None:
    asked, bare = _loaded(embedded)
    question = Choice("which?", tuple(options))
    text = wording.question_part(question, [spelling for spelling, _ in bare._labels.of(question)])
    for prompts in (asked, bare):
        branch = prompts.question(question)
        assert branch.tokens.tolist() == [*bare._encoder(text).tolist(), *bare.frame_close.tolist()]
        assert branch.order == ()
        assert prompts.format == "flide-1"


_known: list[Prompts] = []


def _loaded(directory: Path) -> list[Prompts]:
    if not _known:
        _known.extend([Prompts.load(directory, ASKED), Prompts.load(directory)])
    return _known


def test_the_format_names_the_order_and_the_digest_does_not(both: tuple[Prompts, Prompts]) -> None:
    """Recordings hold what questions were asked; checkpoints hold trunks alone."""
    asked, by_text = both
    assert (asked.format, by_text.format) == ("flide-1", "flide-1-sorted")
    assert asked.digest == by_text.digest


def test_answers_are_read_back_in_the_order_asked() -> None:
    question = Choice("", (Option("b"), Option("a"), Option("c")))
    got = answer_of(question, np.array([0.5, 0.3, 0.2]), (1, 0, 2))
    assert list(got["probabilities"].items()) == [("b", 0.3), ("a", 0.5), ("c", 0.2)]
    assert (got["choice"], got["confidence"]) == ("a", 0.25)
    assert answer_of(question, np.array([0.5, 0.3, 0.2]))["choice"] == "b"
    tie = np.array([0.4, 0.4, 0.2])
    assert (
        answer_of(question, tie, (1, 0, 2))["choice"]
        == answer_of(Choice("", question.options[::-1]), tie, (1, 2, 0))["choice"]
        == "a"
    )
