"""The one thread that writes: payload files, then one index transaction for all that waited, then unlinking.

A disk that refuses makes the tier read-only: checkpoints are dropped until a growing pause has passed and a write works again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial

import lmdb
import msgspec

from flide_agent.store.counters import Counters
from flide_agent.store.disk import Batch, Disk, NoRoom
from flide_agent.store.index import Write
from flide_agent.store.jobs import Job, Put, Rows, Task
from flide_agent.store.nodes import Node, encode_record
from flide_agent.store.payload import PayloadError
from flide_agent.store.queue import Queue
from flide_agent.store.removal import Removal, rows
from flide_agent.store.report import Kind, Mode
from flide_agent.store.room import Room

log = logging.getLogger("flide_agent.store")

FIRST_PAUSE = 0.1
LAST_PAUSE = 30.0
COUNTED = 10.0


class Writer:
    """Jobs run in the order they come. Start it with `start`; `close` ends it.

    patience: see Queue. With any, a checkpoint that later steps have made an OLD one before its turn comes is not written.
    """

    def __init__(self, disk: Disk, room: Room, counters: Counters, patience: int = 0) -> None:
        self.disk, self.room, self.counters = disk, room, counters
        self.mode: Mode = "rw"
        self.queue = Queue(patience)
        self._patient = patience > 0
        self._pause = FIRST_PAUSE
        self._retry_at = self._counted_at = 0.0
        self._commit_refused = False
        self._owed: list[Write] = []
        self._late: list[Removal] = []
        self._failed: list[Rows] = []
        self._thread = threading.Thread(target=self._loop, name="store-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # --- called from any thread ---

    def put(self, put: Put) -> bool:
        """Queue a write; False when it will not be written: the queue is full, the disk refuses, or the writer ended."""
        refused = self.mode == "ro" and time.monotonic() < self._retry_at
        return not refused and self.queue.put(put)

    def submit(self, job: Rows | Removal | Task) -> None:
        """Queue anything else, see Queue.add."""
        self.queue.add(job)

    def close(self, timeout: float) -> None:
        """Do what waits, end the thread. After timeout (s) or on a disk that refuses, checkpoints are given up and the rest is
        tried once more."""
        self.queue.close(timeout)
        if self._thread.is_alive():
            self._thread.join()

    # --- the thread ---

    def _loop(self) -> None:
        while (jobs := self.queue.take()) is not None:
            ok = False
            try:
                ok = self._batch(jobs)
            except Exception:
                # The thread must outlive any fault of one batch: without it nothing would become durable any more.
                log.exception("a batch of the store was lost")
                self._give_up(jobs)
                self._failed += [job for job in jobs if isinstance(job, Rows)]
                ok = True
            self.queue.done(0.0 if ok else self._retry_at - time.monotonic())
        self._last()

    def _last(self) -> None:
        """What is left at the end, without the checkpoints: one more try."""
        left = [*self.queue.rest(), *self._failed]
        self._give_up(left)
        self._counted_at = -COUNTED
        batches: list[list[Job]] = [[job for job in left if not isinstance(job, Put | Task)]]
        batches += [[job] for job in left if isinstance(job, Task)]
        for jobs in batches:
            if not self._batch(jobs):
                log.warning("the store closes with %d jobs that could not be written", len(left))
                return
        if puts := sum(isinstance(job, Put) for job in left):
            log.warning("the store closes with %d checkpoints that could not be written", puts)
        with contextlib.suppress(lmdb.Error, OSError):  # otherwise the next start finds these files gone already
            self.disk.index.commit(self._owed)

    def _give_up(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if isinstance(job, Put):
                with self.disk.nodes.lock:
                    job.cancel()
                self.disk.finish(job)

    def _batch(self, jobs: list[Job]) -> bool:
        """False when the disk refused the commit; rows and removals are back in the queue then."""
        batch = Batch()
        keep: list[Rows | Removal] = []
        collected: list[tuple[Rows, Sequence[Write]]] = []
        for job in jobs:
            if isinstance(job, Put):
                self._put(job, batch)
            elif isinstance(job, Rows):
                collected.append((job, job.collect()))
                batch.rows += collected[-1][1]
                keep.append(job)
            else:
                keep.append(job.removal() if isinstance(job, Task) else job)
        keep += self._late
        self._late = []
        if self.disk.bare:
            keep.append(self.disk.bare)
            self.disk.bare = Removal()
        removals = [job for job in keep if isinstance(job, Removal)]
        with self.disk.nodes.lock:
            removed = [row for removal in removals for row in rows(self.disk.nodes, removal)]
        try:
            self.disk.index.commit(removed + batch.rows + self._touched() + self._owed + self._counted())
        except (lmdb.Error, OSError) as error:
            for source, written in collected:
                source.done(written, False)
            self.counters.add("commit_failures")
            self.counters.add("writes_failed", self.disk.undo(batch))
            self._commit_refused = True
            self._refuse(error)
            self.queue.back(keep)
            return False
        self._owed = []
        if self.mode == "ro" and (batch.staged or self._commit_refused):
            self._accept()
        self.counters.add("writes", len(batch.staged))
        new = [staged.node for staged in batch.staged.values()]
        lost, over = self.disk.committed(batch), Removal()
        for node in new:  # those of one batch were not counted for each other
            self.room.quota(node, 0, over)
        self._evicted(over)
        if lost or over:
            self._late += [lost, over]
            self.queue.add(Removal())  # so that there is another batch, for these
        for removal in removals:
            self._unlink(removal)
        for source, written in collected:
            source.done(written, True)
        return True

    def _put(self, put: Put, batch: Batch) -> None:
        refused = self.mode == "ro" and time.monotonic() < self._retry_at
        if refused or (self._patient and put.node.kind is Kind.OLD):
            with self.disk.nodes.lock:
                put.cancel()
            self.disk.finish(put)
            self.counters.add("writes_dropped")
            return
        try:
            staged = self.disk.stage(put, batch, partial(self._room, put.node))
        except NoRoom:
            self.counters.add("writes_dropped")
        except (OSError, lmdb.Error) as error:
            self.counters.add("writes_failed")
            self._refuse(error)
        except (RuntimeError, ValueError, MemoryError, PayloadError) as error:
            self.counters.add("writes_failed")
            log.error("a checkpoint could not be exported: %s", error)
        else:
            if staged is not None:
                self.counters.add("bytes_written", staged.size)
                return
        self.disk.finish(put)

    def _room(self, node: Node, size: int, error: OSError | None) -> bool:
        """Make room for size bytes of a node in all budgets; after `error`, a sixteenth of what is there goes as well."""
        if size > self.room.limits.disk:
            return False
        nodes = self.disk.nodes
        removal, fits = self.room.quota(node, size)
        if fits:
            self.room.victims(size, size + nodes.disk_bytes // 16 if error is not None else 0, removal)
        if removal:
            self._evicted(removal)
            with nodes.lock:
                out = rows(nodes, removal)
            try:
                self.disk.index.commit(out)
            except (lmdb.Error, OSError):
                self._late.append(removal)
                raise
            self._unlink(removal)
        return fits and nodes.disk_bytes + size <= self.room.limits.disk

    def _evicted(self, removal: Removal) -> None:
        self.counters.add("evicted_disk", sum(name.endswith(".state") for name, _ in removal.files))

    def _unlink(self, removal: Removal) -> None:
        """The index has forgotten the files: remove them, and then what the index says of having to."""
        sizes = dict(removal.files)
        stuck = self.disk.unlink(sizes)
        self.disk.stuck |= {name: sizes.pop(name) for name in stuck}
        self._owed += [("gc", name.encode(), None) for name in sizes]
        with self.disk.nodes.lock:
            self.disk.nodes.disk_bytes -= sum(sizes.values())
        if removal.applied is not None:
            removal.applied()

    def _touched(self) -> list[Write]:
        with self.disk.nodes.lock:
            return [
                ("node", node.key, encode_record(node.record, node))
                for node in self.disk.nodes.take_touched()
                if node.record is not None
            ]

    def _counted(self) -> list[Write]:
        """The counters, for whoever looks at the directory later; at most once in COUNTED seconds."""
        now = time.monotonic()
        if now - self._counted_at < COUNTED:
            return []
        self._counted_at = now
        return [("meta", b"counters", msgspec.json.encode(self.counters.report()))]

    def _refuse(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + self._pause
        if self.mode != "ro":
            log.warning("the disk refuses writes (%s): checkpoints stay on the device until it takes them again", error)
        self.mode = "ro"
        self._pause = min(2 * self._pause, LAST_PAUSE)

    def _accept(self) -> None:
        log.warning("the disk takes writes again")
        self.mode, self._pause, self._commit_refused = "rw", FIRST_PAUSE, False
