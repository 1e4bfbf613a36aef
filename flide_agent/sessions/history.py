"""A history as blocks that know their predecessor, and the ids (heads) that name histories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from flide_engine.segments import Tokens

from flide_agent.messages import Message
from flide_agent.prompts.wording import PREFIX_ROLES
from flide_agent.store.identity import framed

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts

ID_BYTES = 16
NO_TOKENS: Tokens = np.zeros(0, np.int32)


def root_id(share_key: bytes, tools: bytes) -> bytes:
    """The id of the history of no messages under these tool schemas (JSON). Keyed by tenant: an id tells nobody the text."""
    return hashlib.sha256(framed("head", share_key, tools)).digest()[:ID_BYTES]


def next_id(previous: bytes, digest: bytes) -> bytes:
    """The id of a history and one more message: a chain, so that equal ids mean equal histories, whenever they are made."""
    return hashlib.sha256(previous + digest).digest()[:ID_BYTES]


def tools_json(tools: Sequence[object]) -> bytes:
    """Tool schemas as they are told apart and kept; b"" for none. Key order counts, since it shows in the prompt."""
    return json.dumps(list(tools), ensure_ascii=True, separators=(",", ":")).encode() if tools else b""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The last message of the history that `id` names; parent: that history without it. The root stands for frame and tools.

    digest: of the message (root: b""). tokens: int32 [n], its own; empty when the tokenizer needs whole histories, which are
    then made again from `message`. system: it belongs to the system-and-tools prefix if all before it do. tools: the root's.
    """

    id: bytes
    parent: bytes
    digest: bytes
    tokens: Tokens
    escaped: bool
    system: bool
    message: Message | None = None
    tools: bytes = b""


@dataclass(frozen=True, slots=True)
class History:
    """blocks: root first. tokens: int32 [n], frame and all blocks. ends: token end of the frame and of each block.
    prefix: token end of the tools and the system messages it begins with, 0 without any. escaped: some text was escaped."""

    blocks: tuple[Block, ...]
    tokens: Tokens
    ends: tuple[int, ...]
    prefix: int
    escaped: bool

    @property
    def id(self) -> bytes:
        return self.blocks[-1].id

    @property
    def messages(self) -> int:
        return len(self.blocks) - 1

    def starts(self, other: History) -> bool:
        """Every message of this one is, in its place, in the other, under the same tools."""
        n = len(self.blocks)
        return len(other.blocks) >= n and other.blocks[n - 1].id == self.id


def root_block(prompts: Prompts, share_key: bytes, tools: Sequence[object]) -> Block:
    """Frame and tool schemas. Raises InputError for tools that are no JSON."""
    text = tools_json(tools)
    tokens, escaped = NO_TOKENS, False
    if prompts.incremental:
        tokens = prompts.frame_open
        if tools:
            block = prompts.tools(tools)
            tokens, escaped = np.concatenate([tokens, block.tokens]), block.escaped
    return Block(root_id(share_key, text), b"", b"", tokens, escaped, True, None, text)


def message_block(prompts: Prompts, previous: Block, index: int, message: Message, digest: bytes) -> Block:
    """The block of message number `index` (from 1) after `previous`."""
    own, system = next_id(previous.id, digest), message.role in PREFIX_ROLES
    if not prompts.incremental:
        return Block(own, previous.id, digest, NO_TOKENS, False, system, message)
    block = prompts.message(index, message)
    return Block(own, previous.id, digest, block.tokens, block.escaped, system)


def moved(block: Block, previous: Block) -> Block:
    """The same message, at the same index, after another history."""
    own = next_id(previous.id, block.digest)
    return Block(own, previous.id, block.digest, block.tokens, block.escaped, block.system, block.message)


def assemble(prompts: Prompts, blocks: Sequence[Block], base: History | None) -> History:
    """The trunk of the blocks. base: a history whose tokens are used as far as it is a beginning of this one."""
    root = blocks[0]
    prefix = lead = 1 if root.tools else 0
    for block in blocks[1:]:
        if not block.system:
            break
        prefix += 1
    if not prompts.incremental:
        tools = json.loads(root.tools) if root.tools else []
        trunk = prompts.history(tools, [b.message for b in blocks[1:] if b.message is not None])
        return History(tuple(blocks), trunk.tokens, trunk.ends, trunk.ends[prefix] if prefix else 0, trunk.escaped)
    if base is not None and len(base.blocks) <= len(blocks) and blocks[len(base.blocks) - 1].id == base.id:
        ends, rest, parts = list(base.ends), blocks[len(base.blocks) :], [base.tokens]
    else:
        frame = len(prompts.frame_open)
        ends, rest, parts = [frame, len(root.tokens)] if root.tools else [frame], blocks[1:], [root.tokens]
    for block in rest:
        ends.append(ends[-1] + len(block.tokens))
        parts.append(block.tokens)
    tokens = np.concatenate(parts)
    tokens.flags.writeable = False
    assert len(ends) == len(blocks) + lead
    escaped = any(b.escaped for b in blocks)
    return History(tuple(blocks), tokens, tuple(ends), ends[prefix] if prefix else 0, escaped)


def common_tokens(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    at = int(differ.argmax()) if n else 0
    return at if n and differ[at] else n
