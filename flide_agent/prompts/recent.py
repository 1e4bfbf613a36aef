"""Trunks of long string states seen lately: a state that comes again is recognised by its content before it is tokenised."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from flide_agent.prompts.prompts import Prompts
from flide_agent.prompts.trunk import Trunk

SHORTEST = 1024
"""Characters below which looking up costs about what tokenising does."""
LONGEST_LAST = 1 << 16
"""Characters of the text that is held on to so that its hash need not be taken twice."""


class RecentStates:
    """Bounded by characters, least recently used first out. Thread-safe. One tenant's states never speed up another's."""

    def __init__(self, prompts: Prompts, characters: int = 1 << 24) -> None:
        """characters: total length of the states whose tokens are kept (4 bytes for each of about 4 characters)."""
        self._prompts, self._longest, self._room = prompts, characters, characters
        self._held: OrderedDict[bytes, tuple[int, Trunk]] = OrderedDict()
        self._lock = threading.Lock()
        self._last: tuple[str, str, bytes] = ("", "", b"")
        self.hits = self.misses = 0

    def trunk(self, tenant: str, state: object) -> Trunk:
        """The trunk of a System One state, as `Prompts.state` gives it."""
        if (key := self._key(tenant, state)) is None:
            return self._prompts.state(state)
        assert isinstance(state, str)
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
                self.hits += 1
                return found[1]
        made = self._prompts.state(state)
        made.tokens.flags.writeable = False  # many requests now stand on it
        with self._lock:
            self.misses += 1
            if key not in self._held:
                self._held[key] = (len(state), made)
                self._room -= len(state)
            while self._room < 0:
                _, (length, _) = self._held.popitem(last=False)
                self._room += length
        return made

    def knows(self, tenant: str, state: object) -> bool:
        """Whether `trunk` would find it: the time of a hash, 20 us for 30,000 characters."""
        key = self._key(tenant, state)
        with self._lock:
            return key is not None and key in self._held

    def _key(self, tenant: str, state: object) -> bytes | None:
        """None for what is not kept."""
        if not isinstance(state, str) or not SHORTEST <= len(state) <= self._longest:
            return None
        of, last, key = self._last  # a state is looked up more than once as a request goes its way
        if last is state and of == tenant:
            return key
        own = tenant.encode("utf-8", "surrogatepass")
        key = hashlib.sha256(len(own).to_bytes(4, "big") + own + state.encode("utf-8", "surrogatepass")).digest()
        if len(state) <= LONGEST_LAST:
            self._last = (tenant, state, key)
        return key
