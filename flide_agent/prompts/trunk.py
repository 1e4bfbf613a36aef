"""What prompts hand to sessions and the engine: blocks, trunks, branches, and where a trunk's checkpoints are saved."""

from __future__ import annotations

from dataclasses import dataclass

from flide_agent.prompts.encoder import Tokens

GRID = 64
_GROWTH = 8


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens (int32 [n]) of tool schemas or of one message. escaped: its text spells an added token."""

    tokens: Tokens
    escaped: bool


@dataclass(frozen=True, slots=True)
class Trunk:
    """The tokens that all questions of a request share, from the chat frame's opening on.

    tokens: int32 [n]. ends: how many tokens end with the frame's opening, then with each block (a string or JSON state is one block).
    saves: ascending positive multiples of 64 at most n, where checkpoints are worth keeping.
    escaped_blocks: which blocks (0 is the first after the frame's opening) spell an added token.
    """

    tokens: Tokens
    ends: tuple[int, ...]
    saves: tuple[int, ...]
    escaped_blocks: tuple[int, ...] = ()

    @property
    def escaped(self) -> bool:
        return bool(self.escaped_blocks)


@dataclass(frozen=True, slots=True)
class Branch:
    """The tokens (int32 [n]) of one question with the frame's closing; labels: token ids in the order of its lines.

    The lines are options, levels, or (yes, no). order: which option of the question stands at each label; () where they stand as asked.
    The answer is read at the last token.
    """

    tokens: Tokens
    labels: tuple[int, ...]
    escaped: bool
    order: tuple[int, ...] = ()


def history_saves(length: int, prefix: int) -> tuple[int, ...]:
    """Saves of a transcript of `length` tokens, `prefix` of which are the system-and-tools prefix: the last grid position of either.

    A closed block never changes, so a history can be saved up to its very end.
    """
    return tuple(sorted({end // GRID * GRID for end in (prefix, length) if end >= GRID}))


def state_saves(length: int) -> tuple[int, ...]:
    """Saves of a string or JSON state of `length` trunk tokens: the last grid position that growth leaves alone.

    What follows the end of a growing text changes its last few tokens (at most 4 measured), hence 8 are kept clear.
    """
    position = (length - _GROWTH) // GRID * GRID
    return (position,) if position > 0 else ()
