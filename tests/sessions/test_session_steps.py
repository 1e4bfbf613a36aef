"""What a step is taken for, which m it gets, and what a restart leaves."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from session_house import House

from flide_agent.errors import Conflict, HeadConflict, InvalidRequest, NotFound
from flide_agent.messages import Message, ToolCall
from flide_agent.prompts import Prompts

GRID = 64
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


def text(words: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(
        rng.choice(["the", "file", "error", "line", "test", "naïve", "0x1f", "\n", "ls -la", "done"]) for _ in range(words)
    )


def history(n: int, words: int = 60, seed: int = 0) -> list[Message]:
    out = [Message("system", text(words, seed))]
    for i in range(1, n):
        if i % 2:
            out.append(Message("assistant", text(words, seed + i), tool_calls=(ToolCall(f"c{i}", "run", '{"a": 1}'),)))
        else:
            out.append(Message("tool", text(words, seed + i), tool_call_id=f"c{i - 1}"))
    return out


def test_append_only_steps_resume_at_the_last_grid_position_of_the_common_prefix(house: House, prompts: Prompts) -> None:
    messages = history(24)
    previous = None
    for n in range(2, 25, 2):
        step, m = house.step("s", messages=messages[:n], tools=TOOLS)
        trunk = prompts.history(TOOLS, messages[:n])
        assert np.array_equal(step.tokens, trunk.tokens)
        assert step.ends == trunk.ends
        assert set(trunk.saves) <= set(step.saves)
        assert step.messages == n
        if previous is None:
            assert (step.reason, m, step.common) == ("new", 0, 0)
        else:
            assert step.reason == "append"
            assert step.common == len(previous)
            assert m == len(previous) // GRID * GRID
        previous = step.tokens


def test_append_after_head_is_the_same_step(house: House) -> None:
    messages = history(10)
    whole, _ = house.step("whole", messages=messages, tools=TOOLS)
    info = house.sessions.open("t", "parts", tools=TOOLS)
    head = info.head
    for message in messages:
        step, _ = house.step("parts", append=[message], head=head)
        head = step.head
    assert head == whole.head
    assert np.array_equal(step.tokens, whole.tokens)
    assert step.number == 10


def test_only_new_messages_are_tokenised(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = history(12)
    house.step("s", messages=messages[:10])
    calls: list[int] = []
    real = house.prompts.message
    monkeypatch.setattr(house.prompts, "message", lambda i, m: calls.append(i) or real(i, m))  # type: ignore[func-returns-value]
    house.step("s", messages=messages[:11])
    assert calls == [11]
    edited = [*messages[:4], Message("user", "other"), *messages[5:11]]
    house.step("s", messages=edited)
    assert calls == [11, 5]
    house.step("s", messages=messages[:12])
    assert calls == [11, 5, 12]


def test_reasons(house: House) -> None:
    messages = history(12)
    first, _ = house.step("s", messages=messages[:4])
    second, _ = house.step("s", messages=messages[:6])
    third, _ = house.step("s", append=messages[6:8], head=second.head)
    assert [s.reason for s in (first, second, third)] == ["new", "append", "append"]
    again, m = house.step("s", append=messages[6:8], head=second.head)
    assert (again.reason, again.repeat, again.head, again.number) == ("repeat", True, third.head, third.number)
    assert m == len(third.tokens) // GRID * GRID
    forked, m = house.step("s", append=[Message("user", text(80, 99))], head=first.head)
    assert forked.reason == "fork"
    assert len(first.tokens) <= forked.common < len(first.tokens) + 10  # the next heading begins alike
    assert m == len(first.tokens) // GRID * GRID
    assert house.sessions.get("t", "s").head == forked.head
    # the older heads are still there
    back, m = house.step("s", append=messages[8:9], head=third.head)
    assert back.reason == "fork"
    assert m == len(third.tokens) // GRID * GRID
    short, m = house.step("s", messages=messages[:7])
    assert short.reason == "truncate"
    assert m == len(short.tokens) // GRID * GRID  # the boundary before the third step's last message
    edited, m = house.step("s", messages=[*messages[:5], Message("tool", "x"), *messages[6:9]])
    assert edited.reason == "edit"
    assert m == edited.ends[5] // GRID * GRID  # likewise before the second's
    tools, m = house.step("s", messages=messages[:9], tools=TOOLS)
    assert (tools.reason, m) == ("tools", 0)
    assert house.step("s", append=messages[9:10])[0].reason == "append"
    with pytest.raises(HeadConflict) as conflict:
        house.sessions.begin("t", "s", append=messages[:1], head="ab" * 16)
    assert conflict.value.head == house.sessions.get("t", "s").head
    with pytest.raises(HeadConflict) as conflict:
        house.sessions.begin("t", "nobody", append=messages[:1], head=first.head)
    assert conflict.value.head is None
    for what in ({}, {"messages": [], "append": []}, {"messages": [], "head": first.head}):
        with pytest.raises(InvalidRequest):
            house.sessions.begin("t", "s", **what)  # type: ignore[arg-type]


def test_append_with_other_tools_is_the_same_history_under_them(house: House, prompts: Prompts) -> None:
    messages = history(8)
    first, _ = house.step("s", messages=messages[:6])
    step, _ = house.step("s", append=messages[6:], head=first.head, tools=TOOLS)
    assert np.array_equal(step.tokens, prompts.history(TOOLS, messages).tokens)
    assert step.reason == "tools"


def test_another_session_of_the_tenant_shares_the_prefix_and_another_tenant_does_not(house: House) -> None:
    messages = history(9)
    first, _ = house.step("a", messages=messages[:6])
    other, m = house.step("b", messages=[*messages[:6], Message("user", "b")])
    assert other.reason == "new"
    assert m == len(first.tokens) // GRID * GRID
    prefix, m = house.step("c", messages=[messages[0], Message("user", text(200, 5))])
    assert m == prefix.ends[1] // GRID * GRID > 0
    stranger, m = house.step("a", tenant="u", messages=messages[:6])
    assert (stranger.reason, m) == ("new", 0)
    assert stranger.head != first.head


@pytest.mark.parametrize("incremental", [True, False])
def test_restart_between_steps_changes_nothing(build: Callable[..., House], prompts: Prompts, incremental: bool) -> None:
    messages = history(20)
    whole = Prompts.load(_directory())
    whole.incremental = incremental
    house, other = build(whole), build(whole)
    heads = []
    for n in range(2, 21, 3):
        a, ma = house.step("s", append=messages[n - 3 if n > 2 else 0 : n], head=heads[-1] if heads else None)
        b, mb = other.step("s", append=messages[n - 3 if n > 2 else 0 : n])
        # heads are keyed by the store's secret, all else is the same
        assert (a.number, a.reason, ma, a.common, a.ends) == (b.number, b.reason, mb, b.common, b.ends)
        assert np.array_equal(a.tokens, b.tokens)
        heads.append(a.head)
        house.restart()
        got = house.sessions.get("t", "s")
        assert [s.head for s in got.steps] == heads
        assert all(s.durable for s in got.steps)
        assert all(c.durable and c.tiers == ("disk",) for s in got.steps for c in s.checkpoints)
    step, m = house.step("s", append=[Message("user", "after an old head")], head=heads[2])
    assert step.reason == "fork"
    if incremental:
        assert m == step.common // GRID * GRID
    assert not house.step("s", messages=messages)[0].restored


def _directory() -> Any:
    from flide_agent.default_model import DIRECTORY

    return DIRECTORY


def test_other_prompts_drop_the_heads_and_keep_the_session(build: Callable[..., House]) -> None:
    old, new = Prompts.load(_directory()), Prompts.load(_directory())
    new.digest = "another wording"
    house = build(old)
    house.sessions.open("t", "s", metadata={"a": [1, None]})
    step, _ = house.step("s", messages=history(5))
    house.prompts = new
    house.restart()
    info = house.sessions.get("t", "s")
    assert info.metadata == {"a": [1, None]}
    assert info.steps == ()
    with pytest.raises(HeadConflict):
        house.sessions.begin("t", "s", append=[], head=step.head)
    again, m = house.step("s", messages=history(5))
    assert (again.reason, again.number, m) == ("new", 2, 0)


def test_damaged_records_make_heads_unknown_and_nothing_worse(house: House) -> None:
    messages = history(8)
    first, _ = house.step("s", messages=messages[:4])
    second, _ = house.step("s", messages=messages)
    house.store.flush(10)
    index = house.store.index
    key, value = next((k, v) for k, v in index.scan("block") if k[16:] == second.history.blocks[6].id)
    flipped = bytearray(value)
    flipped[len(flipped) // 2] ^= 1
    house.store.close()
    house.start()
    house.store.index.commit([("block", key, bytes(flipped))])
    with pytest.raises(HeadConflict):
        house.sessions.begin("t", "s", append=[], head=second.head)
    step, m = house.step("s", append=messages[4:], head=first.head)
    assert step.head == second.head
    assert m == len(step.tokens) // GRID * GRID


def test_kept_heads_are_bounded(build: Callable[..., House], prompts: Prompts) -> None:
    house = build(prompts, kept_steps=4)
    messages = history(12, words=30)
    steps = [house.step("s", messages=[*messages[:n], Message("user", f"only in step {n}")])[0] for n in range(1, 13)]
    for _ in range(2):
        assert [s.number for s in house.sessions.get("t", "s").steps] == [9, 10, 11, 12]
        with pytest.raises(HeadConflict):
            house.sessions.begin("t", "s", append=[], head=steps[7].head)
        house.sessions.begin("t", "s", append=[], head=steps[8].head)
        house.restart()
    assert len(house.store.index.scan("head")) == 4
    assert len(house.store.index.scan("block")) == 1 + 12 + 4


def test_list_get_delete_fork(house: House) -> None:
    names = [f"session {i} ✓" for i in range(25)]
    for name in names:
        house.sessions.open("t", name, metadata={"name": name})
    house.sessions.open("u", "not mine")
    for flushed in (False, True):
        seen, cursor = [], None
        for _ in itertools.count():
            page = house.sessions.list("t", limit=10, cursor=cursor)
            seen += [s.id for s in page.sessions]
            cursor = page.cursor
            if cursor is None:
                break
        assert sorted(seen) == sorted(names)
        if not flushed:
            house.restart()
    with pytest.raises(InvalidRequest):
        house.sessions.list("t", cursor="x")
    for name in ("nobody", "not mine"):
        with pytest.raises(NotFound):
            house.sessions.get("t", name)
        with pytest.raises(NotFound):
            house.sessions.delete("t", name)
    messages = history(10)
    a, _ = house.step("a", messages=messages[:6])
    fork = house.sessions.fork("t", "a", "b", metadata="copy")
    assert (fork.head, fork.metadata, fork.messages) == (a.head, "copy", 6)
    with pytest.raises(Conflict):
        house.sessions.fork("t", "a", "b")
    b, m = house.step("b", append=messages[6:], head=fork.head)
    assert (b.reason, b.number, m) == ("append", 2, len(a.tokens) // GRID * GRID)
    house.store.flush(10)
    house.sessions.delete("t", "a")  # takes its inner boundaries, which the fork does not hold, and nothing else
    house.restart()
    c, m = house.step("b", append=messages[6:7], head=a.head)
    assert (c.reason, m) == ("truncate", len(a.tokens) // GRID * GRID)
    house.store.flush(10)
    assert house.sessions.delete("t", "b") >= 3
    assert not list(house.path.glob("objects/*/*"))
    for name in names:
        house.sessions.delete("t", name)
    assert [len(house.store.index.scan(db)) for db in ("node", "ids", "hold", "head", "block", "session")] == [0, 0, 0, 0, 1, 1]


def test_ids_and_metadata_have_limits(house: House) -> None:
    for bad in ("", "x" * 513, "\ud800"):
        with pytest.raises(InvalidRequest):
            house.sessions.open("t", bad)
        with pytest.raises(InvalidRequest):
            house.sessions.begin(bad, "s", messages=[])
    assert house.sessions.open("t", "é" * 512).id == "é" * 512
    for metadata in ("x" * 20000, {1, 2}, float("nan")):
        with pytest.raises(InvalidRequest):
            house.sessions.open("t", "s", metadata=metadata)
    assert len(house.sessions.open("t").id) >= 20
    with pytest.raises(Conflict):
        house.sessions.open("t", "é" * 512, tools=TOOLS)


def test_commit_after_delete_brings_nothing_back(house: House) -> None:
    house.step("s", messages=history(3))
    step = house.sessions.begin("t", "s", messages=history(5))
    house.sessions.delete("t", "s")
    house.sessions.commit(step, {64: house.engine.make(step.tokens, 64)})
    with pytest.raises(NotFound):
        house.sessions.get("t", "s")
    house.store.close()
    assert house.engine.idle()
    house.start()


def test_many_sessions_leave_memory_and_come_back(build: Callable[..., House], prompts: Prompts) -> None:
    house = build(prompts, max_live=3)
    for round_ in range(2):
        for i in range(12):
            step, m = house.step(f"s{i}", append=[Message("user", text(90, i + 100 * round_))])
            assert step.number == round_ + 1
            assert (m > 0) == (round_ > 0)
        house.store.flush(10)
    assert len(house.sessions._registry.live) <= 12
    house.sessions.open("t", "another")
    assert len(house.sessions._registry.live) <= 3
