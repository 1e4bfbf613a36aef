"""From disk to the device: read a checkpoint, check it, import it beside what is there; a bad one is dropped, never served."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np
from flide_engine.memory import Checkpoint, Exported, TransferError
from flide_engine.segments import Tokens

from flide_agent.store.costs import Costs
from flide_agent.store.counters import Counters
from flide_agent.store.nodes import Node
from flide_agent.store.reading import Damaged, Gone, Loaded, Reading
from flide_agent.store.report import PoolFull, Transfers
from flide_agent.store.writer import Writer

log = logging.getLogger("flide_agent.store")


class Loader:
    """One load at a time: two finders of one checkpoint read it once. relieve: frees device memory, see CheckpointStore."""

    def __init__(
        self,
        reading: Reading,
        engine: Transfers,
        writer: Writer,
        costs: Costs,
        counters: Counters,
        relieve: Callable[[PoolFull], bool],
    ) -> None:
        self._reading, self._engine, self._writer = reading, engine, writer
        self._costs, self._counters, self._relieve = costs, counters, relieve
        self._nodes = reading.nodes
        self._one = threading.Lock()

    def load(self, node: Node, tokens: Tokens, keys: list[bytes]) -> Loaded | None:
        """Bring a pinned node to the device. Returns what was read (nothing: another finder just did), None when it failed.

        keys: of the trunk's grid positions up to the node's own. Pages that its deepest ancestor on the device has are
        shared and not read into the device again. Raises PoolFull when there is no memory for it.
        """
        with self._one:
            with self._nodes.lock:
                if node.checkpoint is not None:
                    return Loaded()
                base = self._base(tokens, keys)
                # Its own reference: a session that is deleted takes its checkpoints off the device, pinned or not.
                parent = None if base is None or base.checkpoint is None else base.checkpoint.retain()
            try:
                return self._read(node, tokens, parent)
            except Damaged as damaged:
                removal, lost = self._reading.drop(damaged)
                self._counters.add("corrupt")
                log.warning("a stored checkpoint failed its checks; %d checkpoints were dropped: %s", lost, damaged)
                self._writer.submit(removal)
            except Gone:
                self._counters.add("load_failed")
            finally:
                if base is not None and parent is not None:
                    parent.release()
                    self._nodes.unpin(base)
        return None

    def _base(self, tokens: Tokens, keys: list[bytes]) -> Node | None:
        """The deepest ancestor on the device, pinned."""
        for key in reversed(keys[:-1]):
            node = self._nodes.by_key.get(key)
            if node is not None and node.stands_for(tokens):
                node.pins += 1
                return node
        return None

    def _read(self, node: Node, tokens: Tokens, parent: Checkpoint | None) -> Loaded:
        start = time.perf_counter()
        with self._reading.read(node, tokens, 0 if parent is None else parent.m) as (exported, loaded):
            try:
                checkpoint = self._import(exported, parent)
            except TransferError as error:
                raise Damaged(node, False, str(error)) from error
        self._counters.add("bytes_read", loaded.disk)
        self._counters.add("bytes_from_host", loaded.host)
        self._costs.loaded(loaded.disk, loaded.host, time.perf_counter() - start)
        with self._nodes.lock:
            self._nodes.enter_device(node, checkpoint, own_copy(tokens, node.m))
        return loaded

    def _import(self, exported: Exported, parent: Checkpoint | None) -> Checkpoint:
        while True:
            try:
                return self._engine.import_(exported, parent)
            except PoolFull as full:
                if not self._relieve(full):
                    raise


def own_copy(tokens: Tokens, m: int) -> Tokens:
    """The first m ids, which nobody changes any more: of an array that nobody writes to a view, unless it would keep much more alive."""
    if tokens.base is None and not tokens.flags.writeable and len(tokens) <= 2 * m:
        return tokens[:m]
    copy = np.array(tokens[:m], np.int32)
    copy.flags.writeable = False
    return copy
