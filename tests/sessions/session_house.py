"""A store with sessions over an engine of made-up states."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))

from fake_engine import FakeEngine
from flide_engine.memory import Checkpoint, PoolFull

from flide_agent.prompts import Prompts
from flide_agent.sessions import Sessions, Step
from flide_agent.store import CheckpointStore


class House:
    """A store with sessions over an engine of made-up states; `step` is what the service does with one."""

    def __init__(self, path: Path, prompts: Prompts, **options: Any) -> None:
        self.path, self.prompts, self.options = path, prompts, options
        self.start()

    def start(self) -> None:
        self.engine = FakeEngine(pages=2048, slots=256)
        self.store = CheckpointStore.open(self.path, self.engine, prompts_digest=self.prompts.digest, disk_bytes=1 << 30)
        self.sessions = Sessions(self.store, self.prompts, **self.options)

    def restart(self) -> None:
        assert self.store.flush(20)
        self.store.close()
        assert self.engine.idle()
        self.start()

    def step(self, session: str, tenant: str = "t", **what: Any) -> tuple[Step, int]:
        """Begin, find, compute, commit. Returns the step and m."""
        step = self.sessions.begin(tenant, session, **what)
        found = self.store.find(step.share_key, step.tokens, len(step.tokens))
        m = 0 if found is None else found.m
        parent = None if found is None else found.checkpoint
        if found is not None:
            assert self.engine.good(found.checkpoint, step.tokens)
        checkpoints: dict[int, Checkpoint] = {}
        for p in step.saves_after(m):
            parent = checkpoints[p] = self._make(step, p, parent)
        self.sessions.commit(step, checkpoints, m=m)
        if found is not None:
            found.release()
        return step, m

    def _make(self, step: Step, position: int, parent: Checkpoint | None) -> Checkpoint:
        while True:
            try:
                return self.engine.make(step.tokens, position, parent)
            except PoolFull as full:
                if not self.store.relieve(full):
                    raise
