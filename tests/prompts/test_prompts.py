"""Trunks and branches: token for token what the chat template gives, labels, saves, reuse, the cache."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seam_cases
from whole_prompt import Oracle

from flide_agent.messages import InputError, Message
from flide_agent.prompts import Prompts, encoder, wording
from flide_agent.prompts import prompts as prompts_module
from flide_agent.prompts.trunk import history_saves, state_saves
from flide_agent.questions import Choice, Noul, Option, Question, Score

QUESTIONS: tuple[Question, ...] = (
    Noul("Did the last command fail?"),
    Noul("", "it did", ""),
    Choice("Which tool next?", (Option("bash", "run a command"), Option("submit"))),
    Choice("Which?", tuple(Option(f"file {i}") for i in range(255))),
    Score("How near is the end?", ("far", '{"near": "é"}'), ("far", {"near": "é"})),
)
HISTORY = [
    Message("system", "You are an agent.\nBe brief."),
    Message("user", "Fix the bug in `a.py`.\n\n  Thanks!\n"),
    Message("assistant", "Let me look. 😀"),
    Message("tool", "total 0\n[1] x\n", "bash", (), "c1"),
]


@pytest.fixture(scope="session")
def chat(qwen35: Path, directory: Path) -> Any:
    """The tokenizer as transformers loads it, with the real chat template."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    tokenizer.chat_template = (qwen35 / "chat_template.jinja").read_text("utf-8")
    return tokenizer


@pytest.mark.parametrize(
    "state",
    [
        "The build failed.",
        "  \n\tlead",
        "ends in lines\n\n",
        "",
        " \n",
        "é 中文 😀",
        "'s",
        "\u0301x",
        {"a": [1, "é"]},
        [],
        ["x"],
    ],
)
def test_a_prompt_is_what_the_chat_template_gives(prompts: Prompts, chat: Any, state: Any) -> None:
    for question in QUESTIONS:
        text = state if isinstance(state, str) else wording.dumps(state, ())
        part = wording.question_part(question, [spelling for spelling, _ in prompts._labels.of(question)])
        turn = {"role": "user", "content": text + "\n\n" + part}
        whole = chat.apply_chat_template([turn], add_generation_prompt=True, enable_thinking=False, tokenize=False)
        expected = chat(whole, add_special_tokens=False)["input_ids"]
        trunk, branch = prompts.state(state), prompts.question(question)
        assert [*trunk.tokens.tolist(), *branch.tokens.tolist()] == expected
        assert trunk.tokens.dtype == branch.tokens.dtype == np.int32


def test_a_transcript_is_what_the_chat_template_gives(prompts: Prompts, chat: Any) -> None:
    text = "".join(wording.message_block(i, m) for i, m in enumerate(HISTORY, 1))
    turn = {"role": "user", "content": text + wording.question_part(QUESTIONS[0], ["yes", "no"])}
    whole = chat.apply_chat_template([turn], add_generation_prompt=True, enable_thinking=False, tokenize=False)
    expected = chat(whole, add_special_tokens=False)["input_ids"]
    branch = prompts.question(QUESTIONS[0])
    assert [*prompts.history((), HISTORY).tokens.tolist(), *branch.tokens.tolist()] == expected
    raw = [{"role": m.role, "content": m.content, "name": m.name, "tool_call_id": m.tool_call_id} for m in HISTORY]
    assert [*prompts.state(raw).tokens.tolist(), *branch.tokens.tolist()] == expected


