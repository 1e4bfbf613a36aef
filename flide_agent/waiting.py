"""A request in the engine's line, as those see it who wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flide_engine.segments import Tokens

from flide_agent.line import Place, let_go

if TYPE_CHECKING:
    from flide_agent.reading import Reading
    from flide_agent.store import Found


@dataclass(slots=True)
class Waits:
    """A request in the engine's line. tokens: its trunk. found: the checkpoint that it starts from, pinned."""

    share_key: bytes
    tokens: Tokens
    found: Found | None
    place: Place

    @property
    def m(self) -> int:
        return 0 if self.found is None else self.found.m

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        self.place.left = True
        self.place.cancel()
        self.place.add_done_callback(let_go)
        self.release()

    def release(self) -> None:
        if self.found is not None:
            self.found.release()


@dataclass(slots=True)
class Ready:
    """A request that was read, in the engine's line."""

    reading: Reading
    waits: Waits

    @property
    def place(self) -> Place:
        return self.waits.place

    def give_up(self) -> None:
        self.waits.give_up()

    def release(self) -> None:
        self.waits.release()
