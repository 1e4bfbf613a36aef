"""A state machine against a dictionary: whatever is put, found, held, forgotten, evicted, moved between tiers and restarted, the
bits are right, ledger and reference counts agree with the disk and the pools, and nothing that can be reached is missing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from fake_engine import KEY, FakeEngine, some_tokens
from flide_engine.memory import Checkpoint, PoolFull
from flide_engine.segments import GRID, Tokens
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from test_store_model import check

from flide_agent.store import CheckpointStore, Found, Kind

OTHER = b"o" * 32
SESSIONS = st.sampled_from(["a", "b", "c"])
BLOCKS = st.integers(1, 10)
STEPS = {"count": 0}


class Machine(RuleBasedStateMachine):
    """model: (tenant, tokens of the position) -> sessions that hold it. Evictions only ever take away: what is found has to be in
    it, and what is found is right; what a session let go of, and nobody else holds, must not be found again."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="machine-"))
        self.model: dict[tuple[bytes, bytes], set[str]] = {}
        self.pins: list[tuple[Found, Tokens]] = []
        self.histories: list[Tokens] = [some_tokens(700, 0)]
        self.start()

    def start(self) -> None:
        self.engine = FakeEngine(pages=48, slots=6)
        self.store = CheckpointStore.open(
            self.path,
            self.engine,
            prompts_digest="p",
            host_bytes=32 * 4096,
            disk_bytes=70 * 4096,
            tenant_bytes=50 * 4096,
            session_bytes=40 * 4096,
        )

    def teardown(self) -> None:
        for found, _ in self.pins:
            found.release()
        self.store.flush(10)
        self.store.close()
        assert self.engine.idle()
        shutil.rmtree(self.path)

    @initialize()
    def begin(self) -> None:
        STEPS["count"] += 1

    def made(self, tokens: Tokens, m: int, parent: Checkpoint | None) -> Checkpoint | None:
        while True:
            try:
                return self.engine.make(tokens, m, parent)
            except PoolFull as full:
                if not self.store.relieve(full):
                    return None  # all of it is pinned

    def found(self, key: bytes, tokens: Tokens, at_most: int) -> Found | None:
        found = self.store.find(key, tokens, at_most)
        if found is not None:
            assert found.m <= at_most
            assert self.engine.good(found.checkpoint, tokens)
            assert (key, tokens[: found.m].tobytes()) in self.model
        return found

    @rule(
        which=st.integers(0, 5),
        blocks=BLOCKS,
        session=SESSIONS,
        kind=st.sampled_from(list(Kind)),
        tenant=st.sampled_from([KEY, KEY, OTHER]),
    )
    def put(self, which: int, blocks: int, session: str, kind: Kind, tenant: bytes) -> None:
        STEPS["count"] += 1
        tokens, m = self.histories[which % len(self.histories)], blocks * GRID
        found = self.found(tenant, tokens, m)
        if found is None or found.m < m:
            checkpoint = self.made(tokens, m, None if found is None else found.checkpoint)
            if checkpoint is not None:
                self.store.publish(tenant, tokens, checkpoint, session, kind)
                self.model.setdefault((tenant, tokens[:m].tobytes()), set()).add(session)
                again = self.store.find(tenant, tokens, m)
                assert again is not None and again.m == m  # noqa: PT018
                again.release()
        elif found.m == m:
            self.store.resumed(tenant, tokens, m, session)
            self.model[tenant, tokens[:m].tobytes()].add(session)
        if found is not None:
            found.release()

    @rule(which=st.integers(0, 5), at_most=st.integers(0, 700), tenant=st.sampled_from([KEY, OTHER]))
    def get(self, which: int, at_most: int, tenant: bytes) -> None:
        STEPS["count"] += 1
        found = self.found(tenant, self.histories[which % len(self.histories)], at_most)
        if found is not None:
            found.release()

    @rule(which=st.integers(0, 5), at=st.integers(0, 690), seed=st.integers(1, 5))
    def edit(self, which: int, at: int, seed: int) -> None:
        """Another history that leaves this one at a token."""
        STEPS["count"] += 1
        base = self.histories[which % len(self.histories)]
        made = np.concatenate([base[:at], some_tokens(700 - at, seed)])
        if len(self.histories) < 6:
            self.histories.append(made)
        else:
            self.histories[which % 6] = made

    @rule(which=st.integers(0, 5), blocks=BLOCKS)
    def pin(self, which: int, blocks: int) -> None:
        """A request that is under way."""
        STEPS["count"] += 1
        if len(self.pins) < 2:
            tokens = self.histories[which % len(self.histories)]
            found = self.found(KEY, tokens, blocks * GRID)
            if found is not None:
                self.pins.append((found, tokens))

    @precondition(lambda self: bool(self.pins))
    @rule()
    def unpin(self) -> None:
        STEPS["count"] += 1
        found, tokens = self.pins.pop(0)
        assert self.engine.good(found.checkpoint, tokens), "it was evicted or written to while it was used"
        found.release()

    @rule(slots=st.integers(1, 4), pages=st.integers(0, 12))
    def evict(self, slots: int, pages: int) -> None:
        STEPS["count"] += 1
        self.store.relieve(PoolFull(pages, slots))

    @rule()
    def leave_device_and_host(self) -> None:
        """Nothing is anywhere but on disk."""
        STEPS["count"] += 1
        assert self.store.flush(10)
        self.store.relieve(PoolFull(1000, 1000))
        self.store._host.drop(list(self.store._host._entries))

    @rule(one=SESSIONS, other=SESSIONS)
    def fork(self, one: str, other: str) -> None:
        """The second session holds what the first does."""
        STEPS["count"] += 1
        held = [k for k, sessions in self.model.items() if one in sessions and k[0] == KEY]
        keys = [self.store.key(KEY, np.frombuffer(tokens, np.int32)) for _, tokens in held]
        known = [self.store.describe(key, 0).tiers != () for key in keys]
        self.store.hold(KEY, keys, other)
        for key, there in zip(held, known, strict=True):
            if there:
                self.model[key].add(other)

    @rule(session=SESSIONS)
    def forget(self, session: str) -> None:
        STEPS["count"] += 1
        if self.pins:
            return
        self.store.forget(KEY, session)
        for key, sessions in list(self.model.items()):
            if key[0] == KEY and session in sessions:
                sessions.discard(session)
                if not sessions:
                    del self.model[key]
                    tokens = np.frombuffer(key[1], np.int32)
                    assert self.store.describe(self.store.key(KEY, tokens), 0).tiers == ()

    @precondition(lambda self: not self.pins)
    @rule()
    def restart(self) -> None:
        STEPS["count"] += 1
        self.store.flush(10)
        on_disk = {n.key: n.m for n in self.store._nodes.disk.values()}
        self.store.close()
        assert self.engine.idle()
        self.start()
        assert self.store.stats().corrupt == 0
        assert {n.key: n.m for n in self.store._nodes.disk.values()} == on_disk
        # What only the device had is gone, and with it who held it.
        for tenant, tokens in list(self.model):
            if self.store.key(tenant, np.frombuffer(tokens, np.int32)) not in on_disk:
                del self.model[tenant, tokens]

    @invariant()
    def holds(self) -> None:
        if not self.pins:
            assert self.store.flush(10)
            check(self.store, self.path)


def run(examples: int, steps: int, seed: int) -> int:
    STEPS["count"] = 0
    limits: dict[str, Any] = {
        "max_examples": examples, "stateful_step_count": steps, "deadline": None, "database": None,
        "suppress_health_check": list(HealthCheck),
    }  # fmt: skip
    import hypothesis

    hypothesis.seed(seed)(Machine)
    run_state_machine_as_test(Machine, settings=settings(**limits))
    return STEPS["count"]


def test_machine() -> None:
    assert run(6, 40, 1) > 150


@pytest.mark.bars
@pytest.mark.timeout(3000)
def test_machine_ten_thousand_steps(bar: Callable[..., None]) -> None:
    steps = run(125, 100, 2)
    bar("store: steps of the state machine against a dictionary", steps, at_least=10_000)
