"""Checkpoints back from the host tier and the disk: put together from the files of their chain, checked, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flide_engine.memory import Exported
from flide_engine.segments import GRID, Tokens

from flide_agent.store.files import Files
from flide_agent.store.host import Host
from flide_agent.store.index import Index
from flide_agent.store.nodes import Node, Nodes
from flide_agent.store.payload import PayloadError, decode, view
from flide_agent.store.removal import Removal, remove_state, remove_subtree

Tensors = dict[str, torch.Tensor]
TRANSIENT = frozenset({12, 23, 24})
"""ENOMEM, ENFILE, EMFILE: the file may well be sound."""


class Damaged(Exception):
    """A payload failed its checks. node: whose; whole: its span, not only its state."""

    def __init__(self, node: Node, whole: bool, reason: str) -> None:
        super().__init__(reason)
        self.node, self.whole = node, whole


class Gone(Exception):
    """It was removed while it was read, or could not be read this time: a miss like any other."""


@dataclass(slots=True)
class Loaded:
    """Bytes that came from the disk and from the host tier."""

    disk: int = 0
    host: int = 0


class Reading:
    """Thread-safe. What is read from disk is kept on the host when there is room."""

    def __init__(self, nodes: Nodes, index: Index, files: Files, host: Host) -> None:
        self.nodes, self.index, self.files, self.host = nodes, index, files, host

    @contextmanager
    def read(self, node: Node, tokens: Tokens, base: int) -> Iterator[tuple[Exported, Loaded]]:
        """A checkpoint's state and K/V of [base, m), valid inside the with block. base: a multiple of 64 below m.

        Raises Damaged or Gone.
        """
        with self.nodes.lock:
            path = self.nodes.path(node)
        if not path or not path[-1][1].state:
            raise Gone
        ids = self.index.read_many("ids", [n.key for n, _ in path])
        for (n, r), stored in zip(path, ids, strict=True):
            if stored is None or not np.array_equal(np.frombuffer(stored, "<u4"), tokens[r.since : r.m]):
                self._check(n, r.span, stored is None, "its token ids are not those asked for")
        record, loaded = path[-1][1], Loaded()
        with ExitStack() as used:
            file = self._files(used, loaded)
            manifest, tensors = file(node, record.state, "state", record.m, record.m)
            parts: list[Tensors] = []
            for n, r in path:
                if r.m > base:
                    _, kv = file(n, r.span, "kv", r.m, r.since)
                    skip = max(0, base - r.since) // GRID
                    parts.append({name: t[:, skip:] if skip else t for name, t in kv.items()})
            for name in parts[0]:
                same = [p[name] for p in parts]
                tensors[name] = same[0].contiguous() if len(same) == 1 else torch.cat(same, dim=1)
            shapes = {name: list(t.shape) for name, t in tensors.items()}
            yield Exported({**manifest, "since": base, "shapes": shapes}, tensors), loaded

    def _files(self, used: ExitStack, loaded: Loaded) -> Callable[[Node, str, str, int, int], tuple[dict[str, Any], Tensors]]:
        """Reads files one after the other, from the host if they are there."""

        def file(node: Node, name: str, kind: str, m: int, since: int) -> tuple[dict[str, Any], Tensors]:
            entry = self.host.borrow(name)
            try:
                if entry is not None:
                    used.callback(self.host.release, entry)
                    loaded.host += len(entry.data)
                    return view(entry.data, kind, node.key, m, since)
                return self._from_disk(used, loaded, node, name, kind, m, since)
            except (PayloadError, OSError) as error:
                transient = isinstance(error, OSError) and error.errno in TRANSIENT
                self._check(node, name, transient, f"{kind}: {error}")
                raise AssertionError from error

        return file

    def _from_disk(
        self, used: ExitStack, loaded: Loaded, node: Node, name: str, kind: str, m: int, since: int
    ) -> tuple[dict[str, Any], Tensors]:
        with self.files.get(name) as source:
            loaded.disk += source.size
            room = self.host.room(source.size)
            if room is None:
                return decode(source, kind, node.key, m, since)
            block, data = room
            try:
                got = decode(source, kind, node.key, m, since, data)
            except BaseException:
                self.host.give_back(block)
                raise
            used.callback(self.host.release, self.host.enter(name, node, block, data))
            with self.nodes.lock:
                if name not in self.nodes.named:  # removed while it was read
                    self.host.drop([name])
            return got

    def _check(self, node: Node, name: str, transient: bool, reason: str) -> None:
        """Raise Damaged when the record still names the file, else Gone: then it was removed while it was read."""
        with self.nodes.lock:
            record = node.record
            if transient or record is None or name not in (record.state, record.span):
                raise Gone(reason)
            raise Damaged(node, name == record.span, reason)

    def drop(self, damaged: Damaged) -> tuple[Removal, int]:
        """Take what is damaged off the tier. Returns the removal for the writer and how many checkpoints it costs."""
        removal = Removal()
        with self.nodes.lock:
            if damaged.whole:
                return removal, remove_subtree(self.nodes, damaged.node, removal)
            lost = int(damaged.node.on_disk)
            remove_state(self.nodes, damaged.node, removal)
            return removal, lost
