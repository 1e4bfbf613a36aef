"""Load for the bars: agents that grow their histories, over bare sockets, so that the client takes little of the machine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

WORDS = tuple("error build test file line run make fix module import value return class agent patch commit".split())  # noqa: SIM905
FIVE: dict[str, Any] = {
    f"q{i}": {"type": "noul", "instructions": f"Question number {i}: did the last command fail for good?"} for i in range(4)
}
FIVE["next"] = {"type": "choice", "instructions": "What next?", "criteria": {"edit": None, "test": "run tests", "stop": None}}


def words(random_: random.Random, count: int) -> str:
    return " ".join(random_.choice(WORDS) for _ in range(count))


def share(values: Sequence[float], q: float) -> float:
    """The q-quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Got:
    """A reply: its status and bytes, milliseconds from the first byte sent to the last read, headers in lower case."""

    status: int
    body: bytes
    ms: float
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Wire:
    """One kept-alive connection."""

    def __init__(self, url: str) -> None:
        self._host, self._port = urlsplit(url).hostname or "", urlsplit(url).port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: Any, headers: str = "") -> Got:
        """Raises OSError or EOFError when the connection goes."""
        return await self.send("POST", path, msgspec.json.encode(body), headers)

    async def send(self, method: str, path: str, data: bytes = b"", headers: str = "") -> Got:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=1 << 24)
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
        started = time.perf_counter()
        self._writer.write(head.encode() + data)
        try:
            text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = text.split("\r\n")
            found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
            content = await self._reader.readexactly(int(found.get("content-length", "0")))
        except (OSError, EOFError):
            self.close()
            raise
        ms = 1e3 * (time.perf_counter() - started)
        if found.get("connection", "").lower() == "close":
            self.close()
        return Got(int(first.split()[1]), content, ms, found)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class Agent:
    """A session that appends a message a step. words_: of each message, about its tokens."""

    def __init__(self, url: str, name: str, *, words_: int = 270, questions: Any = None, seed: int = 0) -> None:
        self.wire, self.name, self.words, self.questions = Wire(url), name, words_, questions or FIVE
        self.random = random.Random(f"{name}-{seed}")
        self.head: str | None = None
        self.tokens = 0

    def body(self, words_: int | None = None) -> dict[str, Any]:
        new = [{"role": "tool", "content": words(self.random, self.words if words_ is None else words_)}]
        if self.head is None:
            return {"messages": new, "questions": self.questions}
        return {"append": new, "head": self.head, "questions": self.questions}

    async def step(self, words_: int | None = None) -> Got:
        """One step; a refused one leaves the session as it was."""
        got = await self.wire.post(f"/v1/sessions/{self.name}/decide", self.body(words_))
        if got.status == 200:
            said = got.json["x_session"]
            self.head, self.tokens = said["head"], said["history_tokens"]
        return got

    async def grow(self, tokens: int) -> None:
        """Until the history has so many tokens."""
        while self.tokens < tokens:
            got = await self.step(min(4000, max(20, int(0.85 * (tokens - self.tokens)))))
            assert got.status == 200, got.body
