"""Sessions as clients see them: what the session routes and `LocalService` return. Store work runs off the event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from flide_agent.asks import Opening, check_session_id
from flide_agent.decide import Decider
from flide_agent.errors import Unavailable
from flide_agent.store.keep import FORGET_WAIT, REFUSED

if TYPE_CHECKING:
    from flide_agent.sessions import SessionInfo


def view(info: SessionInfo, *, whole: bool = False) -> dict[str, Any]:
    """whole: with the steps and their checkpoints."""
    out: dict[str, Any] = msgspec.to_builtins(info)
    if not whole:
        del out["steps"], out["bytes"]
    return out


async def open_session(decider: Decider, tenant: str, opening: Opening) -> dict[str, Any]:
    """Open a session, or give back the one that has this id. Raises Overloaded when the tenant may have no more."""

    def work() -> SessionInfo:
        new = decider.retention.check_opening(tenant, opening.id)
        info = decider.sessions.open(tenant, opening.id, opening.metadata, opening.tools)
        if new:
            decider.retention.opened(tenant)
        return info

    if opening.id is None:
        return view(await decider.in_thread(work))
    async with decider.session_lock(tenant, opening.id):
        return view(await decider.in_thread(work))


async def page(decider: Decider, tenant: str, limit: int = 100, cursor: str | None = None) -> dict[str, Any]:
    """One page of the tenant's sessions; `cursor` of the reply is None on the last."""
    found = await decider.in_thread(partial(decider.sessions.list, tenant, limit=limit, cursor=cursor))
    return {"sessions": [view(info) for info in found.sessions], "cursor": found.cursor}


async def session(decider: Decider, tenant: str, session: str) -> dict[str, Any]:
    """One session with its steps and checkpoints. Raises NotFound."""
    return view(await decider.in_thread(partial(decider.sessions.get, tenant, check_session_id(session))), whole=True)


async def fork(decider: Decider, tenant: str, session: str, opening: Opening) -> dict[str, Any]:
    """A second session with everything that this one has. Raises NotFound, Conflict when its id is taken, Overloaded."""

    def work() -> SessionInfo:
        decider.retention.check(tenant)
        info = decider.sessions.fork(tenant, session, opening.id, opening.metadata)
        decider.retention.opened(tenant)
        return info

    async with decider.session_lock(tenant, check_session_id(session)):
        return view(await decider.in_thread(work))


async def delete(decider: Decider, tenant: str, session: str) -> dict[str, Any]:
    """Remove a session and what only it holds. Raises NotFound, Unavailable while the disk refuses to record it."""
    async with decider.session_lock(tenant, check_session_id(session)):
        deletion = await decider.in_thread(partial(decider.sessions.deleting, tenant, session))
        try:  # without a thread: a few that wait for the disk would hold up everybody's steps
            gone = await asyncio.wait_for(asyncio.wrap_future(deletion), FORGET_WAIT)
        except TimeoutError:  # it is gone from memory, and its files may still be there
            raise Unavailable(REFUSED, retry_after=5.0) from None
    decider.retention.deleted(tenant)
    return {"id": session, "deleted": True, "checkpoints": gone}
