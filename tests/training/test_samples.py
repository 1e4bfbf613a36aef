"""Styles, questions and shards: what the model reads and what it is told is right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training import asks, phrases, service_desk
from training.asks import ask
from training.facts import Action, Episode
from training.packer import BRANCH_TOKENS, LONGEST, Packer
from training.shards import Data
from training.styles import FORMATS, Style
from training.truths import View

from flide_agent.default_model import DIRECTORY
from flide_agent.prompts import Prompts
from flide_agent.questions import Choice, Noul


def _action(
    command: str, output: str = "", code: int = 0, failed: bool | None = False, kind: str = "run", **more: object
) -> Action:
    return replace(Action("bash", {"command": command}, command, kind, output, code, failed, command.split()[0]), **more)


def _view(*actions: Action, shows_code: bool = False) -> View:
    return View("package", actions, [a.output for a in actions], [False] * len(actions), shows_code)


LS = _action("ls", "a.py\n", kind="look")
BAD = _action("python x.py", "Traceback (most recent call last):\nKeyError: 1", 1, True)
QUIET = _action("grep -q a b", "", 1, None, kind="search")
EDIT = _action("touch a.py", kind="edit", edited=("a.py",))
TESTED = _action("python t.py", "OK", tests="passed")


@pytest.mark.parametrize(
    ("name", "view", "truth"),
    [
        ("last_command_failed", _view(LS, BAD), True),
        ("last_command_failed", _view(BAD, LS), False),
        ("last_command_failed", _view(QUIET), None),
        ("last_command_failed", _view(QUIET, shows_code=True), True),
        ("traceback", _view(LS, BAD), True),
        ("traceback", _view(BAD, LS), False),
        ("any_file_edited", _view(EDIT, LS), True),
        ("any_file_edited", _view(LS, BAD), False),
        ("last_changed_file", _view(EDIT, LS), False),
        ("tests_passed", _view(TESTED, BAD), True),
        ("tests_passed", _view(LS), None),
        ("tests_run", _view(LS), False),
        ("repeated", _view(LS, LS), True),
        ("repeated", _view(LS, BAD, LS), False),
        ("looping", _view(LS, LS), False),
        ("looping", _view(LS, LS, LS), True),
        ("empty_output", _view(LS, EDIT), True),
        ("ever_failed", _view(BAD, LS), True),
        ("ever_failed", _view(QUIET, LS), None),
        ("two_failures", _view(BAD, BAD), True),
        ("two_failures", _view(LS, BAD), False),
    ],
)
def test_truths(name: str, view: View, truth: bool | None) -> None:
    for seed in range(30):
        one = ask(name, view, random.Random(seed))
        if truth is None:
            assert one is None
            continue
        assert one is not None
        assert isinstance(one.question, Noul)
        turned = one.question.instructions in asks.YES_NO[name].no
        assert turned != (one.question.instructions in asks.YES_NO[name].yes), "no wording may stand for both"
        assert one.right == (0 if truth != turned else 1)


def test_choices_are_right_in_every_order() -> None:
    places = set()
    for seed in range(60):
        rng = random.Random(seed)
        for name, view, right in (
            ("last_program", _view(LS, BAD), "python"),
            ("exception_type", _view(LS, BAD), "KeyError"),
            ("last_edited_file", _view(EDIT, LS), "a.py"),
        ):
            one = ask(name, view, rng)
            assert one is not None
            assert isinstance(one.question, Choice)
            assert len(one.question.options) == 4
            assert one.question.options[one.right].name == right
            places.add((name, one.right))
    assert len(places) == 12


def test_there_are_enough_questions_and_wordings() -> None:
    assert len(asks.NAMES) >= 10
    assert all(len(kind.yes) + len(kind.no) >= 7 for kind in asks.YES_NO.values())
    assert len(asks.YES_NO["last_command_failed"].yes) + len(asks.YES_NO["last_command_failed"].no) >= 20


@pytest.mark.parametrize("form", FORMATS)
def test_every_style_shows_all_actions_and_tells_the_status_when_it_says_so(form: str, runs: list[Episode]) -> None:
    for seed, episode in enumerate(runs):
        rendered = Style(random.Random(seed), episode, form).render()
        assert len(rendered.after) == len(episode.actions)
        for i, (action, after) in enumerate(zip(episode.actions, rendered.after, strict=True)):
            said, observed = rendered.messages[after - 2], rendered.messages[after - 1]
            assert said.role == "assistant"
            assert observed.role in ("user", "tool")
            shown = said.content + " ".join(c.arguments for c in said.tool_calls) + " ".join(c.name for c in said.tool_calls)
            assert action.command.split()[0] in shown or action.name in shown
            if rendered.outputs[i] is None:
                assert action.output[:200].strip() not in observed.content or len(action.output) < 40
            elif rendered.shows_code:
                assert str(action.code) in observed.content


def test_shards_hold_prompts_as_the_product_reads_them(runs: list[Episode], tmp_path: Path) -> None:
    prompts = Prompts.load(DIRECTORY)
    packer = Packer(prompts, random.Random(4))
    for episode in [*runs, *(service_desk.episode(s) for s in range(6))]:
        packer.add(episode)
    packer.shard.write(tmp_path / "train-0.npz")
    data = Data.load([tmp_path / "train-0.npz"])
    assert len(data.trunks) == len(packer.shard.trunks) == len(data.of) > 8
    for trunk, rows in zip(data.trunks, data.of, strict=True):
        assert trunk[: len(prompts.frame_open)].tolist() == prompts.frame_open.tolist()
        assert len(trunk) <= LONGEST
        assert rows[:, 0].max() == len(trunk), "a trunk ends where its last question forks"
        for _fork, question, right, _kind in rows.tolist():
            tokens = data.questions[question]
            assert tokens[-len(prompts.frame_close) :].tolist() == prompts.frame_close.tolist()
            assert len(tokens) <= BRANCH_TOKENS
            assert data.labels[question][right] >= 0
    assert any(rows[:, 0].min() < rows[:, 0].max() for rows in data.of), "several prefixes of one history"


def test_answers_are_balanced_for_each_source(runs: list[Episode]) -> None:
    packer = Packer(Prompts.load(DIRECTORY), random.Random(4))
    for episode in runs * 3:
        packer.add(episode)
    for (name, source), counts in packer.counts.items():
        if name in asks.YES_NO and sum(counts.values()) >= 20:
            true = sum(n for group, n in counts.items() if group.startswith("True"))
            assert abs(true - (sum(counts.values()) - true)) <= 4, (name, source, dict(counts))


def test_shards_are_the_same_for_a_seed(runs: list[Episode]) -> None:
    made = []
    for seed in (1, 1, 2):
        packer = Packer(Prompts.load(DIRECTORY), random.Random(seed))
        for episode in runs[:3]:
            packer.add(episode)
        made.append(np.concatenate(packer.shard.trunks))
    assert np.array_equal(made[0], made[1])
    assert not np.array_equal(made[0], made[2])


@pytest.mark.parametrize(
    "made",
    [
        phrases.missing,
        phrases.edited,
        phrases.created,
        phrases.not_in_file,
        phrases.bad_syntax,
        phrases.no_record,
        phrases.refused,
    ],
)
def test_phrases_are_many_and_can_be_filled(made: Callable[[random.Random], str]) -> None:
    said = {made(random.Random(seed)).format(path="a.py", what="x", error="bad", x="order 3") for seed in range(200)}
    assert len(said) > 30
    assert not any("{" in text.replace('{"success"', "") for text in said)


def test_what_was_done_before_a_partial_history_stays_open() -> None:
    for name, view, truth in (
        ("any_file_edited", _view(LS), None),
        ("any_file_edited", _view(EDIT, LS), True),
        ("ever_failed", _view(LS), None),
        ("last_command_failed", _view(LS), False),
        ("step_count", _view(LS), None),
    ):
        one = ask(name, replace(view, partial=True), random.Random(0))
        assert (one is None) == (truth is None), name


def test_prompts_may_hold_a_manual_and_another_run(runs: list[Episode]) -> None:
    found = [Style(random.Random(seed), runs[0], example=runs[1]).render() for seed in range(40)]
    shown = [any(runs[1].task[:40] in m.content for m in r.messages) for r in found]
    assert {True, False} == set(shown)
    lengths = [len(r.messages[0].content) for r in found if r.messages[0].role == "system"]
    assert max(lengths) > 3 * min(lengths)
    for rendered in found:
        assert rendered.messages[rendered.after[0] - 2].role == "assistant"
