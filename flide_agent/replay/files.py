"""From a file's bytes to JSON values: one document, or rows one a line, found by content. Streams row by row."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flide_agent.replay.records import Problem

STDIN = "-"
MOST_MEMBER_BYTES = 1 << 30
"""Of one member of an archive, unpacked."""
_BOM = b"\xef\xbb\xbf"
_GZIP, _ZIP, _PARQUET = b"\x1f\x8b", b"PK\x03\x04", b"PAR1"


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON value. line: where it starts. rows: whether it is one of many lines. replaced: bytes that were not UTF-8."""

    value: Any
    line: int
    rows: bool
    replaced: int


def documents(path: Path) -> Iterator[Document | Problem]:
    """Every JSON value of the file, in order, and a Problem for the file or each line that cannot be read.

    Reads JSON, JSON lines, either of them packed with gzip, zip archives of JSON members, parquet, and a folder whose files
    hold one event each. "-" is stdin. Never raises for content. Duplicate keys: the last one wins. NaN and Infinity read as
    null. Bytes that are not UTF-8 become U+FFFD and are counted.
    """
    name = str(path)
    try:
        if name == STDIN:
            yield from _opened(sys.stdin.buffer, name)
            return
        if path.is_dir():
            yield from _folder(path)
            return
        with path.open("rb") as f:
            yield from _opened(f, name)
    except FileNotFoundError:
        yield Problem(name, "no such file")
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        yield Problem(name, f"its gzip packing is broken: {e}")
    except OSError as e:
        yield Problem(name, f"cannot be read: {e.strerror or e}")


def _opened(f: BinaryIO, name: str) -> Iterator[Document | Problem]:
    if not isinstance(f, io.BufferedReader):  # such as a stdin that was put in place of the real one
        f = io.BufferedReader(io.BytesIO(f.read()))
    magic = f.peek(4)[:4]
    if magic.startswith(_GZIP):
        with gzip.GzipFile(fileobj=f) as inner:
            yield from _documents(io.BufferedReader(inner), name)
    elif magic == _ZIP:
        yield from _archive(f, name)
    elif magic == _PARQUET:
        yield from _parquet(f, name)
    else:
        yield from _documents(f, name)


def _folder(path: Path) -> Iterator[Document | Problem]:
    """One event a file, in the order of their names."""
    files = sorted(p for p in path.iterdir() if p.suffix == ".json" and p.is_file())
    if not files:
        yield Problem(str(path), "a folder without files of events")
    for file in files:
        with file.open("rb") as f:
            for found in _documents(f, str(file)):
                yield found if isinstance(found, Problem) else Document(found.value, 1, False, found.replaced)


def _seekable(f: BinaryIO) -> BinaryIO:
    return f if f.seekable() else io.BytesIO(f.read())


def _archive(f: BinaryIO, name: str) -> Iterator[Document | Problem]:
    """The samples of an .eval archive, a member each; the JSON members of any other archive."""
    try:
        with zipfile.ZipFile(_seekable(f)) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(".json") and not m.is_dir()]
            samples = [m for m in members if m.filename.startswith("samples/")]
            for number, member in enumerate(samples or members, 1):
                yield _member(archive, member, name, number)
            if not members:
                yield Problem(name, "an archive without JSON in it")
    except zipfile.BadZipFile as e:
        yield Problem(name, f"a broken zip archive: {e}")


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, number: int) -> Document | Problem:
    try:
        with archive.open(member) as f:
            raw = f.read(MOST_MEMBER_BYTES + 1)
    except (NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as e:
        return Problem(name, f"its member {number} cannot be unpacked: {e}", number)
    if len(raw) > MOST_MEMBER_BYTES:
        return Problem(name, f"its member {number} is larger than {MOST_MEMBER_BYTES >> 30} GiB", number)
    return _parse(raw.removeprefix(_BOM), name, number, rows=True)


def _parquet(f: BinaryIO, name: str) -> Iterator[Document | Problem]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        yield Problem(name, "parquet needs pyarrow: pip install 'flide-agent[parquet]'")
        return
    try:
        row = 0
        for batch in pq.ParquetFile(_seekable(f)).iter_batches(batch_size=16):
            for value in batch.to_pylist():
                row += 1
                yield Document(value, row, True, 0)
    except (pa.ArrowException, OSError, ValueError) as e:
        yield Problem(name, f"parquet that cannot be read: {str(e).splitlines()[0] if str(e) else type(e).__name__}")


def _documents(f: BinaryIO, name: str) -> Iterator[Document | Problem]:
    lines = _lines(f)
    number, first = next(lines, (0, b""))
    if not number:
        yield Problem(name, "empty file, nothing in it")
        return
    parsed = _parse(first, name, number, rows=True)
    following = next(lines, None)
    if following is None:
        yield _at(parsed, rows=False)
        return
    if isinstance(parsed, Problem) and not _is_row(following[1]):
        whole = b"\n" * (number - 1) + first + b"\n" * (following[0] - number - 1) + following[1] + f.read()
        yield _parse(whole, name, 1, rows=False)
        return
    yield parsed
    yield _parse(following[1], name, following[0], rows=True)
    for number, raw in lines:
        yield _parse(raw, name, number, rows=True)


def _lines(f: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(line number, bytes) of every line that is not blank."""
    for number, raw in enumerate(iter(f.readline, b""), 1):
        if number == 1:
            raw = raw.removeprefix(_BOM)
        if raw.strip():
            yield number, raw


def _is_row(raw: bytes) -> bool:
    """Whether a line is an object of its own: a first line that is not JSON is then a broken row, not a document's start."""
    return raw.startswith(b"{") and isinstance(_parse(raw, "", 1, rows=True), Document)


def _at(parsed: Document | Problem, *, rows: bool) -> Document | Problem:
    return Document(parsed.value, parsed.line, rows, parsed.replaced) if isinstance(parsed, Document) else parsed


def _parse(raw: bytes, name: str, first_line: int, *, rows: bool) -> Document | Problem:
    text = raw.decode("utf-8", "replace")
    replaced = text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
    try:
        return Document(json.loads(text, parse_constant=lambda _: None), first_line, rows, max(replaced, 0))
    except json.JSONDecodeError as e:
        if e.msg.startswith("Unterminated string"):
            message = f"cut off inside the string that starts at character {e.pos}"
        else:
            message = f"{'cut off' if e.pos >= len(text.rstrip()) else 'not valid JSON'} at character {e.pos}: {e.msg}"
        return Problem(name, message, first_line + e.lineno - 1, e.colno)
    except RecursionError:
        return Problem(name, "nested too deeply to be a trajectory", first_line)
    except ValueError as e:  # such as an integer of more digits than Python converts
        return Problem(name, f"not valid JSON: {e}", first_line)
