"""A session in memory: its tree of blocks, its heads, and the index rows that are not on stable storage yet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from flide_agent.messages import Message
from flide_agent.sessions.history import Block, History, assemble, message_block, moved, next_id, root_block
from flide_agent.sessions.places import Habit
from flide_agent.sessions.records import SessionRecord, StepRecord, encode, encode_block, load_blocks, load_steps
from flide_agent.store.index import Index, Write
from flide_agent.store.jobs import Rows

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts

Reason = Literal["new", "append", "repeat", "fork", "edit", "truncate", "tools"]
RowKey = tuple[str, bytes]


@dataclass(slots=True, eq=False)
class LiveSession:
    """key: its 16 bytes in the index; place: its key in the session table. steps: by head, last answered last.

    current: the history answered last, or that of no messages. habits: where its histories are left.
    unsaved: rows not known to be durable; unsent: those of them of which the index can have nothing; told: those that it is being
    told. saved: durable heads. job: how the store's writer gets at them. These are changed under `rows_lock`, all else under `lock`.
    """

    key: bytes
    place: bytes
    id: str
    created: float
    updated: float
    metadata: bytes
    current: History
    number: int = 0
    restored: bool = False
    blocks: dict[bytes, Block] = field(default_factory=dict)
    steps: dict[bytes, StepRecord] = field(default_factory=dict)
    unsaved: dict[RowKey, bytes | None] = field(default_factory=dict)
    unsent: set[RowKey] = field(default_factory=set)
    told: frozenset[RowKey] = frozenset()
    saved: set[bytes] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)
    deleted: bool = False
    rows_lock: threading.Lock = field(default_factory=threading.Lock)
    habits: tuple[Habit, ...] = ()
    job: Rows = field(init=False)

    def __post_init__(self) -> None:
        self.job = Rows(self.rows, self.rows_done)

    # --- histories ---

    def blocks_of(self, head: bytes) -> list[Block] | None:
        """The blocks of a history, root first; None when one is missing."""
        if head == self.current.id:
            return list(self.current.blocks)
        out: list[Block] = []
        while head:
            block = self.blocks.get(head)
            if block is None:
                return None
            out.append(block)
            head = block.parent
        return out[::-1]

    def knows(self, head: bytes) -> bool:
        """`append` may follow it: a kept step, the current history, or one of no messages."""
        block = self.blocks.get(head)
        return head in self.steps or head == self.current.id or (block is not None and not block.parent)

    def whole(self, prompts: Prompts, root: Block, messages: Sequence[Message]) -> History:
        """The history of these messages, tokenising only what no history of this session has in that place."""
        return self._continued(prompts, [root], messages)

    def following(self, prompts: Prompts, base: Sequence[Block], root: Block, messages: Sequence[Message]) -> History:
        """The history `base`, under `root`'s tools, and these messages."""
        blocks = list(base)
        if blocks[0].id != root.id:
            blocks = [root]
            for block in base[1:]:
                blocks.append(self.blocks.get(next_id(blocks[-1].id, block.digest)) or moved(block, blocks[-1]))
        return self._continued(prompts, blocks, messages)

    def _continued(self, prompts: Prompts, blocks: list[Block], messages: Sequence[Message]) -> History:
        last = self.current.blocks
        for message in messages:
            previous, index, digest = blocks[-1], len(blocks), message.digest()
            there = last[index] if index < len(last) and last[index].digest == digest else None
            if there is not None and there.parent == previous.id:
                blocks.append(there)
                continue
            block = self.blocks.get(next_id(previous.id, digest))
            if block is None and there is not None:
                block = moved(there, previous)
            blocks.append(block or message_block(prompts, previous, index, message, digest))
        return assemble(prompts, blocks, self.current)

    def reason(self, history: History, follows: bytes | None) -> Reason:
        """How a history relates to what was. follows: the head given with `append`."""
        current = self.current
        if not self.steps:
            return "new"
        if history.id in self.steps:
            return "repeat"
        if history.blocks[0].id != current.blocks[0].id:
            return "tools"
        if current.starts(history):
            return "append"
        if history.starts(current):
            return "truncate"
        return "fork" if follows is not None and follows != current.id else "edit"

    # --- changes and rows ---

    def take(self, history: History, step: StepRecord, kept: int) -> None:
        """The step was answered: it is the last one. Heads beyond `kept`, and blocks that only they need, are dropped."""
        new = [b for b in history.blocks if b.id not in self.blocks]
        self.blocks.update((b.id, b) for b in new)
        head = history.id
        self.steps.pop(head, None)
        self.steps[head] = step
        self.current, self.updated, self.restored = history, step.at, False
        self.number = max(self.number, step.number)
        rows: dict[RowKey, bytes | None] = {("block", self.key + b.id): encode_block(b) for b in new}
        rows["head", self.key + head] = encode(step)
        if len(self.steps) > kept:
            rows |= self._drop_oldest(len(self.steps) - kept)
        self.owe(rows)

    def _drop_oldest(self, count: int) -> dict[RowKey, bytes | None]:
        heads = list(self.steps)[:count]
        for head in heads:
            del self.steps[head]
        needed = {b.id for b in self.current.blocks}
        for head in self.steps:
            at = head
            while at and at not in needed:
                needed.add(at)
                at = self.blocks[at].parent
        dropped = [b for b in self.blocks if b not in needed]
        for b in dropped:
            del self.blocks[b]
        with self.rows_lock:
            self.saved.difference_update(heads)
        gone: dict[RowKey, bytes | None] = {("head", self.key + head): None for head in heads}
        return gone | {("block", self.key + b): None for b in dropped}

    def everything(self) -> dict[RowKey, bytes | None]:
        """Rows of all that it has, but the session's own."""
        rows: dict[RowKey, bytes | None] = {("block", self.key + b.id): encode_block(b) for b in self.blocks.values()}
        return rows | {("head", self.key + head): encode(step) for head, step in self.steps.items()}

    def owe(self, rows: dict[RowKey, bytes | None]) -> None:
        """Rows that the index has to get. One that is taken back before the index was told of it is forgotten."""
        with self.rows_lock:
            for at, value in rows.items():
                db, key = at
                if value is None and at in self.unsent and at not in self.told:
                    self.unsent.discard(at)
                    del self.unsaved[at]
                    continue
                if value is not None and at not in self.unsaved and not (db == "head" and key[16:] in self.saved):
                    self.unsent.add(at)
                self.unsaved[at] = value
                if db == "head":
                    self.saved.discard(key[16:])

    def owe_record(self, prompts_digest: str) -> None:
        """The session's own row, as it is now."""
        record = SessionRecord(
            self.id, self.created, self.updated, self.metadata, self.current.id, self.number, self.current.messages,
            len(self.current.tokens), self.current.blocks[0].tools, prompts_digest, self.habits,
        )  # fmt: skip
        self.owe({("session", self.place): encode(record)})

    def rows(self) -> list[Write]:
        """All that is not durable yet; nothing of a deleted session."""
        with self.rows_lock:
            if self.deleted:
                return []
            self.told = frozenset(self.unsaved)
            return [(db, key, value) for (db, key), value in self.unsaved.items()]

    def rows_done(self, rows: Sequence[Write], ok: bool) -> None:
        """ok: these are durable now, unless they changed meanwhile."""
        with self.rows_lock:
            self.told = frozenset()
            if not ok:
                return
            self.unsent.difference_update((db, key) for db, key, _ in rows)
            for db, key, value in rows:
                if (db, key) in self.unsaved and self.unsaved[db, key] is value:
                    del self.unsaved[db, key]
                    if db == "head" and value is not None:
                        self.saved.add(key[16:])


