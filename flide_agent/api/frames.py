"""What front-end processes and the engine process say to each other: msgpack frames over a pair of connected Unix sockets.

The pair is made before the front end is started and handed down as a descriptor, so there is no path that anybody else could
connect to. Each frame is its length (4 bytes, little endian) and a tagged Struct. What clients sent travels as JSON inside
it: JSON has numbers that msgpack has not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from flide_agent.api.backend import Answer, Operation
from flide_agent.api.errors import encoded
from flide_agent.asks import Ask
from flide_agent.decision import Served
from flide_agent.errors import FlideError, Overloaded, from_wire
from flide_agent.reading import Outcome, Tokenised
from flide_agent.settings import Settings

T = TypeVar("T")
HEAD = 4
Replies = list[tuple[str, str, int, float]]
"""route, method, status, seconds of each."""


class Frame(msgspec.Struct, frozen=True, tag=True):
    """id: of a call, unique to its pipe."""


# --- from a front end ---


class Up(Frame, frozen=True):
    """It accepts connections."""


class Admit(Frame, frozen=True):
    """Let a decision in whose body is still to come."""

    id: int
    tenant: str


class Decide(Frame, frozen=True):
    """ask: JSON of an `Ask`. request_id, trace: of the HTTP request, for logs and spans."""

    id: int
    tenant: str
    ask: bytes
    request_id: str
    trace: str


class Run(Frame, frozen=True):
    """A decision outside sessions, read here."""

    id: int
    tenant: str
    asked: Tokenised
    request_id: str
    trace: str


class Do(Frame, frozen=True):
    """operation: JSON of an `Operation`."""

    id: int
    tenant: str
    operation: bytes
    request_id: str


class Follow(Frame, frozen=True):
    """Open a stream of events; `Next` asks for its events one by one."""

    id: int
    tenant: str
    session: str
    after: int


class Next(Frame, frozen=True):
    id: int
    stream: int


class Leave(Frame, frozen=True):
    """Nobody waits for a call, an admission or a stream any more."""

    id: int


class Counted(Frame, frozen=True):
    """For the metrics: replies that left, reasons of refusals. flush: of the `Flush` that this answers, else 0."""

    replies: Replies
    refused: list[str]
    flush: int = 0


# --- from the engine process ---


class Hello(Frame, frozen=True):
    """settings: JSON. label_mass: whether the engine sums over the vocabulary. tokenizer: its directory; digest: of its prompts."""

    settings: bytes
    served: Served
    label_mass: bool
    tokenizer: str
    digest: str


class Answered(Frame, frozen=True):
    id: int
    answer: Answer


class Ran(Frame, frozen=True):
    id: int
    outcome: Outcome


class Refused(Frame, frozen=True):
    """A FlideError. detail: JSON of its body. reason: of an Overloaded."""

    id: int
    status: int
    detail: bytes
    retry_after: float | None
    reason: str


class Flush(Frame, frozen=True):
    """Say now what was counted."""

    id: int


class Stop(Frame, frozen=True):
    """Accept no more, finish what runs, end."""


FromFront = Up | Admit | Decide | Run | Do | Follow | Next | Leave | Counted
FromEngine = Hello | Answered | Ran | Refused | Flush | Stop


class Pipe(asyncio.Protocol, Generic[T]):
    """One end. kinds: the union of what the other end says. take: called with each frame. lost: the other end has gone."""

    def __init__(self, kinds: Any, take: Callable[[T], None], lost: Callable[[], None]) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kinds)
        self._encoder = msgspec.msgpack.Encoder()
        self._take, self._lost = take, lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._wanted = HEAD

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < self._wanted:  # the rest of a long frame is still to come
            return
        at, view = 0, memoryview(self._buffer)
        while (size := len(view) - at) >= (wanted := HEAD):
            wanted += int.from_bytes(view[at : at + HEAD], "little")
            if size < wanted:
                break
            self._take(self._decoder.decode(view[at + HEAD : at + wanted]))
            at += wanted
        view.release()
        del self._buffer[:at]
        self._wanted = wanted

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def send(self, frame: Frame) -> None:
        """What is sent to an end that has gone is dropped."""
        if self._transport is not None:
            data = self._encoder.encode(frame)
            self._transport.write(len(data).to_bytes(HEAD, "little") + data)

    def close(self) -> None:
        """Send what is unsent and end."""
        if self._transport is not None:
            self._transport.close()


def refused(id: int, error: FlideError) -> Refused:
    reason = error.reason if isinstance(error, Overloaded) else ""
    status, _, body = encoded(error)
    return Refused(id, status, body, error.retry_after, reason)


def error_of(frame: Refused) -> FlideError:
    """The same error again."""
    error = from_wire(frame.status, msgspec.json.decode(frame.detail), frame.retry_after)
    if isinstance(error, Overloaded):
        error.reason = frame.reason
    return error


_ASK = msgspec.json.Decoder(Ask)
_OPERATION: msgspec.json.Decoder[Operation] = msgspec.json.Decoder(Operation)


def to_json(value: Ask | Operation) -> bytes:
    return msgspec.json.encode(value)


def ask_of(data: bytes) -> Ask:
    return _ASK.decode(data)


def operation_of(data: bytes) -> Operation:
    return _OPERATION.decode(data)


def settings_json(settings: Settings) -> bytes:
    return msgspec.json.encode(settings, enc_hook=str)


def settings_of(data: bytes) -> Settings:
    return msgspec.json.decode(data, type=Settings, dec_hook=lambda kind, value: Path(value))
