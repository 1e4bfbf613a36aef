"""Canonical messages: every shape a client sends, and where each fault is said to be."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from flide_agent.messages import InputError, InputErrors, Message, ToolCall, canonical, canonical_all, well_formed


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"role": "user", "content": "hi\n"}, Message("user", "hi\n")),
        ({"role": "assistant", "content": None}, Message("assistant", "")),
        ({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}, Message("user", "a")),
        ({"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]}, Message("user", "a\nb")),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}, Message("user", "no")),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:AAAA"}}]},
            Message("user", "(image_url part, not shown)"),
        ),
        ({"role": "user", "content": [{"type": "odd", "é": 1}]}, Message("user", '{"type": "odd", "é": 1}')),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]},
            Message("assistant", "", "", (ToolCall("c", "f", "{"),)),
        ),
        (
            {"role": "assistant", "content": "x", "tool_calls": [{"id": None, "name": "f", "args": {"é": [1]}}]},
            Message("assistant", "x", "", (ToolCall("", "f", '{"é": [1]}'),)),
        ),
        (
            {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
            Message("assistant", "", "", (ToolCall("", "f", "{}"),)),
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"id": "i", "function": "f", "arguments": {"a": 1}}]},
            Message("assistant", "", "", (ToolCall("i", "f", '{"a": 1}'),)),
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            Message("assistant", "", "", (ToolCall("t", "f", "{}"),)),
        ),
        (
            {"role": "tool", "content": "out", "tool_call_id": "c", "name": "bash", "timestamp": 1, "tool_calls": None},
            Message("tool", "out", "bash", (), "c"),
        ),
        ({"role": "user", "content": "\ud800é"}, Message("user", "\ufffdé")),
    ],
)
def test_canonical(raw: Any, message: Message) -> None:
    assert canonical(raw) == message
    assert canonical(message) is message


@pytest.mark.parametrize(
    ("raw", "loc", "kind"),
    [
        ("hi", (), "dict_type"),
        ({"content": "x"}, ("role",), "missing"),
        ({"role": " ", "content": "x"}, ("role",), "missing"),
        ({"role": 1, "content": "x"}, ("role",), "string_type"),
        ({"role": "user"}, ("content",), "missing"),
        ({"role": "user", "content": 5}, ("content",), "string_type"),
        ({"role": "user", "content": {"text": "x"}}, ("content",), "string_type"),
        ({"role": "user", "content": ["a", None]}, ("content", 1), "dict_type"),
        ({"role": "user", "content": "x", "name": 3}, ("name",), "string_type"),
        ({"role": "tool", "content": "x", "tool_call_id": 3}, ("tool_call_id",), "string_type"),
        ({"role": "a", "tool_calls": {}}, ("tool_calls",), "list_type"),
        ({"role": "a", "tool_calls": [1]}, ("tool_calls", 0), "dict_type"),
        ({"role": "a", "tool_calls": [{"function": {"name": "f"}}, {"function": {}}]}, ("tool_calls", 1, "name"), "missing"),
        ({"role": "a", "tool_calls": [{"function": 3}]}, ("tool_calls", 0, "function"), "dict_type"),
        ({"role": "a", "content": "", "function_call": {"arguments": ""}}, ("function_call", "name"), "missing"),
    ],
)
def test_faults_are_located(raw: Any, loc: tuple[str | int, ...], kind: str) -> None:
    with pytest.raises(InputError) as caught:
        canonical(raw, ("body", "messages", 3))
    assert caught.value.loc == ("body", "messages", 3, *loc)
    assert caught.value.type == kind
    assert caught.value.details() == [{"loc": list(caught.value.loc), "msg": caught.value.msg, "type": kind}]


def test_all_faults_of_a_list_at_once() -> None:
    with pytest.raises(InputErrors) as caught:
        canonical_all([{"role": "user", "content": "x"}, 1, {"role": "user", "content": 2}], ("m",))
    assert [e.loc for e in caught.value.errors] == [("m", 1), ("m", 2, "content")]
    with pytest.raises(InputError, match="list of messages"):
        canonical_all({"role": "user"}, ("m",))


def test_deep_nesting_is_a_fault_of_the_input() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InputError, match="nested"):
        canonical({"role": "a", "tool_calls": [{"name": "f", "args": value}]})


def test_digests_tell_messages_apart() -> None:
    call = ToolCall("a", "b", "c")
    messages = [
        Message("user", "ab"),
        Message("usera", "b"),
        Message("user", "", "ab"),
        Message("user", "ab", "", (call,)),
        Message("user", "ab", "", (ToolCall("ab", "", "c"),)),
        Message("user", "ab", "", (call, call)),
        Message("user", "ab", "", (), "x"),
        Message("user", "\ud800"),
        Message("user", "\ufffd"),
    ]
    assert all(len(m.digest()) == 32 for m in messages)
    assert all(a.digest() != b.digest() for a, b in itertools.combinations(messages, 2))
    assert Message("user", "ab").digest() == messages[0].digest()


def test_lone_surrogates() -> None:
    assert well_formed("a\ud800b\udfffc\U0001f600") == "a\ufffdb\ufffdc\U0001f600"
    assert well_formed("é") == "é"