def load(
    index: Index, key: bytes, place: bytes, record: SessionRecord, prompts: Prompts, share_key: bytes, tools: Sequence[object]
) -> LiveSession:
    """A session from the index. Heads that lack a block are dropped; so are all when the tokenizer or wording changed."""
    steps, blocks = load_steps(index, key), load_blocks(index, key)
    root = root_block(prompts, share_key, tools)
    stale: dict[RowKey, bytes | None] = {}
    if record.prompts != prompts.digest:
        stale.update({("head", key + head): None for head in steps})
        stale.update({("block", key + b): None for b in blocks})
        stale["block", key + root.id] = encode_block(root)
        steps, blocks = {}, {}
    blocks[root.id] = root
    session = LiveSession(
        key, place, record.id, record.created, record.updated, record.metadata,
        assemble(prompts, [root], None), record.steps, True, blocks, steps, habits=record.habits,
    )  # fmt: skip
    for head in list(steps):
        if session.blocks_of(head) is None:
            del steps[head]
            stale["head", key + head] = None
    session.saved = set(steps)
    found = session.blocks_of(record.head)
    if found is not None:
        session.current = assemble(prompts, found, None)
    elif steps:
        last = session.blocks_of(next(reversed(steps)))
        assert last is not None
        session.current = assemble(prompts, last, None)
    session.unsaved |= stale
    return session
