"""Cold equals warm: whatever happens to a history, its answers and checkpoints have the bits of a run that reuses nothing.

The real path (LocalService: sessions, store, dispatcher, engine) with the embedded model, on mutations of recorded histories,
under memory for a part of the checkpoints and with restarts in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from flide_engine.engine import Engine, RequestResult
from flide_engine.segments import Round

import flide_agent.decide as decide_module
from flide_agent import asks, wire
from flide_agent.default_model import DIRECTORY
from flide_agent.local import TENANT, LocalService
from flide_agent.messages import canonical_all
from flide_agent.reading import Reading, build_request
from flide_agent.replay.reading import read
from flide_agent.replay.records import Run
from flide_agent.settings import Settings
from flide_agent.store import CheckpointStore

GRID = 64
CLIP = 700
Wire = dict[str, Any]
QUESTIONS = {"stuck": {"type": "noul", "instructions": "Is the agent stuck?"}}
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
FILES = (
    "sweagent-10-marshmallow-elided.traj",
    "sweagent-0x-pydicom-demo-in-history.traj",
    "mini-v2-GENERATED-toolcall.traj.json",
    "openai-chat-tau-airline-5.jsonl",
    "nebius-6rows.jsonl",
    "sweagent-101-pandas-claude-cachecontrol.traj",
)


@pytest.fixture(scope="module")
def histories(shared: Path) -> list[list[Wire]]:
    """Whole recorded histories, long messages cut: what matters is where they part, and a cold run costs time per token."""
    out = []
    for name in FILES:
        for run in read(shared / "data" / "trajectories" / name):
            if isinstance(run, Run) and run.steps and len(run.steps[-1].messages) >= 8:
                out.append([m | {"content": m["content"][:CLIP]} for m in run.steps[-1].messages[:40]])
    return out


@pytest.fixture(scope="module")
def cold() -> Engine:
    return Engine.load(str(DIRECTORY), memory_bytes=256 << 20)


class House:
    """A service whose raw results can be seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[RequestResult] = []
        self.start()

    def start(self) -> None:
        self.local = LocalService(Settings(device="cpu", store=self.path, memory_bytes=48 << 20))
        self.local.__enter__()
        run = self.local.service.engine.run
        self.local.service.dispatcher.engine = Seen(self.local.service.engine, run, self.seen)  # type: ignore[assignment]

    def stop(self) -> None:
        self.local.close()

    def decide(self, session: str, **what: Any) -> tuple[Any, list[RequestResult]]:
        """What the step did, and the results of its rounds: long trunks are computed in pieces."""
        self.seen.clear()
        reply = self.local.decide(session, questions=QUESTIONS, **what)
        return reply.x_session, list(self.seen)

    def cold_request(self, session: str, **what: Any) -> Any:
        body = wire.decide_body(
            QUESTIONS, **{"messages": None, "append": None, "head": None, "candidates": None, "tools": None} | what
        )
        return self.local.service.decider.request(TENANT, asks.parse_decide(body, session, self.local.settings))


class Seen:
    """An engine that keeps what it gave last."""

    def __init__(self, engine: Engine, run: Callable[[Round], Any], seen: list[RequestResult]) -> None:
        self._engine, self._run, self._seen = engine, run, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, round_: Round) -> Any:
        result = self._run(round_)
        self._seen += result.results
        return result


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "store")
    yield house
    house.stop()


def mutated(rng: random.Random, current: list[Wire], source: list[Wire]) -> tuple[str, list[Wire]]:
    """Another history, as agents and their hosts make them; and the name of what was done."""
    h, at = list(current), rng.randrange(len(current))
    more = [m for m in source if m["role"] != "system"]
    what = rng.choice(
        ("append", "append", "append", "append", "edit", "truncate", "remove", "insert", "elide", "elide", "reorder", "summarise",
         "system", "retry", "replace last", "one character")
    )  # fmt: skip
    if what == "append" or len(h) < 3:
        return "append", h + rng.choices(more, k=rng.randrange(1, 4))
    if what == "edit":
        h[at] = h[at] | {"content": rng.choice(more)["content"]}
    elif what == "truncate":
        h = h[: max(1, at)]
    elif what == "remove":
        del h[at]
    elif what == "insert":
        h.insert(at, {"role": "user", "content": f"<reminder>{rng.randrange(99)} files changed</reminder>"})
    elif what == "elide":
        h = [m | {"content": "Old environment output: (1 lines omitted)"} if 1 < i < len(h) - 5 else m for i, m in enumerate(h)]
    elif what == "reorder":
        h[at - 1], h[at] = h[at], h[at - 1]
    elif what == "summarise":
        h = [h[0], {"role": "user", "content": "Summary: " + h[at]["content"][:200]}, *h[-2:]]
    elif what == "system":
        h[0] = {"role": "system", "content": f"It is {rng.randrange(24)}:00. " + h[0]["content"]}
    elif what == "replace last":
        h[-1] = rng.choice(more)
    elif what == "one character":
        text = h[at]["content"]
        where = rng.randrange(len(text) + 1)
        h[at] = h[at] | {"content": text[:where] + rng.choice("x \n\\é") + text[where + 1 :]}
    return what, h[:36]


@dataclass
class Tally:
    checked: int = 0
    different: int = 0
    reused: int = 0
    restarts: int = 0


