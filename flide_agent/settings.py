"""What a service is started with. One Struct; flags, environment and files are ways to fill it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

GIB = 1 << 30
DTYPES = ("auto", "float32", "bfloat16")


def default_store() -> Path:
    """Where `serve` keeps checkpoints unless told otherwise: $XDG_STATE_HOME/flide-agent/store."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "flide-agent" / "store"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes are bytes, times are seconds, tokens are tokens of the served model. Raises ValueError naming the field.

    model: "default" (the model in the package), "dummy:SIZE", a directory, or a hub id "org/name".
    device: "auto" (cuda when there is one), "cpu", "cuda", "cuda:N".
    dtype: "auto" (float32 on the CPU, bfloat16 on a GPU), "float32", "bfloat16".
    store: directory of the checkpoint store; None means `default_store()` for a server and a temporary directory, removed
        at the end, for an in-process service.
    memory_bytes: device memory for recurrent states and K/V pages. disk_bytes: budget of the store's directory.
    port: 0 takes a free one.
    max_queue: requests that may wait for the engine; one more is refused with 429.
    max_round_tokens: the engine's requests are put into one round up to so many tokens.
    max_stream: rows of one forward pass; longer rounds run as several passes.
    max_body_bytes: of a request body after decompression.
    max_state_tokens, max_question_tokens: 0 means whatever the model's context leaves.
    max_request_tokens: all branches of one request together.
    """

    model: str = "default"
    device: str = "auto"
    dtype: str = "auto"
    store: Path | None = None
    memory_bytes: int = 2 * GIB
    disk_bytes: int = 16 * GIB
    host: str = "127.0.0.1"
    port: int = 8321
    max_queue: int = 256
    max_round_tokens: int = 8192
    max_stream: int = 4096
    max_body_bytes: int = 32 << 20
    max_state_tokens: int = 0
    max_question_tokens: int = 0
    max_request_tokens: int = 65536
    max_questions: int = 1024
    max_candidates: int = 64
    shutdown_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: {self.dtype!r} is none of {', '.join(DTYPES)}")
        if self.device not in ("auto", "cpu", "cuda") and not self.device.startswith("cuda:"):
            raise ValueError(f"device: {self.device!r} is none of auto, cpu, cuda, cuda:N")
        if not self.model:
            raise ValueError("model: empty; use 'default', 'dummy:SIZE', a directory or a hub id")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: {self.port} is not in 0..65535")
        for name in ("memory_bytes", "disk_bytes", "max_queue", "max_round_tokens", "max_stream", "max_body_bytes",
                     "max_request_tokens", "max_questions", "max_candidates", "shutdown_seconds"):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be above 0, not {getattr(self, name)}")
        for name in ("max_state_tokens", "max_question_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be 0 (the model's context) or more, not {getattr(self, name)}")
