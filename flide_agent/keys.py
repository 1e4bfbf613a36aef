"""API keys: which tenant a request belongs to. Keys are kept as SHA-256, compared in constant time, read again when they change.

A keys file has one key a line, `TENANT sha256:HEX`, and comments after `#`; `flide-agent keys new TENANT` makes both halves.
A tenant may have any number of keys, so that a new one is added before the old one goes.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from flide_agent.errors import StartError
from flide_agent.settings import Settings

log = logging.getLogger("flide_agent.keys")

ENVIRONMENT = "FLIDE_AGENT_API_KEYS"
"""`TENANT=KEY,TENANT=KEY`; a KEY is the key itself or sha256:HEX."""
TENANT = "default"
"""Everybody's tenant as long as there are no keys."""
OPERATOR = "operator"
"""The tenant whose keys read /metrics and /v1/stats, which tell of all tenants."""
SHORTEST = 16
"""Characters of a key: its hash is not salted or slow, so it has to be random."""
LOOK_SECONDS = 1.0
_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")

Hashes = tuple[tuple[bytes, str], ...]
"""(SHA-256 of a key, tenant)."""


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def check_tenant(tenant: str) -> str:
    """The name, if it is one. Raises ValueError."""
    if not _TENANT.fullmatch(tenant):
        raise ValueError(f"{tenant!r} is no tenant: 1 to 64 letters, digits, dots, dashes or underscores")
    return tenant


def new_key(tenant: str) -> tuple[str, str]:
    """A random key, and the line of a keys file that stands for it. Raises ValueError for what is no tenant."""
    check_tenant(tenant)
    key = "fl_" + secrets.token_urlsafe(32)
    return key, f"{tenant} sha256:{digest(key).hex()}"


def read_file(text: str) -> Hashes:
    """The keys of a file. Raises ValueError naming the line, never the key."""
    out: list[tuple[bytes, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        found = _HASH.fullmatch(words[1]) if len(words) == 2 else None
        if found is None or not _TENANT.fullmatch(words[0]):
            raise ValueError(f"line {number}: must be TENANT sha256:HEX (see `flide-agent keys new`)")
        out.append((bytes.fromhex(found[1]), words[0]))
    return _distinct(out)


def read_environment(text: str) -> Hashes:
    """The keys of FLIDE_AGENT_API_KEYS. Raises ValueError naming the entry, never the key."""
    out: list[tuple[bytes, str]] = []
    for number, entry in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        tenant, equals, key = entry.partition("=")
        if not equals or not _TENANT.fullmatch(tenant):
            raise ValueError(f"entry {number}: must be TENANT=KEY")
        if found := _HASH.fullmatch(key):
            out.append((bytes.fromhex(found[1]), tenant))
        elif len(key) < SHORTEST:
            raise ValueError(f"entry {number}: a key has at least {SHORTEST} characters; `flide-agent keys new` makes one")
        else:
            out.append((digest(key), tenant))
    return _distinct(out)


def _distinct(pairs: Iterable[tuple[bytes, str]]) -> Hashes:
    found: dict[bytes, str] = {}
    for key, tenant in pairs:
        if found.setdefault(key, tenant) != tenant:
            raise ValueError(f"one key stands for two tenants, {found[key]} and {tenant}")
    return tuple(found.items())


@functools.lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The host of a Host header, without port and brackets."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


class Keys:
    """The keys that are valid now. A file that changes is read again within a second; while it cannot be read, the keys of
    its last good reading hold, and the log says so."""

    def __init__(self, path: Path | None, environment: str = "") -> None:
        """Raises StartError when there is no key at all, or a source cannot be read."""
        self._path = path
        try:
            self._fixed = read_environment(environment)
        except ValueError as e:
            raise StartError(f"{ENVIRONMENT}: {e}") from e
        self._stamp: tuple[int, int, int] | None = None
        self._looked = 0.0
        self._hashes = self._fixed
        if path is not None:
            try:
                self._read(path)
            except (OSError, ValueError) as e:
                raise StartError(f"keys file {path}: {e}") from e
        if not self._hashes:
            raise StartError(f"no API keys: add one to {path or ENVIRONMENT} (see `flide-agent keys new`)")

    def tenant(self, authorization: str) -> str | None:
        """The tenant of an Authorization header `Bearer KEY`; None for anything that is no valid key."""
        self._look()
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        given, found = digest(key.strip()), None
        for known, tenant in self._hashes:  # all of them, always: the time must not tell which one matched
            if hmac.compare_digest(known, given):
                found = tenant
        return found

    @property
    def tenants(self) -> frozenset[str]:
        """Those who have a key now."""
        return frozenset(tenant for _, tenant in self._hashes)

    def _look(self) -> None:
        now = time.monotonic()
        if self._path is None or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            if _stamp(self._path) != self._stamp:
                self._read(self._path)
                log.info("read %d API keys again", len(self._hashes))
        except (OSError, ValueError) as e:
            log.error("the keys file cannot be read, the keys from before hold: %s", e)

    def _read(self, path: Path) -> None:
        stamp = _stamp(path)
        self._hashes = _distinct((*self._fixed, *read_file(path.read_text())))
        self._stamp = stamp


def _stamp(path: Path) -> tuple[int, int, int]:
    at = path.stat()
    return at.st_mtime_ns, at.st_size, at.st_ino


def keys_of(settings: Settings) -> Keys | None:
    """The keys that clients need, None when they need none. Raises StartError when that would let strangers in."""
    environment = os.environ.get(ENVIRONMENT, "")
    given = settings.keys_file is not None or bool(environment)
    if settings.auth == "off":
        if given:
            raise StartError("auth is off and there are API keys: they would not be asked for; take one of the two away")
        return None
    if given or settings.auth == "on":
        return Keys(settings.keys_file, environment)
    if not is_loopback(settings.host):
        raise StartError(
            f"host {settings.host} can be reached from elsewhere and there are no API keys: give keys_file or {ENVIRONMENT} "
            "(see `flide-agent keys new`), or say auth=off"
        )
    return None
