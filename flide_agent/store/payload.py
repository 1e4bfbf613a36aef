"""Payload files: a checksummed header, then raw tensors, 4096-aligned, a CRC each.

    offset 0    magic, 8 bytes
    offset 8    length of the header and its CRC-32, two little-endian uint32
    offset 16   header, JSON of PayloadHeader
    data        from the next multiple of 4096; each tensor at its offset from there, again a multiple of 4096

Header and record in the index must agree on kind, key, m and since, so that a file under another's name is noticed.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import msgspec
import torch

from flide_agent.store.objects import Source

MAGIC = b"FLIDEOB1"
ALIGN = 4096
MAX_HEADER = 1 << 20
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
}


class PayloadError(Exception):
    """A payload that must not be used; the message says which check failed."""


class TensorEntry(msgspec.Struct, frozen=True):
    """offset: from the start of the data; crc: CRC-32 of the nbytes bytes there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    crc: int


class PayloadHeader(msgspec.Struct, frozen=True):
    """kind: "state" (of position m) or "kv" (pages of [since, m)). key: hex identity of the checkpoint. manifest: the engine's."""

    kind: str
    key: str
    m: int
    since: int
    manifest: dict[str, Any]
    tensors: tuple[TensorEntry, ...]


_header = msgspec.json.Decoder(PayloadHeader)


def _up(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    data: memoryview = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return data


def encode(
    kind: str, key: bytes, m: int, since: int, manifest: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> tuple[list[bytes | memoryview], int]:
    """The chunks of a payload file and their total in bytes. Tensors are on the host; nothing is copied."""
    entries: list[TensorEntry] = []
    body: list[bytes | memoryview] = []
    at = 0
    for name, tensor in sorted(tensors.items()):
        data = _bytes_of(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise PayloadError(f"tensor {name!r} has dtype {dtype}, which payloads do not hold")
        entries.append(TensorEntry(name, dtype, tuple(tensor.shape), at, len(data), zlib.crc32(data)))
        body += [data, bytes(_up(len(data)) - len(data))]
        at += _up(len(data))
    header = msgspec.json.encode(PayloadHeader(kind, key.hex(), m, since, manifest, tuple(entries)))
    start = MAGIC + len(header).to_bytes(4, "little") + zlib.crc32(header).to_bytes(4, "little") + header
    padding = bytes(_up(len(start)) - len(start))
    return [start, padding, *(c for c in body if len(c))], _up(len(start)) + at


def decode(
    source: Source, kind: str, key: bytes, m: int, since: int, into: torch.Tensor | None = None
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(manifest, tensors) of an object, which is read into memory of its own or `into`, uint8 of the object's size.

    Raises PayloadError when anything does not match: size, magic, header, CRC of the header or of a tensor, or the identity
    asked for. Raises OSError for a read that fails.
    """
    header, start = _header_of(source, kind, key, m, since)
    data = torch.empty(source.size, dtype=torch.uint8) if into is None else into
    if len(data) != source.size or source.read_into(0, data.numpy().data) != source.size:
        raise PayloadError("it ends early")
    return header.manifest, {e.name: _tensor(data, start, e, check=True) for e in header.tensors}


def view(data: torch.Tensor, kind: str, key: bytes, m: int, since: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(manifest, tensors) of an object in memory that was checked when it was read or written; nothing is copied."""
    header, start = _header_of(Memory(data), kind, key, m, since)
    return header.manifest, {e.name: _tensor(data, start, e, check=False) for e in header.tensors}


class Memory:
    """An object in memory, uint8, as an objects.Source."""

    def __init__(self, data: torch.Tensor) -> None:
        self.size = len(data)
        self._data: memoryview = data.numpy().data

    def read_into(self, offset: int, into: memoryview) -> int:
        part = self._data[offset : offset + len(into)]
        into[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Nothing to do."""


def _header_of(source: Source, kind: str, key: bytes, m: int, since: int) -> tuple[PayloadHeader, int]:
    """The header, checked, and where the data starts."""
    size = source.size
    head = _bytes_at(source, 0, 16)
    if len(head) < 16 or head[:8] != MAGIC:
        raise PayloadError("it is no payload file or its first bytes are damaged")
    length, crc = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
    if length > min(MAX_HEADER, size):
        raise PayloadError("the header's length is out of bounds")
    raw = _bytes_at(source, 16, length)
    if len(raw) != length or zlib.crc32(raw) != crc:
        raise PayloadError("the header is damaged")
    try:
        header = _header.decode(raw)
    except msgspec.MsgspecError as error:
        raise PayloadError("the header cannot be read") from error
    if (header.kind, header.key, header.m, header.since) != (kind, key.hex(), m, since):
        raise PayloadError("the file belongs to another checkpoint")
    start = _up(16 + length)
    if size != start + sum(_up(e.nbytes) for e in header.tensors):
        raise PayloadError("the file has not the size that its header tells")
    return header, start


def _bytes_at(source: Source, offset: int, n: int) -> bytes:
    out = bytearray(n)
    return bytes(out[: source.read_into(offset, memoryview(out))])


def _tensor(data: torch.Tensor, start: int, entry: TensorEntry, check: bool) -> torch.Tensor:
    dtype = DTYPES.get(entry.dtype)
    if dtype is None or entry.nbytes != math.prod(entry.shape) * dtype.itemsize or min(entry.shape, default=0) < 0:
        raise PayloadError(f"tensor {entry.name!r} has a shape or dtype that does not fit its bytes")
    at = start + entry.offset
    if entry.offset < 0 or entry.offset % ALIGN or at + entry.nbytes > len(data):
        raise PayloadError(f"tensor {entry.name!r} lies outside the file")
    flat = data[at : at + entry.nbytes]
    if check and zlib.crc32(flat.numpy().data) != entry.crc:
        raise PayloadError(f"tensor {entry.name!r} fails its checksum")
    return flat.view(dtype).reshape(entry.shape)
