"""Metadata from pinned host memory, fetched by the pass itself: a graph that begins with it needs no copy in front."""

from __future__ import annotations

from typing import Any

from flide_engine.kernels.language import tl, triton

Tensor = Any
RING = 64
"""Entries of a mailbox. A pass must have fetched its block before the RING-th after it is posted."""
BLOCK = 1024
MOST_PROGRAMS = 64


def fetch(mailbox: Tensor, turn: Tensor, block: Tensor, entries: int) -> None:
    """block[:size] = the `size` int32 values at `address`, where (address, size) is mailbox[turn].

    mailbox: [RING, 2] int64, pinned. Addresses are those of pinned int32 tensors, multiples of 64 bytes as sizes are of 16 entries. turn:
    [1] int32 on the device, advanced by `advance`. entries: about what will be fetched; sizes the launch and nothing else.
    """
    _fetch[(max(1, min(MOST_PROGRAMS, entries // BLOCK)),)](mailbox, turn, block, BLOCK=BLOCK, num_warps=4)


def advance(turn: Tensor) -> None:
    """The next entry's turn, behind a fetch."""
    _advance[(1,)](turn, RING=RING, num_warps=1)


@triton.jit
def _fetch(mailbox, turn, block, BLOCK: tl.constexpr):
    """Programs take blocks in turn."""
    entry = mailbox + tl.load(turn) * 2
    source = tl.load(entry).to(tl.pointer_type(tl.int32))
    source = tl.multiple_of(source, 16)
    size = tl.multiple_of(tl.load(entry + 1).to(tl.int32), 16)
    for first in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        i = first + tl.arange(0, BLOCK)
        tl.store(block + i, tl.load(source + i, mask=i < size), mask=i < size)


@triton.jit
def _advance(turn, RING: tl.constexpr):
    tl.store(turn, (tl.load(turn) + 1) % RING)
