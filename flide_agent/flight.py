"""A round on the device while the next one is made ready: when to take it, and what is known until its answers are there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from flide_agent.line import Item

LEAD = 0.003
"""Seconds before a round's expected end at which the next is taken, at least: planning and launching it take about so long."""
LOOK, LONGEST_LOOK = 0.0005, 0.002
"""Seconds between looks whether it ended sooner than expected, or a full round waits: an eighth of what is left, between these. Each
look takes the interpreter away from those who read requests."""


class Ticket(Protocol):
    """A submitted round."""

    def done(self) -> bool: ...


@dataclass(slots=True)
class Flight:
    """expected: seconds on the device; 0: unknown. began: when it could start, which for one behind another is that one's end."""

    items: list[Item]
    ticket: Ticket
    expected: float
    began: float = field(default_factory=time.perf_counter)

    def wait_for_turn(self, lead: float = LEAD, full: Callable[[], bool] = lambda: False) -> None:
        """Until `lead` seconds before the round's expected end, or a full round waits. Taking the next any sooner would leave those
        outside who come meanwhile."""
        until = self.began + self.expected - lead
        while not self.ticket.done() and not full():
            left = until - time.perf_counter()
            if left <= 0:
                return
            time.sleep(min(left, max(LOOK, min(left / 8, LONGEST_LOOK))))
