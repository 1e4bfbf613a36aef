"""Checkpoints to host tensors and back, bit for bit. What is shared with a parent is not written again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flide_engine.memory.checkpoint import Checkpoint
from flide_engine.memory.pool import Memory
from flide_engine.segments import GRID

LAYOUT_VERSION = 1
"""Changes with the meaning of any exported tensor."""
STAGED = 32 << 20
"""Bytes that a lane copies at a time."""


class TransferError(ValueError):
    """An exported checkpoint that does not fit this engine, or a parent that is not the one it was exported against."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A checkpoint on the host: K/V of [since, m) and the state at m.

    manifest: layout_version, m, since, dtype, state_dtype and the shape of each tensor; JSON-able.
    tensors: "k", "v" [full_layers, (m - since) / GRID, kv_heads, GRID, head_dim], "state" [linear_layers, value_heads, key_dim,
    value_dim], "conv" [linear_layers, taps, channels]; contiguous, on the CPU, owned by the receiver.
    """

    manifest: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.itemsize for t in self.tensors.values())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Lane:
    """From a GPU to the host beside the passes: on a stream of its own and through one pinned buffer.

    A copy to memory that is not pinned holds up the stream that it is on, and whoever enqueues there: on the passes' own stream it
    made the step behind it wait for tens of milliseconds. Used by one thread at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._buffer = torch.empty(STAGED, dtype=torch.uint8, pin_memory=True)

    def to_host(self, gather: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """What `gather` makes on the device, in host memory that is not pinned."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            return {name: self._copied(t) for name, t in gather().items()}

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        if not tensor.numel():
            return host
        source, target = tensor.contiguous().view(-1).view(torch.uint8), host.view(-1).view(torch.uint8)
        for at in range(0, len(source), STAGED):
            part = source[at : at + STAGED]
            staged, landed = self._buffer[: len(part)], torch.cuda.Event(blocking=True)
            staged.copy_(part, non_blocking=True)
            landed.record()
            landed.synchronize()
            target[at : at + len(part)].copy_(staged)
        return host


def export_checkpoint(checkpoint: Checkpoint, since: int = 0, lane: Lane | None = None) -> Exported:
    """Copy a checkpoint's K/V of [since, m) and its state to the host. Raises TransferError for a `since` off the grid or past m.

    lane: of the checkpoint's device; None copies on the current stream.
    """
    memory = checkpoint.memory
    if since % GRID or not 0 <= since <= checkpoint.m:
        raise TransferError(f"cannot export [{since}, {checkpoint.m}): both ends must be multiples of {GRID}")

    def gather() -> dict[str, torch.Tensor]:
        pages = torch.from_numpy(checkpoint.pages[since // GRID :].astype(np.int64)).to(memory.device)
        return {
            "k": memory.k.index_select(1, pages),
            "v": memory.v.index_select(1, pages),
            "state": memory.states[:, checkpoint.slot].clone(),
            "conv": memory.conv[:, checkpoint.slot].clone(),
        }

    host = {name: t.to("cpu") for name, t in gather().items()} if lane is None else lane.to_host(gather)
    manifest = {
        "layout_version": LAYOUT_VERSION,
        "m": checkpoint.m,
        "since": since,
        "dtype": _name(memory.dtype),
        "state_dtype": _name(memory.state_dtype),
        "shapes": {name: list(t.shape) for name, t in host.items()},
    }
    return Exported(manifest, host)


def _expected(memory: Memory, m: int, since: int) -> dict[str, Any]:
    s, n = memory.shape, (m - since) // GRID
    kv = [s.full_layers, n, s.kv_heads, GRID, s.head_dim]
    return {
        "layout_version": LAYOUT_VERSION,
        "m": m,
        "since": since,
        "dtype": _name(memory.dtype),
        "state_dtype": _name(memory.state_dtype),
        "shapes": {
            "k": kv,
            "v": kv,
            "state": [s.linear_layers, s.value_heads, s.key_dim, s.value_dim],
            "conv": [s.linear_layers, s.conv_taps, s.conv_channels],
        },
    }


def import_checkpoint(memory: Memory, exported: Exported, parent: Checkpoint | None) -> Checkpoint:
    """Bring an exported checkpoint into `memory`, sharing the pages of `parent` (a checkpoint at `since`; None when since is 0).

    Raises TransferError when manifest, tensors and parent do not fit together or do not fit the engine, PoolFull when memory is
    short. The parent keeps its own references.
    """
    manifest = exported.manifest
    m, since = manifest.get("m"), manifest.get("since")
    if not isinstance(m, int) or not isinstance(since, int) or m % GRID or since % GRID or not 0 <= since <= m:
        raise TransferError("the manifest names no valid m and since")
    if since != (0 if parent is None else parent.m):
        raise TransferError(f"the parent ends at {0 if parent is None else parent.m}, the exported part starts at {since}")
    want = _expected(memory, m, since)
    for key, value in want.items():
        if manifest.get(key) != value:
            raise TransferError(f"{key} is {manifest.get(key)!r}, this engine needs {value!r}")
    for name, shape in want["shapes"].items():
        t = exported.tensors.get(name)
        dtype = memory.state_dtype if name == "state" else memory.dtype
        if t is None or list(t.shape) != shape or t.dtype != dtype:
            raise TransferError(f"tensor {name!r} is missing or not {shape} of {dtype}")
    pages, slots = memory.take((m - since) // GRID, 1)
    slot = int(slots[0])
    index = torch.from_numpy(pages.astype(np.int64)).to(memory.device)
    memory.k.index_copy_(1, index, exported.tensors["k"].to(memory.device))
    memory.v.index_copy_(1, index, exported.tensors["v"].to(memory.device))
    memory.states[:, slot] = exported.tensors["state"].to(memory.device)
    memory.conv[:, slot] = exported.tensors["conv"].to(memory.device)
    if parent is not None:
        memory.retain(parent.pages, np.array([], np.int32))
        pages = np.concatenate([parent.pages, pages])
    return Checkpoint(memory, m, pages, slot)
