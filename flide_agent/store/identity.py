"""What makes two checkpoints the same: a framed header, then a SHA-256 chain over the token ids at every grid position."""

from __future__ import annotations

import functools
import hashlib
import hmac
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from flide_engine.segments import GRID, Tokens

DOMAIN = "flide-agent/checkpoint/1"
_CHUNK = GRID * 4
_SHORT = 2048
"""Tokens below which hashing costs no more than looking for what is known already."""


def framed(*fields: str | bytes | int | None) -> bytes:
    """The fields with type and length before each: ('a', 'bc') differs from ('ab', 'c'), None from '', 1 from '1'."""
    out = []
    for field in fields:
        if field is None:
            tag, data = b"n", b""
        elif isinstance(field, int):
            tag, data = b"i", str(field).encode()
        elif isinstance(field, str):
            tag, data = b"s", field.encode("utf-8", "surrogatepass")
        else:
            tag, data = b"b", field
        out += [tag, len(data).to_bytes(8, "little"), data]
    return b"".join(out)


def identity(info: Any, prompts_digest: str) -> bytes:
    """32 bytes for all that decides a state beside the tokens and the tenant.

    info: EngineInfo. Its weights digest covers the config too, so the model's name, which says where it was found, is left out.
    """
    header = framed(
        DOMAIN, info.weights_digest, prompts_digest, info.dtype, int(info.layout_version), info.numerics
    )  # fmt: skip
    return hashlib.sha256(header).digest()


def chain(own: bytes, share_key: bytes, tokens: Tokens, known: Sequence[bytes] = ()) -> list[bytes]:
    """Keys of the checkpoints at 64, 128, ... <= len(tokens): h[k] = SHA-256(h[k-1] + 64 ids as little-endian uint32).

    known: the first of them, where they are known.
    """
    sha256 = hashlib.sha256
    keys = list(known)
    at = keys[-1] if keys else sha256(framed(DOMAIN, own, share_key)).digest()
    data = memoryview(np.ascontiguousarray(tokens[GRID * len(keys) : len(tokens) // GRID * GRID], dtype="<u4").tobytes())
    for start in range(0, len(data), _CHUNK):
        h = sha256(at)
        h.update(data[start : start + _CHUNK])
        at = h.digest()
        keys.append(at)
    return keys


class Chains:
    """`chain` for one engine's identity, with the last few trunks' keys at hand. Thread-safe.

    Only arrays that nobody can write to are remembered, by the array itself: a step asks for the same one several times. A trunk
    that goes on from one of them begins with its keys: ids are compared, which takes a tenth of hashing them.
    """

    def __init__(self, own: bytes, size: int = 64) -> None:
        self._own, self._size = own, size
        self._last: OrderedDict[tuple[int, bytes], tuple[Tokens, list[bytes]]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, share_key: bytes, tokens: Tokens) -> list[bytes]:
        if tokens.flags.writeable:
            return chain(self._own, share_key, tokens)
        at = (id(tokens), share_key)
        with self._lock:
            known = self._last.get(at)
        if known is not None:
            return known[1]
        keys = chain(self._own, share_key, tokens, self._begun(share_key, tokens))
        with self._lock:
            self._last[at] = (tokens, keys)  # which keeps the array, and so its id, alive
            if len(self._last) > self._size:
                self._last.popitem(last=False)
        return keys

    def _begun(self, share_key: bytes, tokens: Tokens) -> Sequence[bytes]:
        """Keys of the longest beginning that a remembered trunk of these has in common with it up to its own last grid position."""
        if len(tokens) < _SHORT:
            return ()
        with self._lock:
            others = [(len(keys), other, keys) for (_, key), (other, keys) in self._last.items() if key == share_key]
        for n, other, keys in sorted(others, key=lambda o: -o[0]):
            end = GRID * n
            # The last id first: few different trunks have that in common.
            if 0 < end <= len(tokens) and other[end - 1] == tokens[end - 1] and np.array_equal(other[:end], tokens[:end]):
                return keys
        return ()

    def upto(self, share_key: bytes, tokens: Tokens, n: int) -> list[bytes]:
        """Keys of the grid positions of tokens[:n]."""
        return self(share_key, tokens)[: max(0, min(n, len(tokens))) // GRID]


@functools.lru_cache(maxsize=4096)
def tenant_key(secret: bytes, tenant: str) -> bytes:
    """A tenant's namespace: HMAC under the store's secret, so that no client can name another's."""
    return hmac.digest(secret, framed("tenant", tenant), "sha256")


def tenant_id(share_key: bytes) -> bytes:
    """16 bytes that stand for a tenant in records."""
    return hashlib.sha256(framed("tenant", share_key)).digest()[:16]


def holder_key(share_key: bytes, session: str) -> bytes:
    """16 bytes that stand for a session as holder of checkpoints."""
    return hashlib.sha256(framed("holder", share_key, session)).digest()[:16]
