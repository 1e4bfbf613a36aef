"""What a service is started with: one Struct, and all that is said about its fields. Flags, environment and files fill it
(`configure.py`); `flide-agent settings` prints it."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

GIB = 1 << 30
DTYPES = ("auto", "float32", "bfloat16")
AUTH = ("auto", "on", "off")
LOG_FORMATS = ("auto", "text", "json")
BYTES = {"unit": "bytes"}
MOST_FRONT_ENDS = 64


def default_store() -> Path:
    """Where `serve` keeps checkpoints unless told otherwise: $XDG_STATE_HOME/flide-agent/store."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "flide-agent" / "store"


def rows_of_a_pass(device: str) -> int:
    """`max_stream` unless told otherwise."""
    return 16384 if device.startswith("cuda") else 4096


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes are bytes, times are seconds, tokens are tokens of the served model. Raises ValueError naming the field."""

    model: Annotated[str, Meta(description="'default' (in the package), 'dummy:SIZE', a directory, or a hub id")] = "default"
    device: Annotated[str, Meta(description="auto (cuda when there is one), cpu, cuda or cuda:N")] = "auto"
    dtype: Annotated[str, Meta(description="auto (float32 on a CPU, bfloat16 on a GPU), float32 or bfloat16")] = "auto"
    store: Annotated[
        Path | None,
        Meta(
            description="directory of the checkpoint store; unset: the user's state directory for a server, a temporary one in process"
        ),
    ] = None
    memory_bytes: Annotated[
        int, Meta(description="device memory for recurrent states and K/V pages", extra_json_schema=BYTES)
    ] = 2 * GIB
    host_bytes: Annotated[
        int | None,
        Meta(
            description="host memory for copies of what is on disk, pinned for a GPU; unset: 4GiB with a GPU, none on a CPU",
            extra_json_schema=BYTES,
        ),
    ] = None
    disk_bytes: Annotated[int, Meta(description="budget of the store's directory", extra_json_schema=BYTES)] = 16 * GIB
    tenant_bytes: Annotated[
        int, Meta(description="of one tenant in the store's directory; 0: no limit of its own", extra_json_schema=BYTES)
    ] = 0
    session_bytes: Annotated[
        int,
        Meta(
            description="of one session in the store's directory, shared parts included; 0: no limit of its own",
            extra_json_schema=BYTES,
        ),
    ] = 0
    synced: Annotated[
        bool, Meta(description="off: nothing waits for the disk; a store that goes with its process needs no more")
    ] = True
    host: Annotated[str, Meta(description="address to listen on; beyond loopback it needs API keys")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on; 0 takes a free one")] = 8321
    front_ends: Annotated[
        int,
        Meta(description="processes for HTTP, keys and JSON before the engine process; 0: the engine process does that too"),
    ] = 0
    auth: Annotated[
        str,
        Meta(description="auto (on when there are API keys; off only on loopback), on, or off (whoever reaches it may use it)"),
    ] = "auto"
    keys_file: Annotated[
        Path | None, Meta(description="API keys, a line each: TENANT sha256:HEX; read again when it changes")
    ] = None
    max_queue: Annotated[int, Meta(description="requests that may wait for the engine; one more is refused with 429")] = 256
    max_queue_tokens: Annotated[int, Meta(description="tokens that may wait for the engine; one request always may")] = 1 << 20
    max_wait_seconds: Annotated[
        float, Meta(description="a request is refused with 429 when, at the speed so far, it would wait longer; 0: no limit")
    ] = 5.0
    max_session_queue: Annotated[
        int, Meta(description="steps of one session that may wait for each other; one more is 429")
    ] = 32
    max_inflight_bytes: Annotated[
        int,
        Meta(description="bytes of all bodies that are being worked on; one more is refused with 429", extra_json_schema=BYTES),
    ] = 256 << 20
    max_round_tokens: Annotated[
        int,
        Meta(
            description="rows up to which waiting requests are put into one round; 0: 1024 on a CPU, 8192 on a GPU and 16384 there "
            "while such a round takes less than 50 ms"
        ),
    ] = 0
    slice_tokens: Annotated[
        int,
        Meta(
            description="rows of a longer request that run at once, so that others get in between; 0: 256 on a CPU, 4096 on a GPU"
        ),
    ] = 0
    max_stream: Annotated[
        int, Meta(description="rows of one forward pass; longer rounds run as several; 0: 4096 on a CPU, 16384 on a GPU")
    ] = 0
    graphs: Annotated[
        bool,
        Meta(description="on a GPU, replay passes of a shape that came before as captured graphs; the answers are the same"),
    ] = True
    max_body_bytes: Annotated[int, Meta(description="of a request body after decompression", extra_json_schema=BYTES)] = (
        32 << 20
    )
    body_seconds: Annotated[float, Meta(description="for a request's body to arrive; 0: no limit")] = 60.0
    max_state_tokens: Annotated[int, Meta(description="of one state or history; 0: what the model's context leaves")] = 0
    max_question_tokens: Annotated[int, Meta(description="of one question; 0: what the model's context leaves")] = 0
    max_request_tokens: Annotated[int, Meta(description="of all questions and candidates of one request together")] = 65536
    max_questions: Annotated[int, Meta(description="of one request")] = 1024
    max_options: Annotated[int, Meta(description="of one choice, up to 255")] = 255
    max_candidates: Annotated[int, Meta(description="of one request")] = 64
    max_messages: Annotated[int, Meta(description="of one request")] = 20000
    max_sessions: Annotated[int, Meta(description="of one tenant; opening one more is refused with 429; 0: no limit")] = 0
    session_seconds: Annotated[
        float, Meta(description="a session that nobody used for so long is deleted with what only it holds; 0: never")
    ] = 0.0
    kept_steps: Annotated[int, Meta(description="newest steps (heads) that a session keeps; older heads are unknown")] = 256
    deadline_seconds: Annotated[
        float, Meta(description="of a request that names none; 0: none. Work that could only end later is not begun")
    ] = 0.0
    shutdown_seconds: Annotated[float, Meta(description="for what is running when the server is told to stop")] = 30.0
    log_format: Annotated[str, Meta(description="auto (text on a terminal, else json), text or json")] = "auto"
    access_log: Annotated[bool, Meta(description="one line a request: route, status, milliseconds, request id, tenant")] = False
    telemetry: Annotated[
        bool, Meta(description="OpenTelemetry spans to OTEL_EXPORTER_OTLP_ENDPOINT; needs the extra 'otel'")
    ] = False

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda") and not self.device.startswith("cuda:"):
            raise ValueError(f"device: {self.device!r} is none of auto, cpu, cuda, cuda:N")
        for name, words in (("dtype", DTYPES), ("auth", AUTH), ("log_format", LOG_FORMATS)):
            if getattr(self, name) not in words:
                raise ValueError(f"{name}: {getattr(self, name)!r} is none of {', '.join(words)}")
        if not self.model:
            raise ValueError("model: empty; use 'default', 'dummy:SIZE', a directory or a hub id")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: {self.port} is not in 0..65535")
        if not 0 <= self.front_ends <= MOST_FRONT_ENDS:
            raise ValueError(f"front_ends: {self.front_ends} is not in 0..{MOST_FRONT_ENDS}")
        if self.max_options > 255:
            raise ValueError(f"max_options: {self.max_options} is above 255, the most that labels can be told apart")
        for name in ("memory_bytes", "disk_bytes", "max_queue", "max_queue_tokens", "max_inflight_bytes",
                     "max_body_bytes", "max_request_tokens", "max_questions", "max_options", "max_candidates",
                     "max_messages", "max_session_queue", "kept_steps", "shutdown_seconds"):  # fmt: skip
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be above 0, not {getattr(self, name)}")
        for name in ("tenant_bytes", "session_bytes",
                     "max_stream", "max_state_tokens", "max_question_tokens", "max_round_tokens", "slice_tokens", "max_wait_seconds",
                     "max_sessions",
                     "session_seconds", "deadline_seconds", "body_seconds"):  # fmt: skip
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be 0 or more, not {getattr(self, name)}")
        if self.host_bytes is not None and self.host_bytes < 0:
            raise ValueError(f"host_bytes: must be 0 or more, not {self.host_bytes}")
