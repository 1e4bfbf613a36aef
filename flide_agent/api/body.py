"""From the bytes of a request to JSON: size caps, Content-Encoding, lone surrogates. Never more memory than the cap allows."""

from __future__ import annotations

import importlib
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NoReturn

import msgspec

from flide_agent.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding

DRAIN = 4
"""A body beyond its cap is read and thrown away up to so many times the cap, so that the sender gets to read our answer."""

ZSTD_WINDOW, ZSTD_SLICE = 1 << 27, 1024
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NUMBER = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|(?<![0-9.])(-?[0-9.]++[eE][-+]?[0-9]++|-?[0-9][0-9.]{299,}|NaN|-?Infinity)', re.DOTALL
)  # fmt: skip
"""Strings, to be passed over, and whatever may be no number that is read here. A string without an end goes to the body's, and a run of
digits is tried from its first alone: else the time grows with the square of the length."""


def _too_large(cap: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {cap} bytes; nothing of it was used")


async def read(stream: AsyncIterator[bytes], cap: int) -> bytes:
    """The whole body. Raises BodyTooLarge above `cap` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in stream:
        size += len(part)
        if size <= cap:
            parts.append(part)
        elif size > DRAIN * cap:
            break
        else:
            parts.clear()
    if size > cap:
        raise _too_large(cap)
    return b"".join(parts)


def decompress(body: bytes, encoding: str, cap: int) -> bytes:
    """Undo Content-Encoding. Raises UnsupportedEncoding, InvalidRequest for broken data, BodyTooLarge above `cap` bytes."""
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _gunzip(body, cap)
        case "zstd":
            return _unzstd(body, cap)
        case other:
            raise UnsupportedEncoding(f"Content-Encoding {other[:40]!r} is not read here; send zstd, gzip or none")


def _broken(name: str) -> InvalidRequest:
    return InvalidRequest.at((), f"the body is not valid {name} data", "encoding_invalid")


def _gunzip(body: bytes, cap: int) -> bytes:
    out: list[bytes] = []
    room = cap + 1
    while body and room > 0:  # a gzip body may have several members
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(body, room)
        except zlib.error as e:
            raise _broken("gzip") from e
        out.append(part)
        room -= len(part)
        if room > 0 and not member.eof:
            raise _broken("gzip")
        body = member.unused_data
    if room <= 0:
        raise _too_large(cap)
    return b"".join(out)


def _unzstd(body: bytes, cap: int) -> bytes:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as e:
        raise UnsupportedEncoding("this server has no zstd (package zstandard); send the body as gzip or as it is") from e
    # A stream_reader takes a truncated frame for a whole one, so frames are fed by hand. Slices are small because 4 bytes
    # can stand for a block of 128 KiB, and the cap is looked at after each slice.
    out: list[bytes] = []
    at, room, frame = 0, cap, None
    try:
        while at < len(body):
            if frame is None or frame.eof:
                frame = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
            part = frame.decompress(body[at : at + ZSTD_SLICE])
            at = min(at + ZSTD_SLICE, len(body)) - len(frame.unused_data if frame.eof else b"")
            out.append(part)
            room -= len(part)
            if room < 0:
                raise _too_large(cap)
    except zstandard.ZstdError as e:
        raise _broken("zstd") from e
    if frame is None or not frame.eof:
        raise _broken("zstd")
    return b"".join(out)


def decode(body: bytes) -> Any:
    """JSON of a body. Raises InvalidRequest at the position of the mistake, and where a question, option or candidate stands twice.

    JSON leaves open what a repeated name means, and most readers keep the last: a question or an option would be lost.
    """
    try:
        value = msgspec.json.decode(body)
        if isinstance(value, dict):
            _check_names(value, body)
        return value
    except RecursionError:
        raise _invalid("the JSON is nested too deeply") from None
    except msgspec.DecodeError as e:
        if _SURROGATE.search(body):
            return _decode_surrogates(body)
        return _refuse(body, e)


def _check_names(value: dict[str, Any], body: bytes) -> None:
    """Raises InvalidRequest where a name of the caller's own stands twice: anywhere in questions, or of two candidates."""
    parts = None
    for field, hook in (("questions", partial(_unique, loc=("questions",))), ("x_candidates", _Pairs)):
        if isinstance(value.get(field), dict | list):
            parts = parts or msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            found = json.loads(bytes(parts[field]), object_pairs_hook=hook)
            if isinstance(found, _Pairs):
                _unique(found, (field,))


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON as it stands, repeated names and all."""


def _unique(pairs: list[tuple[str, Any]], loc: tuple[str, ...] = ()) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InvalidRequest.at(loc, f"the name {twice[:80]!r} stands twice in one object", "duplicate_name")
    return found


def _decode_surrogates(body: bytes) -> Any:
    """msgspec refuses escaped lone surrogates, which JSON allows. They become U+FFFD."""
    try:
        return _clean(json.loads(body, parse_constant=_no_constant, parse_float=_finite))
    except (ValueError, RecursionError) as e:
        return _refuse(body, e)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text[:20]} is out of range")
    return value


def _clean(value: Any, loc: tuple[str, ...] = ()) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_clean(v, loc) for v in value]
    if isinstance(value, dict):
        return _unique([(_clean(k), _clean(v, loc or (_clean(k),))) for k, v in value.items()], loc)
    return value


def _refuse(body: bytes, error: Exception) -> NoReturn:
    reason = str(error)
    if isinstance(error, json.JSONDecodeError):  # it counts characters
        reason = error.msg
        position = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
    elif found := re.search(r"\(byte (\d+)\)", reason):
        position = int(found[1])
    else:
        position = _no_number(body)
    raise _invalid("JSON decode error", position, re.split(r" \(byte| - at ", reason)[0]) from error


def _no_number(body: bytes) -> int:
    """Where the first number stands that is out of range or none of JSON; nobody says so. The body's end when there is none."""
    for found in _NUMBER.finditer(body):
        if (text := found[1]) is not None:
            try:
                msgspec.json.decode(text)
            except msgspec.DecodeError:
                return found.start(1)
    return len(body)


def _invalid(message: str, position: int = 0, reason: str = "") -> InvalidRequest:
    item: dict[str, Any] = {"loc": ["body", position], "msg": message, "type": "json_invalid"}
    if reason:
        item["ctx"] = {"error": reason}
    return InvalidRequest([item])