def same(house: House, cold: Engine, warm: list[RequestResult], want: RequestResult) -> bool:
    """Logits and every checkpoint that both took, bit for bit. Only what the warm run took is there to compare."""
    equal = all(np.array_equal(a, b) for a, b in zip(flat(warm), flat([want]), strict=True))
    for (_, position), checkpoint in ((place, c) for result in warm for place, c in result.checkpoints.items()):
        other = want.checkpoints.get((0, position))
        if checkpoint.alive and other is not None:
            x, y = house.local.service.engine.export(checkpoint), cold.export(other)
            equal = equal and all(torch.equal(x.tensors[n], y.tensors[n]) for n in x.tensors)
    return equal


def flat(results: list[RequestResult]) -> list[Any]:
    return [logits for result in results for segment in result.logits for logits in segment]


def compared(house: House, cold: Engine, session: str, **what: Any) -> tuple[bool, int]:
    """(cold equals warm, m) for one step."""
    request = house.cold_request(session, **what)
    want = cold.run(Round((request,))).results[0]
    done, warm = house.decide(session, **what)
    try:
        return same(house, cold, warm, want), done.m
    finally:
        for checkpoint in want.checkpoints.values():
            checkpoint.release()


def mutations(house: House, cold: Engine, histories: Sequence[list[Wire]], count: int, seed: int, restarts: int) -> Tally:
    rng, out = random.Random(seed), Tally()
    current: dict[str, list[Wire]] = {}
    heads: dict[str, list[tuple[str, list[Wire]]]] = {}
    while out.checked < count:
        session = f"s{rng.randrange(4)}"
        source = histories[hash_of(session, len(histories))]
        before = current.get(session) or source[: rng.randrange(2, 6)]
        name, after = mutated(rng, before, source)
        tools = TOOLS if rng.random() < 0.03 else None
        old = heads.get(session)
        if old and rng.random() < 0.15:  # from an older head, with other messages: a fork
            head, base = rng.choice(old)
            new = rng.choices(source[1:], k=rng.randrange(1, 3))
            name, after, what = "fork", base + new, {"append": new, "head": head, "tools": tools}
        else:
            what = {"messages": after, "tools": tools}
        equal, m = compared(house, cold, session, **what)
        out.checked += 1
        out.reused += m
        if not equal:
            out.different += 1
            print(f"mutation {out.checked} ({name}) at m {m} of session {session} differs")
        current[session] = after
        heads.setdefault(session, []).append((house.local.session(session)["head"], after))
        del heads[session][:-8]
        if len(after) > 30:
            del current[session]
        if out.checked % restarts == 0:
            house.stop()
            house.start()
            out.restarts += 1
    return out


def hash_of(session: str, n: int) -> int:
    return int(session[1:]) * 3 % n


def test_mutations_cold_equals_warm(house: House, cold: Engine, histories: list[list[Wire]]) -> None:
    got = mutations(house, cold, histories, 24, seed=1, restarts=12)
    assert got.different == 0
    assert got.reused > 24 * 100
    assert got.restarts == 2


@pytest.mark.bars
@pytest.mark.timeout(3000)
def test_five_hundred_mutations(house: House, cold: Engine, histories: list[list[Wire]], bar: Callable[..., None]) -> None:
    got = mutations(house, cold, histories, 500, seed=2, restarts=60)
    stats = house.local.service.stats()["store"]
    details = {"checked": got.checked, "tokens_reused": got.reused, "restarts": got.restarts, "corrupt": stats["corrupt"]}
    bar("sessions: cold runs unlike warm ones in 500 mutations", got.different, limit=0, **details)


def test_another_trunks_checkpoint_is_noticed(
    house: House, cold: Engine, histories: list[list[Wire]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the store gives a checkpoint of the same length and of other tokens."""
    first, second = histories[0][:6], [m | {"content": m["content"][::-1]} for m in histories[0][:6]]
    assert compared(house, cold, "a", messages=first) == (True, 0)
    assert compared(house, cold, "b", messages=second)[0]
    real = CheckpointStore.find
    other = trunk(house, second)

    def swapped(store: CheckpointStore, share_key: bytes, tokens: Any, at_most: int, *, wait: bool = True) -> Any:
        found = real(store, share_key, tokens, at_most)
        wrong = real(store, share_key, other, at_most if found is None else found.m)
        if found is not None:
            assert wrong is not None
            found.release()
        return wrong

    more = [*first, {"role": "user", "content": "go on"}]
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "find", swapped)
        equal, m = compared(house, cold, "a", messages=more)
    assert m > 0
    assert not equal
    assert compared(house, cold, "c", messages=[*second, {"role": "user", "content": "go on"}])[0]


@pytest.mark.parametrize("blocks", [-1, 1])
def test_a_fork_point_off_by_a_block_is_noticed(
    house: House, cold: Engine, histories: list[list[Wire]], monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """Negative control: the tail begins one block before or after where the checkpoint ends."""
    first, more = histories[0][:6], histories[0][:9]
    assert compared(house, cold, "a", messages=first) == (True, 0)

    def shifted(reading: Reading, found: Any) -> Any:
        if found is not None:
            tokens = np.concatenate([reading.tokens[: found.m], reading.tokens[found.m + GRID * blocks :]])
            reading = replace(reading, tokens=tokens, saves=tuple(p for p in reading.saves if p <= len(tokens)))
        return build_request(reading, found)

    monkeypatch.setattr(decide_module, "build_request", shifted)
    equal, m = compared(house, cold, "a", messages=more)
    assert m > 0
    assert not equal


def trunk(house: House, messages: list[Wire]) -> Any:
    return house.local.service.decider.prompts.history((), canonical_all(msgspec.to_builtins(messages), ())).tokens
