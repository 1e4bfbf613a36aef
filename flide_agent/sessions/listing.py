"""Sessions as they are listed."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flide_agent.sessions.live import LiveSession
from flide_agent.sessions.records import SessionRecord, decode_session
from flide_agent.sessions.step import Page, SessionInfo, StepInfo
from flide_agent.store import CheckpointInfo, CheckpointStore


def info_of(session: LiveSession, store: CheckpointStore | None, *, steps: bool) -> SessionInfo:
    """Under the session's lock. steps: with them and their checkpoints, as `store` has them."""
    listed: list[StepInfo] = []
    sizes: dict[bytes, int] = {}
    if steps and store is not None:
        with session.rows_lock:
            saved = set(session.saved)
        for head, step in session.steps.items():
            kept: list[CheckpointInfo] = []
            for m, key in step.checkpoints:
                kept.append(store.describe(key, m))
                sizes[key] = kept[-1].bytes
            durable = head in saved and all(c.durable for c in kept if c.tiers)
            listed.append(
                StepInfo(
                    step.number, head.hex(), step.follows.hex() or None, step.reason, step.at, step.messages, step.tokens, step.m,
                    durable, tuple(kept),
                )
            )  # fmt: skip
    return SessionInfo(
        id=session.id,
        head=session.current.id.hex(),
        created=session.created,
        updated=session.updated,
        step=session.number,
        messages=session.current.messages,
        tokens=len(session.current.tokens),
        metadata=json.loads(session.metadata),
        steps=tuple(sorted(listed, key=lambda s: s.number)),
        bytes=sum(sizes.values()),
    )


def _recorded(record: SessionRecord) -> SessionInfo:
    return SessionInfo(
        id=record.id,
        head=record.head.hex(),
        created=record.created,
        updated=record.updated,
        step=record.steps,
        messages=record.messages,
        tokens=record.tokens,
        metadata=json.loads(record.metadata),
    )


def page_of(live: Mapping[bytes, LiveSession], stored: Mapping[bytes, bytes], after: bytes | None, limit: int) -> Page:
    """Sessions by place beyond `after`: those in memory, which the index may not have yet, before those of the index."""
    places = sorted(p for p in {*live, *stored} if after is None or p > after)
    sessions: list[SessionInfo] = []
    for place in places[:limit]:
        if place in live:
            with live[place].lock:
                sessions.append(info_of(live[place], None, steps=False))
        elif (record := decode_session(stored[place])) is not None:
            sessions.append(_recorded(record))
    return Page(tuple(sessions), places[limit - 1][16:].hex() if len(places) > limit else None)
