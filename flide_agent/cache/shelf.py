"""A store's directory, opened without an engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lmdb
import msgspec

from flide_agent.errors import NotFound
from flide_agent.sessions.records import SessionRecord, decode_session, session_key
from flide_agent.store import identity as ids
from flide_agent.store.directory import claim
from flide_agent.store.errors import StoreError
from flide_agent.store.files import Files
from flide_agent.store.index import DamagedIndex, Index, NodeRecord
from flide_agent.store.nodes import decode_record
from flide_agent.store.recover import Identity


@dataclass(frozen=True, slots=True)
class Shelf:
    """path: the directory. identity: of the model and prompts it was last used with, None when it never was."""

    path: Path
    index: Index
    files: Files
    secret: bytes
    identity: Identity | None

    @property
    def own(self) -> bytes:
        """What keys and records of the last used model carry; b"" when there was none."""
        return b"" if self.identity is None else ids.identity(self.identity, self.identity.prompts_digest)

    def share_key(self, tenant: str) -> bytes:
        return ids.tenant_key(self.secret, tenant)

    def nodes(self) -> dict[bytes, NodeRecord]:
        """All checkpoint records that can be read, by key."""
        out: dict[bytes, NodeRecord] = {}
        for key, value in self.index.scan("node"):
            with contextlib.suppress(msgspec.MsgspecError):
                out[key] = decode_record(value)
        return out

    def nodes_of(self, key: bytes) -> NodeRecord | None:
        """One record as it is now."""
        value = self.index.read("node", key)
        with contextlib.suppress(msgspec.MsgspecError):
            return None if value is None else decode_record(value)
        return None

    def sessions(self, tenant: bytes = b"") -> dict[bytes, SessionRecord]:
        """By place (tenant id and session key); of one tenant (its id) or all."""
        found = ((place, decode_session(value)) for place, value in self.index.scan("session", tenant))
        return {place: record for place, record in found if record is not None}

    def session(self, tenant: str, name: str) -> tuple[bytes, SessionRecord]:
        """Its key and record. Raises NotFound."""
        share_key = self.share_key(tenant)
        key = session_key(share_key, name)
        value = self.index.read("session", ids.tenant_id(share_key) + key)
        record = None if value is None else decode_session(value)
        if record is None:
            raise NotFound(f"no session of this id in {self.path} for tenant {tenant!r}")
        return key, record


@contextlib.contextmanager
def opened(path: Path, *, write: bool) -> Iterator[Shelf]:
    """Look into a directory, or with `write` take it. Raises StoreError, and StoreBusy naming the process that has it."""
    if not (path / "index" / "data.mdb").exists():
        raise StoreError(f"there is no store in {path}; name its directory with --store")
    with contextlib.ExitStack() as stack:
        if write:
            owner, _ = claim(path, force=False)
            stack.callback(owner.release)
        files = Files(path / "objects")
        try:
            index = Index(path / "index", files, readonly=not write)
            stack.callback(index.close)
            secret, raw = index.read("meta", b"secret"), index.read("meta", b"identity")
        except (lmdb.Error, DamagedIndex, OSError) as error:
            raise StoreError(f"the index in {path} cannot be read: {error}; the next server to start moves it aside") from error
        if secret is None:
            raise StoreError(f"the index in {path} has lost its secret; remove the store directory")
        try:
            identity = None if raw is None else msgspec.json.decode(raw, type=Identity)
        except msgspec.MsgspecError:
            identity = None
        yield Shelf(path, index, files, secret, identity)
