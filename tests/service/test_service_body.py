"""From bytes to JSON, with caps."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flide_agent.api.body import decode, decompress, read
from flide_agent.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding

CAP = 1000


async def _parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_read_joins_and_caps() -> None:
    assert asyncio.run(read(_parts(b"ab", b"", b"c"), 3)) == b"abc"
    with pytest.raises(BodyTooLarge):
        asyncio.run(read(_parts(b"ab", b"cd"), 3))


def test_read_stops_at_a_sender_without_end() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 100
            yield b"x" * 100

    with pytest.raises(BodyTooLarge):
        asyncio.run(read(endless(), CAP))
    assert sent <= 4 * CAP + 100


def test_gzip_of_several_members() -> None:
    assert decompress(gzip.compress(b"ab") + gzip.compress(b"cd"), "GZIP", CAP) == b"abcd"


@pytest.mark.parametrize("make", [lambda d: d[:-3], lambda d: d[:5], lambda d: b"no gzip at all", lambda d: d + b"rest"])
def test_broken_gzip_is_told(make: Any) -> None:
    with pytest.raises(InvalidRequest):
        decompress(make(gzip.compress(b"hello" * 20)), "gzip", CAP)


def test_bombs_are_capped() -> None:
    with pytest.raises(BodyTooLarge):
        decompress(gzip.compress(b"0" * 50_000_000), "gzip", CAP)
    assert len(decompress(gzip.compress(b"0" * CAP), "gzip", CAP)) == CAP


def test_zstd() -> None:
    zstandard = pytest.importorskip("zstandard")
    data = zstandard.ZstdCompressor().compress(b"hello" * 20)
    assert decompress(data, "zstd", CAP) == b"hello" * 20
    assert decompress(data + data, "zstd", CAP) == b"hello" * 40
    large = bytes(range(256)) * 4000
    assert decompress(zstandard.ZstdCompressor().compress(large), "zstd", len(large)) == large
    with pytest.raises(BodyTooLarge):
        decompress(zstandard.ZstdCompressor().compress(b"0" * 50_000_000), "zstd", CAP)
    for broken in (b"no zstd", data[:-4], data[:9]):
        with pytest.raises(InvalidRequest):
            decompress(broken, "zstd", CAP)


def test_zstd_absent_says_what_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UnsupportedEncoding, match="gzip"):
        decompress(b"x", "zstd", CAP)


def test_other_encodings() -> None:
    assert decompress(b"x", "identity", CAP) == b"x"
    with pytest.raises(UnsupportedEncoding):
        decompress(b"x", "br", CAP)


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b"", 0),
        (b"{", 1),
        (b"\xff\xfe", 0),
        (b'{"a":NaN}', 5),
        (b'{"a":1e999}', 5),
        ('{"ü 1e999 \\" 1e999":[1e3, -1.5E+999, 1e999]}'.encode(), 27),
        (b'{"a":[' + b"1" * 5000 + b"]}", 6),
        (b'{"a":1}x', 8),
        (b"[" * 100_000, 0),
        (b'{"a":"\\ud800', 7),
        (b'{"a":1e999,"b":"\\ud800"}', 5),
        (b'{"a":"x\\" 1e999', 15),
        (b'{"a":"x\\', 8),
        (b"[" + b"9" * 299 + b",1e999]", 301),
        ('{"ü":"\\ud800","b":Infinity}'.encode(), 19),
        ('{"ü":"\\ud800","b":x}'.encode(), 19),
    ],
)
def test_what_is_no_json(body: bytes, position: int) -> None:
    with pytest.raises(InvalidRequest) as e:
        decode(body)
    (item,) = e.value.details
    assert item["type"] == "json_invalid"
    assert item["loc"] == ["body", position], "in bytes"
    assert "`$" not in str(item), "our words, not the library's path"


@pytest.mark.parametrize("unit", [b'\\"', b"9" * 299 + b",", b"9.", b"-", b'"a",', b"1e5"], ids=repr)
def test_what_is_no_json_is_refused_in_time_that_grows_with_its_length(unit: bytes) -> None:
    """A string without an end took 20 s of 64 KB, and four times that of twice as much."""
    body = b'{"a":["' + unit * (500_000 // len(unit)) if unit == b'\\"' else b'{"a":[' + unit * (500_000 // len(unit))
    began = time.perf_counter()
    with pytest.raises(InvalidRequest):
        decode(body)
    assert time.perf_counter() - began < 2.0


def test_lone_surrogates_become_replacement_characters() -> None:
    assert decode(b'{"a\\udc00":["\\ud800x\\ud83d\\ude00"]}') == {"a�": ["�x😀"]}
    big = 123456789012345678901234567890
    assert decode(json.dumps({"a": "\ud800", "n": big}).encode())["n"] == big
