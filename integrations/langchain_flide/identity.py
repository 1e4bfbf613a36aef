"""Which session a decision belongs to.

A session's name is a hint where to look first; what is reused is decided by content. Thread ids stay the same when a thread is forked or
its past is edited, and the namespace of a graph's node has new uuids at every visit, so only its stable part is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from langchain_core.runnables import RunnableConfig

SessionOf = str | Callable[[RunnableConfig], str | None] | None


def session_of(config: RunnableConfig, session: SessionOf, namespace: str) -> str | None:
    """The session's id: `session` if given, else configurable.flide_session, else one of thread and sub-agent; None without any."""
    if callable(session):
        session = session(config)
    configurable: dict[str, Any] = config.get("configurable") or {}
    if chosen := session or configurable.get("flide_session"):
        return str(chosen).encode("utf-8", "replace").decode()  # it becomes part of a URL
    thread = configurable.get("thread_id")
    if thread is None:
        return None
    return hashed("lc", namespace, str(thread), stable_namespace(str(configurable.get("checkpoint_ns") or "")))


def stable_namespace(checkpoint_ns: str) -> str:
    """The sub-agent of `sub:uuid|leaf:uuid`: without the last part, which is the current node, and without the uuids."""
    return "|".join(part.split(":", 1)[0] for part in checkpoint_ns.split("|")[:-1])


def anonymous(namespace: str, first: dict[str, Any] | None) -> str:
    """A session for steps that no thread names: those with the same first message meet in it."""
    return hashed("anon", namespace, repr(sorted((first or {}).items())))


def hashed(kind: str, *parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return f"{kind}-{digest.hexdigest()[:40]}"
