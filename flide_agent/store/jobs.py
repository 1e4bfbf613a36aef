"""What waits for the writer: checkpoints, rows, removals, and removals that have to wait for what is before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flide_engine.memory import Checkpoint
from flide_engine.segments import Tokens

from flide_agent.store.index import Write
from flide_agent.store.removal import Removal

if TYPE_CHECKING:
    from flide_agent.store.nodes import Node


class Put:
    """A checkpoint on its way to the disk; owns one reference. keys: identities of its trunk's grid positions, its own last."""

    __slots__ = ("checkpoint", "keys", "node", "tokens")

    def __init__(self, node: Node, checkpoint: Checkpoint, tokens: Tokens, keys: list[bytes]) -> None:
        self.node, self.tokens, self.keys = node, tokens, keys
        self.checkpoint: Checkpoint | None = checkpoint

    def claim(self) -> Checkpoint | None:
        """The reference, for the writer; None when the write was cancelled. Under the lock."""
        checkpoint, self.checkpoint = self.checkpoint, None
        return checkpoint

    def cancel(self) -> bool:
        """Give up the write and the reference; False when the writer has it already. Under the lock."""
        checkpoint = self.claim()
        if checkpoint is None:
            return False
        checkpoint.release()
        self.node.put = None
        return True


@dataclass(slots=True, eq=False)
class Rows:
    """Index rows that somebody has, read when their turn comes: what changed meanwhile goes with them, once.

    collect, done: called from the writer's thread. collect() gives all rows that are not on stable storage; done(rows, True) tells that
    these are, done(rows, False) that nothing of them is: they are collected again for the next commit.
    """

    collect: Callable[[], Sequence[Write]]
    done: Callable[[Sequence[Write], bool], None]


@dataclass(slots=True, eq=False)
class Task:
    """A removal that is worked out when everything before it is committed. applied: called when the index has it."""

    collect: Callable[[], Removal]
    applied: Callable[[], None] | None = None

    def removal(self) -> Removal:
        removal = self.collect()
        removal.applied = self.applied
        return removal


Job = Put | Rows | Removal | Task
