"""How many sessions a tenant may have, and how long one lives unused."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from flide_agent.errors import NotFound, Overloaded

if TYPE_CHECKING:
    from flide_agent.sessions import Sessions

PAGE = 1000


class Retention:
    """Counts each tenant's sessions once, then keeps count. Thread-safe. limit: 0 for none."""

    def __init__(self, sessions: Sessions, limit: int) -> None:
        self._sessions, self.limit = sessions, limit
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def check(self, tenant: str) -> None:
        """Raises Overloaded when the tenant may open no further session. Reads the index on the first call."""
        if self.limit and self._count(tenant) >= self.limit:
            message = f"this tenant has {self.limit} sessions, the most that it may have; delete one"
            raise Overloaded(message, retry_after=30.0, reason="sessions")

    def check_opening(self, tenant: str, session: str | None) -> bool:
        """The same for a session that may exist already. Returns whether it is new."""
        if session is not None:
            try:
                self._sessions.get(tenant, session)
            except NotFound:
                pass
            else:
                return False
        self.check(tenant)
        return True

    def opened(self, tenant: str) -> None:
        self._add(tenant, 1)

    def deleted(self, tenant: str) -> None:
        self._add(tenant, -1)

    def expired(self, tenant: str, seconds: float) -> list[str]:
        """Ids of the tenant's sessions that nobody used for so long."""
        before, out = time.time() - seconds, []
        cursor: str | None = None
        while True:
            page = self._sessions.list(tenant, limit=PAGE, cursor=cursor)
            out += [info.id for info in page.sessions if info.updated < before]
            if (cursor := page.cursor) is None:
                return out

    def _count(self, tenant: str) -> int:
        with self._lock:
            if tenant not in self._counts:
                count, cursor = 0, None
                while True:
                    page = self._sessions.list(tenant, limit=PAGE, cursor=cursor)
                    count += len(page.sessions)
                    if (cursor := page.cursor) is None:
                        break
                self._counts[tenant] = count
            return self._counts[tenant]

    def _add(self, tenant: str, by: int) -> None:
        with self._lock:
            if tenant in self._counts:
                self._counts[tenant] += by
