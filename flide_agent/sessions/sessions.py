"""Sessions: which history a step is about, how far it agrees with what is known, and what survives a crash."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec
from flide_engine.memory import Checkpoint

from flide_agent.errors import Conflict, HeadConflict, InvalidRequest, Unavailable
from flide_agent.sessions import records
from flide_agent.sessions.history import History, common_tokens, root_block, tools_json
from flide_agent.sessions.limits import checked, head_bytes, id_bytes, metadata_json
from flide_agent.sessions.listing import info_of, page_of
from flide_agent.sessions.live import LiveSession
from flide_agent.sessions.places import Habit, habit, learned, places, ranks
from flide_agent.sessions.registry import MAX_LIVE, MAX_UNSAVED, Registry
from flide_agent.sessions.step import Page, SessionInfo, Step
from flide_agent.store import CheckpointStore, Kind
from flide_agent.store.identity import tenant_id
from flide_agent.store.keep import FORGET_WAIT, REFUSED

if TYPE_CHECKING:
    from flide_agent.messages import Message
    from flide_agent.prompts import Prompts

log = logging.getLogger("flide_agent.sessions")

KEPT_STEPS = 256
"""Steps (heads) that a session keeps; older heads are unknown."""
MAX_TENANTS = 1024
"""Tenants whose habits are remembered for new sessions."""
LEAVING = ("edit", "truncate", "fork")
"""Reasons of steps that show where histories are left."""


class Sessions:
    """All sessions of all tenants, kept in the store's index. Thread-safe; the caller serves one session's steps in order.

    Tenants are separate: no method reaches another tenant's sessions or checkpoints. Ids are any text of 1 to 512 characters.
    Records are written behind, by the store's writer, after the checkpoints that they name.
    """

    def __init__(
        self,
        store: CheckpointStore,
        prompts: Prompts,
        *,
        kept_steps: int = KEPT_STEPS,
        max_live: int = MAX_LIVE,
        max_unsaved: int = MAX_UNSAVED,
    ) -> None:
        self._store, self._prompts = store, prompts
        self._kept = kept_steps
        self._registry = Registry(store, prompts, max_live, max_unsaved)
        self._habits: OrderedDict[bytes, tuple[Habit, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def share_key(self, tenant: str) -> bytes:
        """The tenant's namespace in the store, for requests outside sessions too."""
        return self._store.share_key(checked(tenant, "tenant"))

    def open(
        self, tenant: str, session_id: str | None = None, metadata: Any = None, tools: Sequence[object] | None = None
    ) -> SessionInfo:
        """Open a session. None makes an unguessable id. Its head is that of a history of no messages.

        A known id is given back as it is; raises Conflict when tools are given that are not those of its last history.
        metadata replaces what was there unless None. Raises InvalidRequest for an id or metadata over the limits.
        """
        share_key = self.share_key(tenant)
        session_id = secrets.token_urlsafe(18) if session_id is None else checked(session_id, "id")
        data = metadata_json(metadata)
        with self._registry.lock:
            session = self._registry.find(share_key, session_id)
            if session is None:
                session = self._registry.add(self._registry.new(share_key, session_id, tools or ()))
            elif tools is not None and tools_json(tools) != session.current.blocks[0].tools:
                raise Conflict("the session exists with other tools; give them with its next step instead")
        with session.lock:
            if metadata is not None:
                session.metadata = data
            self._registry.save(session)
            return info_of(session, self._store, steps=False)

    def begin(
        self,
        tenant: str,
        session_id: str,
        *,
        messages: Sequence[Message] | None = None,
        append: Sequence[Message] | None = None,
        head: str | None = None,
        tools: Sequence[object] | None = None,
    ) -> Step:
        """Work out a step; changes nothing until `commit`. An unknown session is opened by the commit.

        Exactly one of messages (the whole history) and append (what follows `head`; None: the session's current head).
        tools: None means those of the history continued, or of the session's last one. Only new messages are tokenised.
        Raises HeadConflict(current head) when `head` is unknown to this session (or the session is), InvalidRequest when
        both or neither of messages and append are given.
        """
        if (messages is None) == (append is None):
            raise InvalidRequest.at(("messages",), "give either messages or append")
        if messages is not None and head is not None:
            raise InvalidRequest.at(("head",), "head goes with append; messages are the whole history")
        share_key = self.share_key(tenant)
        with self._registry.lock:
            session = self._registry.find(share_key, checked(session_id, "session"))
        opens = session is None
        if session is None:
            if head is not None:
                raise HeadConflict("the session is unknown here; send messages", None)
            session = self._registry.new(share_key, session_id, tools or ())
        with session.lock:
            root = session.current.blocks[0]
            if tools is not None and tools_json(tools) != root.tools:
                root = root_block(self._prompts, share_key, tools)
                root = session.blocks.get(root.id, root)
            follows = None
            if append is None:
                history = session.whole(self._prompts, root, messages or ())
            else:
                follows = head_bytes(head, session)
                base = session.blocks_of(follows)
                if base is None or not session.knows(follows):
                    raise HeadConflict("this head is unknown to the session; send messages", session.current.id.hex())
                history = session.following(self._prompts, base, base[0] if tools is None else root, append)
            return self._step(tenant, share_key, session, history, follows, opens)

    def _step(
        self, tenant: str, share_key: bytes, session: LiveSession, history: History, follows: bytes | None, opens: bool
    ) -> Step:
        known = session.steps.get(history.id)
        common = 0
        if session.steps:
            extends = self._prompts.incremental and session.current.starts(history)
            common = len(session.current.tokens) if extends else common_tokens(session.current.tokens, history.tokens)
        if follows is None and session.steps:
            follows = session.current.id
        number = session.number + 1 if known is None else known.number
        reason = session.reason(history, follows)
        habits = session.habits if session.steps else self._habits.get(share_key, ())
        left = habit(session.current, common, number) if reason in LEAVING else None
        habits = learned(habits, left, number)
        junction = max(self._store.junction(share_key, history.tokens), common)
        return Step(
            tenant=tenant,
            session_id=session.id,
            share_key=share_key,
            head=history.id.hex(),
            follows=None if follows is None else follows.hex(),
            number=number,
            reason=reason,
            tokens=history.tokens,
            ends=history.ends,
            places=places(history, habits, junction),
            common=common,
            escaped=history.escaped,
            restored=session.restored,
            opens=opens,
            history=history,
            habits=habits,
        )

    def commit(self, step: Step, checkpoints: Mapping[int, Checkpoint], *, m: int = 0) -> None:
        """The step was answered: its history becomes the session's head, its checkpoints go to the store.

        checkpoints: by position, one reference each, which this takes over whatever happens. m: where the step was resumed.
        A session deleted since `begin` stays deleted.
        """
        share_key = step.share_key
        with self._registry.lock:
            session = self._registry.find(share_key, step.session_id)
            if session is None and step.opens:
                tools = json.loads(step.history.blocks[0].tools or b"[]")
                session = self._registry.add(self._registry.new(share_key, step.session_id, tools))
        if session is None:
            for checkpoint in checkpoints.values():
                checkpoint.release()
            return
        with session.lock:
            if session.deleted:
                for checkpoint in checkpoints.values():
                    checkpoint.release()
                return
            holder = session.key.hex()
            known = session.steps.get(step.history.id)
            kept = dict(known.checkpoints) if known is not None else {}
            if m:
                kept[m] = self._store.resumed(share_key, step.tokens, m, holder)
            for position, checkpoint in sorted(checkpoints.items()):
                kind = step.places.get(position, Kind.STEP)
                key = self._store.publish(share_key, step.tokens, checkpoint, holder, kind)
                if kind is not Kind.INNER:
                    kept[position] = key
            self._store.trace(share_key, step.tokens)
            record = records.StepRecord(
                known.number if known is not None else session.number + 1,
                bytes.fromhex(step.follows or "") if known is None else known.follows,
                step.reason, time.time(), step.messages, len(step.tokens), m, tuple(sorted(kept.items())),
            )  # fmt: skip
            session.take(step.history, record, self._kept)
            session.habits = step.habits
            self._learn(share_key, step.habits)
            self._store.rank(ranks(list(session.steps.values())))
            self._registry.save(session)

    def _learn(self, share_key: bytes, habits: tuple[Habit, ...]) -> None:
        """A tenant's new sessions start with the habits of its last one that had any."""
        if habits:
            with self._lock:
                self._habits[share_key] = tuple(msgspec.structs.replace(h, step=0) for h in habits)
                self._habits.move_to_end(share_key)
                if len(self._habits) > MAX_TENANTS:
                    self._habits.popitem(last=False)

    # --- sessions as such ---

    def get(self, tenant: str, session_id: str) -> SessionInfo:
        """A session with its kept steps and their checkpoints. Raises NotFound."""
        session = self._registry.known(self.share_key(tenant), session_id)
        with session.lock:
            return info_of(session, self._store, steps=True)

    def list(self, tenant: str, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Sessions of a tenant in a stable order of no meaning, `limit` (1..1000) at a time.

        Raises InvalidRequest for a bad cursor or limit.
        """
        place = tenant_id(self.share_key(tenant))
        after = None
        if cursor is not None:
            after = id_bytes(cursor)
            if after is None:
                raise _query("cursor", "not a cursor of this listing")
            after = place + after
        if not 1 <= limit <= 1000:
            raise _query("limit", "must be between 1 and 1000")
        return page_of(*self._registry.of_tenant(place, after, limit + 1), after, limit)

    def delete(self, tenant: str, session_id: str) -> int:
        """Remove a session and what only it holds, on disk too. Returns how many checkpoints went. Raises NotFound.

        Raises Unavailable when the disk refuses to record it within 10 s; it is gone for everybody then, but not yet for good.
        """
        try:
            return self.deleting(tenant, session_id).result(FORGET_WAIT)
        except TimeoutError:
            raise Unavailable(REFUSED, retry_after=5.0) from None

    def deleting(self, tenant: str, session_id: str) -> Future[int]:
        """`delete` for those who wait for the disk otherwise. Raises NotFound."""
        share_key = self.share_key(tenant)
        session = self._registry.known(share_key, session_id)
        self._registry.remove(session)
        return self._store.forgetting(share_key, session.key.hex())

    def fork(self, tenant: str, session_id: str, new_id: str | None = None, metadata: Any = None) -> SessionInfo:
        """A second session with the same heads, steps and checkpoints. Raises NotFound, Conflict when new_id exists."""
        share_key = self.share_key(tenant)
        source = self._registry.known(self.share_key(tenant), session_id)
        new_id = secrets.token_urlsafe(18) if new_id is None else checked(new_id, "id")
        data = metadata_json(metadata)
        with source.lock:
            with self._registry.lock:
                if self._registry.find(share_key, new_id) is not None:
                    raise Conflict("a session of this id exists already")
                copy = self._registry.new(share_key, new_id, ())
                copy.blocks, copy.steps = dict(source.blocks), dict(source.steps)
                copy.current, copy.number = source.current, source.number
                copy.metadata = source.metadata if metadata is None else data
                self._registry.add(copy)
            keys = {key for step in source.steps.values() for _, key in step.checkpoints}
        with copy.lock:
            self._store.hold(share_key, sorted(keys), copy.key.hex())
            copy.owe(copy.everything())
            self._registry.save(copy)
            return info_of(copy, self._store, steps=False)


def _query(field: str, msg: str) -> InvalidRequest:
    """A mistake in a parameter of the address."""
    return InvalidRequest([{"loc": ["query", field], "msg": msg, "type": "value_error"}])