def test_labels_are_single_tokens_in_the_answer_position(prompts: Prompts, chat: Any) -> None:
    spelled = {
        **{label: prompts._labels.letters[i][1] for i, label in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ")},
        **{label: prompts._labels.numbers[i][1] for i, label in enumerate("0123456789")},
        **dict(zip(("yes", "no"), prompts.question(QUESTIONS[0]).labels, strict=True)),
        **dict(prompts._labels.pairs),
    }
    assert len(prompts._labels.pairs) == 255 == prompts.max_options
    assert len(set(spelled.values())) == len(spelled) == 26 + 10 + 2 + 255
    whole = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    before = chat(whole, add_special_tokens=False)["input_ids"]
    for label, token in spelled.items():
        assert chat(whole + label, add_special_tokens=False)["input_ids"] == [*before, token]


def test_the_labels_that_are_shown_are_those_that_are_read(prompts: Prompts, chat: Any) -> None:
    for n, shown in ((26, "Z: o25"), (27, "AA: o0"), (255, "AA: o0")):
        question = Choice("", tuple(Option(f"o{i}") for i in range(n)))
        branch = prompts.question(question)
        text = chat.decode(branch.tokens.tolist())
        assert f"{shown}\n" in text
        lines = text.split("\n")[:n]
        assert lines == [f"{chat.decode([label])}: o{i}" for i, label in enumerate(branch.labels)]
    assert prompts.question(QUESTIONS[4]).labels == tuple(token for _, token in prompts._labels.numbers[:2])


def test_history_takes_what_it_can_from_a_base(prompts: Prompts, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{"name": "bash"}]
    changed = [*HISTORY[:2], Message("assistant", "<think>"), *HISTORY[3:], Message("user", "more")]
    base = prompts.history(tools, [*HISTORY[:3], Message("user", "<|im_end|>")])
    assert base.escaped_blocks == (4,)
    whole = prompts.history(tools, changed)
    rendered: list[int] = []
    block = wording.message_block
    monkeypatch.setattr(wording, "message_block", lambda i, m: rendered.append(i) or block(i, m))
    monkeypatch.setattr(wording, "tools_block", None)
    grown = prompts.history(tools, changed, base=base, keep=2)
    assert rendered == [3, 4, 5]
    assert grown.tokens.tolist() == whole.tokens.tolist()
    assert (grown.ends, grown.saves, grown.escaped_blocks) == (whole.ends, whole.saves, (3,))
    shorter = prompts.history(tools, changed[:1], base=base, keep=1)
    assert shorter.tokens.tolist() == whole.tokens[: whole.ends[2]].tolist()
    assert not shorter.escaped
    with pytest.raises(ValueError, match="5 messages cannot be kept"):
        prompts.history(tools, changed, base=base, keep=5)


def test_ends_of_blocks(prompts: Prompts) -> None:
    trunk = prompts.history([{}], HISTORY)
    parts = [prompts.frame_open, prompts.tools([{}]).tokens, *(prompts.message(i, m).tokens for i, m in enumerate(HISTORY, 1))]
    assert trunk.ends == tuple(itertools.accumulate(len(p) for p in parts))
    assert trunk.tokens.tolist() == np.concatenate(parts).tolist()
    assert prompts.history((), []).tokens.tolist() == prompts.frame_open.tolist()


def test_saves_of_histories(prompts: Prompts) -> None:
    assert history_saves(63, 0) == ()
    assert history_saves(64, 0) == (64,)
    assert history_saves(200, 64) == (64, 192)
    assert history_saves(200, 193) == (192,)
    assert history_saves(200, 63) == (192,)
    long = "word " * 100
    system = Message("system", long)
    trunk = prompts.history([{"a": long}], [system, Message("developer", long), Message("user", long), system])
    prefix = trunk.ends[3]
    assert trunk.saves == (prefix // 64 * 64, len(trunk.tokens) // 64 * 64)
    assert (
        prompts.history([{"a": long}], [Message("user", long)]).saves[0]
        == prompts.history([{"a": long}], []).ends[1] // 64 * 64
    )
    assert len(prompts.history((), [Message("user", long)]).saves) == 1


def test_saves_of_states_stay_clear_of_growth(prompts: Prompts) -> None:
    assert [state_saves(n) for n in (0, 8, 71, 72, 135, 136)] == [(), (), (), (64,), (64,), (128,)]
    text = Path(wording.__file__).read_text("utf-8") + "中文 é 😀 " * 30
    changed = []
    for at in range(400, len(text) - 80, 37):
        short, long = prompts.state(text[:at]).tokens, prompts.state(text[: at + 60]).tokens
        n = min(len(short), len(long))
        same = int(np.argmin(short[:n] == long[:n])) if (short[:n] != long[:n]).any() else n
        changed.append(len(short) - same)
        assert all(p <= same for p in state_saves(len(short)))
    assert max(changed) <= 8
    assert max(changed) > 1, "a control: growth does change tokens"


def test_question_parts_are_cached_within_bounds(prompts: Prompts, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Prompts.load(directory)
    first = fresh.question(Noul("one"))
    assert fresh.question(Noul("one")) is first
    with pytest.raises(ValueError, match="read-only"):
        first.tokens[0] = 1
    monkeypatch.setattr(prompts_module, "_CACHE_BRANCHES", 3)
    for name in ("two", "one", "three", "four"):
        fresh.question(Noul(name))
    assert len(fresh._branches) == 3
    assert fresh.question(Noul("one")) is first, "used last, so it stays"
    monkeypatch.setattr(prompts_module, "_CACHE_CHARACTERS", 300)
    for i in range(20):
        fresh.question(Noul(f"{i}" * 40))
    assert sum(len(text) for _, _, text in fresh._branches) == fresh._cached_characters <= 300
    big = Noul("x" * 1000)
    assert fresh.question(big).tokens.tolist() == fresh.question(big).tokens.tolist()
    assert fresh._cached_characters <= 300


def test_questions_asked_together_have_the_tokens_of_each_alone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together = Prompts.load(directory), Prompts.load(directory)
    together._encoder._threads = 4
    rng = random.Random(11)
    asked = [seam_cases.question(rng) for _ in range(60)] + [Noul("word " * 3000), Noul("and a short one")]
    asked += asked[:5]
    groups: list[int] = []
    encode = together._encoder._encode
    monkeypatch.setattr(together._encoder, "_encode", lambda texts: groups.append(len(texts)) or encode(texts))
    known = together.question(asked[7])
    found = together.questions(asked)
    assert len(groups) < 20, "not one call for each"
    for question, branch in zip(asked, found, strict=True):
        one = alone.question(question)
        assert (branch.tokens.tolist(), branch.labels, branch.escaped) == (one.tokens.tolist(), one.labels, one.escaped)
    assert found[7] is known
    assert all(a is b for a, b in zip(found[-5:], found[:5], strict=True))
    assert together.questions(()) == []
    groups.clear()
    new = [Noul(f"{'word ' * 150} number {i}") for i in range(40)]
    finish = together.start(new)
    waited = time.monotonic()
    while sum(groups) < 25 and time.monotonic() < waited + 20:
        time.sleep(0.001)
    assert 25 <= sum(groups) < 40, "all but the first group, before anybody asks for it"
    assert [b.tokens.tolist() for b in finish()] == [alone.question(q).tokens.tolist() for q in new]
    together.limit(500)
    with pytest.raises(encoder.TextTooLong):
        together.questions([Noul("short too"), Noul("tree " * 700)])


def test_states_that_are_none(prompts: Prompts) -> None:
    with pytest.raises(InputError, match="state must be"):
        prompts.state(None)


def long_text(seed: int = 5) -> str:
    """About 300,000 characters of code and adversarial texts, with thousands of seams."""
    rng = random.Random(seed)
    source = Path(wording.__file__).read_text("utf-8")
    return wording.well_formed("".join(seam_cases.text(rng) + "\n" + source[i % 900 :][:700] for i in range(400)))


def test_long_texts_go_through_threads_with_equal_ids(directory: Path, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts.load(directory)
    prompts._encoder._threads = 4
    text = long_text()
    assert len(text) > 2 * encoder._PIECE
    sizes: list[int] = []
    encode = prompts._encoder._encode
    monkeypatch.setattr(prompts._encoder, "_encode", lambda texts: sizes.extend(map(len, texts)) or encode(texts))
    whole = oracle.encode(text)
    assert prompts._encoder(text).tolist() == whole
    assert len(sizes) > 2
    assert prompts.state(text).tokens.tolist() == oracle.trunk(text.lstrip() + "\n\n")
    assert prompts.message(1, Message("tool", text)).tokens.tolist() == oracle.encode(
        wording.message_block(1, Message("tool", text))
    )
    # Many small pieces, so that every kind of line end and line start is a seam once.
    monkeypatch.setattr(encoder, "_PIECE", 1)
    pieces = encoder.cut(text, 1)
    assert len(pieces) > 3000
    assert "".join(pieces) == text
    assert [t for tokens in encode(pieces) for t in tokens.tolist()] == whole
    pieces = encoder.cut(text, 1, words=True)
    assert len(pieces) > 6000
    assert "".join(pieces) == text
    assert [t for tokens in encode(pieces) for t in tokens.tolist()] == whole
    # Control: cut between a newline and anything, or anywhere, and the ids differ.
    for rule in (r"\n", r"(?<=\w)(?=\w)"):
        monkeypatch.setattr(encoder, "_CUT", re.compile(rule))
        assert [t for tokens in encode(encoder.cut(text, 1)) for t in tokens.tolist()] != whole


@pytest.mark.bars
def test_bar_a_million_tokens_in_pieces(directory: Path, oracle: Oracle, bar: Callable[..., None]) -> None:
    """Texts cut at every seam against the plain tokenizer's ids, a million tokens of them; between words too."""
    encode, seen, wrong, seed = Prompts.load(directory)._encoder._encode, 0, 0, 100
    while seen < 1_000_000:
        text = long_text(seed)
        whole = oracle.encode(text)
        for words in (False, True):
            wrong += [t for tokens in encode(encoder.cut(text, 1, words)) for t in tokens.tolist()] != whole
        seen, seed = seen + len(whole), seed + 1
    name = "qwen35" if "qwen35" in directory.name else "embedded"
    bar(f"texts_that_differ_in_pieces_{name}", wrong, limit=0, tokens=seen, texts=seed - 100)


def test_a_text_without_seams_is_one_piece(directory: Path, oracle: Oracle) -> None:
    prompts = Prompts.load(directory)
    prompts._encoder._threads = 4
    for text in ("ab, " * 40_000, "one line of words " * 2_000):
        assert prompts._encoder(text).tolist() == oracle.encode(text)
    assert len(encoder.cut("ab, " * 40_000, 10, words=True)) == 1


@pytest.mark.bars
def test_bar_tokenisation_of_a_step(prompts: Prompts, directory: Path, bar: Callable[..., None]) -> None:
    """One message of about 300 tokens appended to a 12k-token history, five questions from the cache: best of 200, milliseconds."""
    source = Path(wording.__file__).read_text("utf-8")
    messages = [Message("tool", source[(i * 97) % 3000 :][:1200]) for i in range(45)]
    base = prompts.history((), messages)
    best = float("inf")
    length = 0
    for i in range(200):
        new = Message("tool", source[3000 + i : 4200 + i])
        for question in QUESTIONS:
            prompts.question(question)
        start = time.perf_counter()
        trunk = prompts.history((), [*messages, new], base=base, keep=len(messages))
        for question in QUESTIONS[:3] + QUESTIONS[4:] + (Noul("Is it stuck?"),):
            prompts.question(question)
        best = min(best, time.perf_counter() - start)
        length = len(trunk.tokens) - len(base.tokens)
    name = "qwen35" if "qwen35" in directory.name else "embedded"
    bar(f"step_tokenisation_ms_{name}", 1e3 * best, limit=1.0, history_tokens=len(base.tokens), new_tokens=length)
