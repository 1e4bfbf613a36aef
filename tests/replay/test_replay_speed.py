"""What replay's speed rests on: nothing is worked out twice, and what is kept for that gives what working it out would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from flide_engine.memory import Checkpoint, Memory, MemoryShape
from flide_engine.segments import GRID, Tokens

from flide_agent.local import LocalService
from flide_agent.messages import Message, canonical
from flide_agent.replay.heard import Ear
from flide_agent.replay.records import Problem, Run, Step
from flide_agent.replay.walk import Walk
from flide_agent.replies import Reply
from flide_agent.settings import Settings
from flide_agent.store import files as store_files
from flide_agent.store import identity
from flide_agent.store.files import UnsyncedFiles
from flide_agent.store.identity import Chains, chain
from flide_agent.store.nodes import Node, Nodes

KEY = b"k" * 32
NO_SLOTS = np.zeros(0, np.int32)
SHAPE = MemoryShape(
    full_layers=1, kv_heads=1, head_dim=1, linear_layers=1, value_heads=1, key_dim=1, value_dim=1, conv_channels=1, conv_taps=3
)


def some_tokens(n: int, seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 1000, n).astype(np.int32)


def test_messages_are_read_once_a_run() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    raw: list[dict[str, Any]] = [
        {"role": "system", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "b"}], "tool_call_id": "1"},
    ]
    wrong: dict[str, Any] = {"role": "user"}
    ear = Ear()
    heard = ear.hear([*raw, wrong])
    assert [m.digest() for m in heard[:3]] == [canonical(r).digest() for r in raw]
    assert [msgspec.to_builtins(m) for m in heard[:3]] == [msgspec.to_builtins(canonical(r)) for r in raw]
    assert heard[3] is wrong  # for the service to say what is wrong with it
    assert all(a is b for a, b in zip(ear.hear(raw), heard, strict=False))
    assert ear.hear([dict(raw[0])])[0] is not heard[0]
    assert heard[1].digest() is heard[1].digest()


class Refused(LocalService):
    """Keeps what it is sent."""

    def decide(self, session: str, **more: Any) -> Reply:
        sent.append(list(more["messages"]))
        return super().decide(session, **more)


sent: list[list[Any]] = []


def test_a_message_that_is_refused_is_named_as_ever() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user"}]
    run = Run("f", 1, "", "chat", [Step(1, messages[:1], "history", ""), Step(2, messages, "history", "")])
    question = {"q": {"type": "noul", "instructions": "Is it?"}}
    told = {}
    with Refused(Settings()) as service:
        for inside in (False, True):
            events = list(Walk(service, question, inside=inside).one(run))
            told[inside] = [str(e) if isinstance(e, Problem) else type(e).__name__ for e in events]
    assert told[True] == told[False]
    assert "messages" in told[True][2] or "content" in told[True][2]
    assert [isinstance(m, Message) for m in sent[-1]] == [True, False]
    assert not any(isinstance(m, Message) for m in sent[0])


def test_a_window_is_weighed_as_each_of_it_alone() -> None:
    memory = Memory(SHAPE, 64, 16, device=torch.device("cpu"), dtype=torch.float32, state_dtype=torch.float32)
    nodes = Nodes()

    def enter(pages: list[int]) -> Checkpoint:
        _, slot = memory.take(0, 1)
        memory.retain(np.array(pages, np.int32), NO_SLOTS)
        made = Checkpoint(memory, GRID * len(pages), np.array(pages, np.int32), int(slot[0]))
        node = Node(bytes([len(nodes.device)]) * 32, made.m)
        nodes.enter_device(node, made, np.zeros(made.m, np.int32))
        return made

    held = [enter(p) for p in ([0], [0, 1, 2], [0, 1, 2, 3, 4, 5], [], [9], [10, 11, 12, 13], [])]
    alone = [nodes.sole_bytes(c) for c in held]
    assert len(set(alone)) == 4
    assert nodes.sole_bytes_of(held) == alone
    for i in range(len(held)):
        assert nodes.sole_bytes_of(held[i : i + 2]) == alone[i : i + 2]


def test_keys_of_a_trunk_that_goes_on_are_those_of_one_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_SHORT", 0)
    own = bytes(32)
    chains = Chains(own, size=3)
    whole = some_tokens(1000, 3)

    def asked(tokens: Tokens, share_key: bytes = KEY) -> None:
        tokens = np.array(tokens, np.int32)
        tokens.flags.writeable = False
        assert chains(share_key, tokens) == chain(own, share_key, tokens)

    for n in (30, 64, 65, 300, 300, 640, 1000, 320, 63):
        asked(whole[:n])
    for at in (0, 63, 64, 500, 639, 640, 999):  # one id differs, before, in and after the last block of what is remembered
        other = whole.copy()
        other[at] += 1
        asked(other)
        asked(whole)
        asked(other[:700])
    asked(whole, bytes(32))  # another tenant's are others


def test_small_objects_stay_in_memory_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "KEPT", 11_000)
    files = UnsyncedFiles(tmp_path)
    files.prepare()
    first = files.put("kv", [b"a" * 5000, b"b"], 5001)
    assert files.put("kv", [b"a" * 5000, b"b"], 5001) == first
    beyond, large = files.put("kv", [b"e" * 7000], 7000), files.put("kv", [b"d" * 70_000], 70_000)
    assert {path.name for path in tmp_path.rglob("*.kv")} == {beyond, large}
    assert set(files.listing()) == files.exists([first, beyond, large]) == {first, beyond, large}
    with files.get(first) as source:
        assert files.delete(first)
        assert source.read_into(0, memoryview(into := bytearray(5001))) == 5001  # whoever has it open reads on
        assert into == b"a" * 5000 + b"b"
    assert files.exists([first]) == set()
    with pytest.raises(FileNotFoundError):
        files.get(first)
    assert files.delete(first)
    second = files.put("state", [b"c" * 10], 10)
    assert read(files, second) == b"c" * 10
    files.close()
    again = UnsyncedFiles(tmp_path)
    again.prepare()
    assert set(again.listing()) == {beyond, large, second}
    assert [read(again, name)[:1] for name in (beyond, large, second)] == [b"e", b"d", b"c"]


def read(files: UnsyncedFiles, name: str) -> bytes:
    with files.get(name) as source:
        into = bytearray(source.size)
        assert source.read_into(0, memoryview(into)) == source.size
        return bytes(into)
