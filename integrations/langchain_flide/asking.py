"""Asking under a deadline and a circuit breaker: either an answer or a failure with a closed status, never an exception of the network."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from langchain_core.runnables import RunnableConfig

from langchain_flide.connection import Inquiry
from langchain_flide.decision_model import FlideDecisionModel
from langchain_flide.errors import FlideAuthenticationError, FlideLangChainError
from langchain_flide.responses import FlideResponse
from langchain_flide.verdicts import Status

log = logging.getLogger("langchain_flide")
OUTAGES = frozenset({"unavailable", "timeout", "overloaded"})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer."""

    status: Status
    message: str


class Breaker:
    """Counts failures in a row. Open: nothing is asked. Half open, after `seconds`: one request probes. Thread-safe."""

    def __init__(self, failures: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures, self.seconds, self._clock = failures, seconds, clock
        self._count = 0
        self._until: float | None = None
        self._lock = threading.Lock()

    def allows(self) -> bool:
        with self._lock:
            if self._until is None:
                return True
            if self._clock() < self._until:
                return False
            # This one probes; others wait until it is back.
            self._until = self._clock() + self.seconds
            return True

    def succeeded(self) -> None:
        with self._lock:
            self._count, self._until = 0, None

    def failed(self, retry_after: float | None) -> bool:
        """True when this failure opens the circuit."""
        with self._lock:
            self._count += 1
            was_open = self._until is not None
            if retry_after is not None:
                self._until = self._clock() + retry_after
            elif self._count >= self.failures:
                self._until = self._clock() + self.seconds
            return self._until is not None and not was_open


class Asker:
    """A decision model with a deadline and a breaker. Shared by all threads of one agent."""

    def __init__(self, decisions: FlideDecisionModel, timeout: float, breaker: tuple[int, float]) -> None:
        self.decisions, self.timeout = decisions, timeout
        self.breaker = Breaker(*breaker)
        self._answered = False

    def ask(self, inquiry: Inquiry, config: RunnableConfig | None = None) -> FlideResponse | Failure:
        if not self.breaker.allows():
            return Failure("unavailable", "circuit open")
        try:
            return self._good(self.decisions.ask(inquiry, config, self.timeout))
        except FlideLangChainError as e:
            return self._bad(e)

    async def aask(self, inquiry: Inquiry, config: RunnableConfig | None = None) -> FlideResponse | Failure:
        if not self.breaker.allows():
            return Failure("unavailable", "circuit open")
        try:
            return self._good(await self.decisions.aask(inquiry, config, self.timeout))
        except FlideLangChainError as e:
            return self._bad(e)

    def _good(self, reply: FlideResponse) -> FlideResponse:
        self._answered = True
        self.breaker.succeeded()
        return reply

    def _bad(self, error: FlideLangChainError) -> Failure:
        if isinstance(error, FlideAuthenticationError) and not self._answered:
            raise error  # a key that never worked is a mistake in the set-up, not an outage
        status: Status = error.status  # type: ignore[assignment]
        if status in OUTAGES:
            if self.breaker.failed(error.retry_after):
                log.warning("no decisions for now: %s (%s)", type(error).__name__, status)
        else:
            self.breaker.succeeded()  # it answers
            log.error("the service refused a decision: %s", error)
        return Failure(status, str(error))
