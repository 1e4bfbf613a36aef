"""What sessions tell the index: each row once however slow the disk is, within bounded memory, and all of it at the end."""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from session_house import House

from flide_agent.errors import NotFound, Unavailable
from flide_agent.messages import Message
from flide_agent.prompts import Prompts
from flide_agent.store.index import Index, Write

SESSION_ROWS = ("session", "head", "block")


class Told:
    """Stands before the index's commit: counts rows of sessions, holds commits up, or refuses them."""

    def __init__(self, index: Index) -> None:
        self.rows: Counter[Write] = Counter()
        self.commits = 0
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.refuses = False
        self._commit = index.commit
        index.commit = self.commit  # type: ignore[method-assign]

    def commit(self, writes: Iterable[Write]) -> None:
        writes = list(writes)
        self.entered.set()
        self.open.wait(30)
        self.commits += 1
        if self.refuses:
            raise OSError(errno.ENOSPC, "refused")
        self.rows.update(row for row in writes if row[0] in SESSION_ROWS)
        self._commit(writes)


def test_rows_go_once_however_many_steps_wait(house: House) -> None:
    house.step("s", messages=[Message("system", "begin")])
    assert house.store.flush(10)
    told = Told(house.store.index)
    told.open.clear()
    house.step("s", append=[Message("user", "held up on its way")])
    assert told.entered.wait(10)
    for n in range(299):
        house.step("s", append=[Message("user", f"{n}")])
    assert house.store.writer.queue.depth() < 100, "a job for each checkpoint, one for the session"
    told.open.set()
    assert house.store.flush(20)
    counts = {db: [n for (kind, _, _), n in told.rows.items() if kind == db] for db in SESSION_ROWS}
    assert len(counts["block"]) == 300
    assert len(counts["head"]) <= 256 + 3, "those dropped before anything was told of them are never told"
    assert set(counts["block"]) == set(counts["head"]) == {1}
    assert sum(counts["session"]) <= 3
    house.restart()
    assert [s.number for s in house.sessions.get("t", "s").steps] == list(range(46, 302))


def test_a_disk_that_refuses_costs_bounded_memory(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.step("long", messages=[Message("system", "begin")])
    assert house.store.flush(10)
    registry = house.sessions._registry
    house.sessions._kept, registry.max_live, registry.max_unsaved = 8, 4, 16
    told = Told(house.store.index)
    told.refuses = True
    long = registry.find(house.sessions.share_key("t"), "long")
    assert long is not None
    most = 0
    for n in range(200):
        house.step("long", messages=[Message("user", f"{n}")])
        most = max(most, len(long.unsaved))
    assert most < 60, "kept heads and their blocks, not all that ever were"
    for n in range(60):
        house.step(f"s{n}", messages=[Message("user", f"{n}")])
        house.step("long", append=[])
    assert len(registry.live) <= 20
    assert len(house.store.writer.queue._rows) <= 22
    assert sum("are not kept" in r.message for r in caplog.records) == 1
    told.refuses = False
    assert house.store.flush(60)
    house.restart()
    assert house.sessions.get("t", "s59").step == 1
    with pytest.raises(NotFound):
        house.sessions.get("t", "s0")


def test_what_was_refused_all_along_is_written_at_the_end(tmp_path: Path, prompts: Prompts) -> None:
    house = House(tmp_path / "store", prompts)
    told = Told(house.store.index)
    told.refuses = True
    for n in range(40):
        house.step(f"s{n % 4}", messages=[Message("user", f"only {n}")])
    while house.store.stats().commit_failures < 3:
        time.sleep(0.01)
    told.refuses = False
    house.store.close()  # in the pause before the next try
    house.start()
    for n in range(4):
        assert [s.number for s in house.sessions.get("t", f"s{n}").steps] == list(range(1, 11))
    house.store.close()


def test_deleted_while_the_disk_refuses_stays_deleted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    import flide_agent.sessions.sessions as sessions
    import flide_agent.store.writer as writer

    monkeypatch.setattr(sessions, "FORGET_WAIT", 0.5)
    monkeypatch.setattr(writer, "LAST_PAUSE", 0.4)
    house.step("durable", messages=[Message("user", "one")])
    assert house.store.flush(10)
    told = Told(house.store.index)
    told.refuses = True
    house.step("durable", append=[Message("user", "two")])
    house.step("never", messages=[Message("user", "three")])
    for name in ("durable", "never"):
        with pytest.raises(Unavailable):
            house.sessions.delete("t", name)
        with pytest.raises(NotFound):
            house.sessions.get("t", name)
    assert house.sessions.list("t").sessions == ()
    told.refuses = False
    assert house.store.flush(60)
    left: Any = [house.store.index.scan(db) for db in ("node", "ids", "hold", *SESSION_ROWS)]
    assert left == [[]] * 6
    house.restart()
    for name in ("durable", "never"):
        with pytest.raises(NotFound):
            house.sessions.get("t", name)
