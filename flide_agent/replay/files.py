"""From a file's bytes to JSON values: one document, or rows one a line, found by content. Streams row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flide_agent.replay.records import Problem

_BOM = b"\xef\xbb\xbf"
_BINARY = ((b"PAR1", "parquet is not read; export the rows as JSONL"), (b"\x1f\x8b", "gzip is not read; unpack it first"),
           (b"PK\x03\x04", "a zip archive is not read; unpack it first"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON value. line: where it starts. rows: whether it is one of many lines. replaced: bytes that were not UTF-8."""

    value: Any
    line: int
    rows: bool
    replaced: int


def documents(path: Path) -> Iterator[Document | Problem]:
    """Every JSON value of the file, in order, and a Problem for the file or each line that cannot be read.

    Never raises for content. Duplicate keys: the last one wins. NaN and Infinity read as null. Bytes that are not UTF-8 become
    U+FFFD and are counted.
    """
    try:
        with path.open("rb") as f:
            yield from _documents(f, str(path))
    except FileNotFoundError:
        yield Problem(str(path), "no such file")
    except IsADirectoryError:
        yield Problem(str(path), "is a folder; name the files in it")
    except OSError as e:
        yield Problem(str(path), f"cannot be read: {e.strerror or e}")


def _documents(f: BinaryIO, name: str) -> Iterator[Document | Problem]:
    lines = _lines(f)
    number, first = next(lines, (0, b""))
    if not number:
        yield Problem(name, "empty file, nothing in it")
        return
    for magic, message in _BINARY:
        if first.startswith(magic):
            yield Problem(name, message)
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
