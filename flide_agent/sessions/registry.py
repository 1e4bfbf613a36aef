"""The sessions in memory: found there or in the index, let go of when they are many, written behind by the store's writer."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from flide_agent.errors import NotFound
from flide_agent.sessions import records
from flide_agent.sessions.history import assemble, root_block
from flide_agent.sessions.limits import checked
from flide_agent.sessions.live import LiveSession, load
from flide_agent.store import CheckpointStore
from flide_agent.store.identity import tenant_id
from flide_agent.store.index import Write
from flide_agent.store.jobs import Rows

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts

log = logging.getLogger("flide_agent.sessions")

MAX_LIVE = 1024
"""Sessions kept in memory beside those with unwritten rows; the others are read from the index when they go on."""
MAX_UNSAVED = 8192
"""Sessions with unwritten rows kept while the disk refuses; beyond it those used least recently are as the index has them."""


class Registry:
    """`find`, `new` and `add` want the lock held; the others take it."""

    def __init__(self, store: CheckpointStore, prompts: Prompts, max_live: int, max_unsaved: int) -> None:
        self.live: OrderedDict[bytes, LiveSession] = OrderedDict()
        self.lock = threading.Lock()
        self.max_live, self.max_unsaved = max_live, max_unsaved
        self._store, self._prompts = store, prompts
        self._leaving: Counter[bytes] = Counter()
        self._given_up = 0

    def known(self, share_key: bytes, session_id: str) -> LiveSession:
        """Raises NotFound."""
        with self.lock:
            session = self.find(share_key, checked(session_id, "session"))
        if session is None:
            raise NotFound("no such session")
        return session

    def find(self, share_key: bytes, session_id: str) -> LiveSession | None:
        """From memory, else from the index."""
        key = records.session_key(share_key, session_id)
        session = self.live.get(key)
        if session is not None:
            self.live.move_to_end(key)
            return session
        if key in self._leaving:
            return None
        place = tenant_id(share_key) + key
        value = self._store.index.read("session", place)
        record = None if value is None else records.decode_session(value)
        if record is None:
            return None
        tools = json.loads(record.tools) if record.tools else []
        session = self.add(load(self._store.index, key, place, record, self._prompts, share_key, tools))
        if session.unsaved:
            self._store.writer.submit(session.job)
        return session

    def new(self, share_key: bytes, session_id: str, tools: Sequence[object]) -> LiveSession:
        """One that nobody knows of until it is added."""
        key, now = records.session_key(share_key, session_id), time.time()
        root = root_block(self._prompts, share_key, tools)
        current = assemble(self._prompts, [root], None)
        place = tenant_id(share_key) + key
        session = LiveSession(key, place, session_id, now, now, b"null", current, blocks={root.id: root})
        session.owe({("block", key + root.id): records.encode_block(root)})
        return session

    def add(self, session: LiveSession) -> LiveSession:
        """Sessions with unwritten rows stay up to a bound, since the index does not have them yet."""
        self.live[session.key] = session
        for old in list(self.live.values()):
            if len(self.live) <= self.max_live:
                break
            if old is session:
                continue
            if not old.unsaved:
                del self.live[old.key]
            elif len(self.live) > self.max_live + self.max_unsaved:
                self._give_up(old)
        return session

    def _give_up(self, session: LiveSession) -> None:
        del self.live[session.key]
        session.deleted = True
        self._store.writer.queue.withdraw(session.job)
        if not self._given_up:
            log.warning("the disk refuses for so long that the steps of more than %d sessions are not kept", self.max_unsaved)
        self._given_up += 1

    def save(self, session: LiveSession) -> None:
        """Have its rows written. Under the session's lock."""
        session.owe_record(self._prompts.digest)
        self._store.writer.submit(session.job)

    def remove(self, session: LiveSession) -> None:
        """Gone for everybody at once, in the index once the writer gets there."""
        index = self._store.index
        with session.lock, self.lock:
            self.live.pop(session.key, None)
            session.deleted = True
            with session.rows_lock:
                owed = [(db, key) for db, key in session.unsaved if db != "session"]
            rows = [(db, key) for db in ("head", "block") for key, _ in index.scan(db, session.key)]
            rows += [*owed, *session.everything(), ("session", session.place)]
            gone: list[Write] = [(db, key, None) for db, key in dict.fromkeys(rows)]
            self._leaving[session.key] += 1
            self._store.writer.submit(Rows(lambda: gone, partial(self._left, session.key)))

    def _left(self, key: bytes, rows: Sequence[Write], ok: bool) -> None:
        """The index knows no more of a removed session."""
        if ok:
            with self.lock:
                self._leaving[key] -= 1
                if not self._leaving[key]:
                    del self._leaving[key]

    def of_tenant(self, place: bytes, after: bytes | None, limit: int) -> tuple[dict[bytes, LiveSession], dict[bytes, bytes]]:
        """(sessions in memory, records of at most `limit` in the index beyond `after`) of a tenant, by place."""
        with self.lock:
            live = {s.place: s for s in self.live.values() if s.place.startswith(place)}
            leaving = set(self._leaving)
            found = self._store.index.scan("session", place, after=after, limit=limit + len(leaving))
        return live, {p: value for p, value in found if p[16:] not in leaving}
