"""What of a session is in the index, and how it is read back. All of it is checked: a record that fails counts as absent.

session: tenant (16) + session (16) -> SessionRecord. head: session (16) + head (16) -> StepRecord.
block: session (16) + id (16) -> BlockRecord. So each message is kept once for all heads that contain it.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import msgspec
import numpy as np

from flide_agent.messages import Message
from flide_agent.sessions.history import ID_BYTES, Block, next_id
from flide_agent.sessions.places import Habit
from flide_agent.store.identity import framed
from flide_agent.store.index import Index


class SessionRecord(msgspec.Struct, frozen=True, array_like=True):
    """prompts: digest of tokenizer and wording; blocks of another one hold other tokens and are not used."""

    id: str
    created: float
    updated: float
    metadata: bytes
    head: bytes
    steps: int
    messages: int
    tokens: int
    tools: bytes
    prompts: str
    habits: tuple[Habit, ...] = ()


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """A head. checkpoints: (m, key) of what the step started from and what it saved."""

    number: int
    follows: bytes
    reason: str
    at: float
    messages: int
    tokens: int
    m: int
    checkpoints: tuple[tuple[int, bytes], ...]


class BlockRecord(msgspec.Struct, frozen=True, array_like=True):
    """crc: of all other fields, since LMDB keeps none."""

    parent: bytes
    digest: bytes
    tokens: bytes
    escaped: bool
    system: bool
    message: Message | None
    tools: bytes
    crc: int


_encoder = msgspec.msgpack.Encoder()
_session = msgspec.msgpack.Decoder(SessionRecord)
_step = msgspec.msgpack.Decoder(StepRecord)
_block = msgspec.msgpack.Decoder(BlockRecord)


def session_key(share_key: bytes, session_id: str) -> bytes:
    """16 bytes for a session of a tenant; any text of any length gives a valid key."""
    return hashlib.sha256(framed("session", share_key, session_id)).digest()[:ID_BYTES]


def encode(record: SessionRecord | StepRecord) -> bytes:
    return _encoder.encode(record)


def encode_block(block: Block) -> bytes:
    tokens = np.ascontiguousarray(block.tokens, "<u4").tobytes()
    return sealed(BlockRecord(block.parent, block.digest, tokens, block.escaped, block.system, block.message, block.tools, 0))


def sealed(record: BlockRecord) -> bytes:
    """The record with its checksum."""
    bare = _encoder.encode(msgspec.structs.replace(record, crc=0) if record.crc else record)
    return bare[:-1] + _encoder.encode(zlib.crc32(bare))  # the checksum is the last field, and 0 is one byte


def checked_block(own: bytes, value: bytes) -> BlockRecord | None:
    """A block's record, None when its checksum or id is wrong. own: its id."""
    record: BlockRecord | None = _decoded(_block, value)
    if record is None or zlib.crc32(_encoder.encode(msgspec.structs.replace(record, crc=0))) != record.crc:
        return None
    if record.parent and next_id(record.parent, record.digest) != own:
        return None
    return record


def decode_step(value: bytes) -> StepRecord | None:
    record: StepRecord | None = _decoded(_step, value)
    return record


def decode_session(value: bytes) -> SessionRecord | None:
    record: SessionRecord | None = _decoded(_session, value)
    return record


def load_steps(index: Index, session: bytes) -> dict[bytes, StepRecord]:
    """By head, in the order they were answered."""
    found = [(key[ID_BYTES:], decode_step(value)) for key, value in index.scan("head", session)]
    steps = {head: step for head, step in found if step is not None}
    return dict(sorted(steps.items(), key=lambda item: item[1].at))


def load_blocks(index: Index, session: bytes) -> dict[bytes, Block]:
    """Every block whose checksum and id are right."""
    out: dict[bytes, Block] = {}
    for key, value in index.scan("block", session):
        own = key[ID_BYTES:]
        record = checked_block(own, value)
        if record is None:
            continue
        tokens = np.frombuffer(record.tokens, "<u4").astype(np.int32)
        out[own] = Block(
            own, record.parent, record.digest, tokens, record.escaped, record.system, record.message, record.tools
        )  # fmt: skip
    return out


def _decoded(decoder: Any, value: bytes) -> Any:
    try:
        return decoder.decode(value)
    except msgspec.MsgspecError:
        return None
