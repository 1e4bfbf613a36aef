"""Engine: load a model, prepare a round, submit it, collect its answers. It decides nothing about keeping checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from flide_engine.memory import (
    LAYOUT_VERSION,
    Checkpoint,
    Exported,
    Lane,
    Memory,
    MemoryShape,
    export_checkpoint,
    import_checkpoint,
)
from flide_engine.models import Model, ModelConfig, load_model
from flide_engine.passes import Part, pack, split_request
from flide_engine.pieces import table_of
from flide_engine.plan import Int32, PlannedRound, RoundPlan, plan_round
from flide_engine.segments import GRID, LabelMassUnsupported, Request, Round
from flide_engine.selftest import SelfTest

Logits = npt.NDArray[np.floating]
NO_INDEX: Int32 = np.zeros(0, np.int32)


class Pending(Protocol):
    """Label logits on their way: `result()` waits and returns them, [L + W] on the host: behind them one sum over the vocabulary
    for each readout of `plan.mass`. `done()`: whether result() would not wait."""

    def result(self) -> Logits: ...

    def done(self) -> bool: ...


class Forward(Protocol):
    """A device's forward pass. `numerics` names everything that decides the bits of its results. label_mass: it can sum over
    the vocabulary, else no plan asks it to."""

    numerics: str
    label_mass: bool

    def self_test(self) -> SelfTest: ...

    def stage(self, plan: RoundPlan) -> Any:
        """Make a pass ready before its turn comes. Goes to launch or to drop, once."""
        ...

    def drop(self, staged: Any) -> None: ...

    def launch(self, staged: Any) -> Pending: ...

    def idle(self) -> bool:
        """`Engine.idle`."""
        ...


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What identifies an engine's results and what a caller needs to size requests."""

    model: str
    weights_digest: str
    dtype: str
    device: str
    layout_version: int
    numerics: str
    vocab_size: int
    max_context: int
    max_stream: int
    untrained: bool
    kv_bytes_per_token: int
    state_bytes: int
    pages: int
    slots: int
    label_mass: bool = False
    asynchronous: bool = False
    """submit returns before the work is done, so that the next round can be prepared meanwhile."""


@dataclass(frozen=True, slots=True)
class RequestResult:
    """logits[segment][readout]: [labels], float32 (float64 from a float64 engine).

    sums[segment][readout]: log(sum(exp(logits))) over the whole vocabulary where the readout asked for `mass`, else None.
    checkpoints[(segment, position)]: a handle whose reference the caller owns.
    computed_tokens: rows computed for this request alone. shared_tokens: rows computed together with other requests.
    """

    logits: tuple[tuple[Logits, ...], ...]
    checkpoints: dict[tuple[int, int], Checkpoint]
    computed_tokens: int
    shared_tokens: int
    sums: tuple[tuple[float | None, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Results in the order of the round's requests; rows and passes that were run; seconds from submit to the last logits."""

    results: tuple[RequestResult, ...]
    tokens: int
    passes: int
    seconds: float


@dataclass
class _Gathered:
    """A request's answers while its parts come in."""

    logits: list[list[Logits | None]]
    sums: list[list[float | None]]
    checkpoints: dict[tuple[int, int], Checkpoint] = field(default_factory=dict)
    computed: int = 0
    shared: int = 0


@dataclass(eq=False)
class Prepared:
    """A planned round with its memory taken. Give it to submit exactly once, or to discard."""

    requests: Sequence[Request]
    passes: list[tuple[list[Part], PlannedRound]]
    staged: list[Any]
    """For each pass what the forward made ready; empty once it is launched or dropped."""
    gathered: list[_Gathered]
    internal: list[Checkpoint]
    tokens: int


@dataclass(eq=False)
class Ticket:
    prepared: Prepared
    pending: list[Pending]
    started: float

    def done(self) -> bool:
        """Whether collect would not wait."""
        return all(p.done() for p in self.pending)


class Engine:
    """One model on one device. prepare, submit, collect, run and idle belong to one thread; export, import_ and handles to any."""

    def __init__(self, model: Model, memory: Memory, forward: Forward, max_stream: int) -> None:
        if max_stream < GRID:
            raise ValueError(f"max_stream is {max_stream}; a pass needs at least {GRID} rows")
        self.model, self.memory, self.max_stream = model, memory, max_stream
        self._forward = forward
        self._transfer = threading.Lock()
        self._lane = Lane(memory.device) if memory.device.type == "cuda" else None
        self.self_test = forward.self_test()
        self.info = EngineInfo(
            model=model.name,
            weights_digest=model.digest,
            dtype=str(memory.dtype).removeprefix("torch."),
            device=str(memory.device),
            layout_version=LAYOUT_VERSION,
            numerics=forward.numerics,
            vocab_size=model.config.vocab_size,
            max_context=model.config.max_context,
            max_stream=max_stream,
            untrained=model.untrained,
            kv_bytes_per_token=memory.page_bytes // GRID,
            state_bytes=memory.slot_bytes,
            pages=memory.pages,
            slots=memory.slots,
            label_mass=forward.label_mass,
            asynchronous=memory.device.type != "cpu",
        )

    @classmethod
    def load(
        cls,
        model: str,
        *,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        memory_bytes: int = 1 << 30,
        max_stream: int = 4096,
        graphs: bool = True,
    ) -> Engine:
        """Load a directory, a hub id or "dummy:SIZE" and check its products on this machine.

        dtype: float32 (default) or float64 on the CPU, bfloat16 (default) or float32 on CUDA. memory_bytes: pages and slots
        together. max_stream: rows of one pass. graphs: on CUDA, replay passes of a shape that came before as captured graphs; the
        bits are the same without. Raises ModelError (what is wrong with the model) or ValueError (settings).
        """
        target = torch.device(device)
        if target.type == "cpu":
            return cls._load_cpu(model, target, dtype or torch.float32, memory_bytes, max_stream)
        if target.type == "cuda":
            from flide_engine.cuda import load_cuda_engine

            return load_cuda_engine(cls, model, target, dtype or torch.bfloat16, memory_bytes, max_stream, graphs)
        raise ValueError(f"device {device!r} is not supported; use cpu or cuda")

    @classmethod
    def _load_cpu(cls, name: str, device: torch.device, dtype: torch.dtype, memory_bytes: int, max_stream: int) -> Engine:
        from flide_engine.reference.cpu import CpuForward

        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the CPU engine runs float32 or float64, not {dtype}")
        model = load_model(name, device=device, dtype=dtype)
        memory = make_memory(model.config, memory_bytes, device=device, dtype=dtype)
        return cls(model, memory, CpuForward(model, memory), max_stream)

    def run(self, round_: Round) -> RoundResult:
        """prepare, submit and collect in a row."""
        return self.collect(self.submit(self.prepare(round_)))

    def prepare(self, round_: Round) -> Prepared:
        """Plan a round and take its memory. Raises RequestError for an invalid request and PoolFull when memory is short;
        nothing is taken then."""
        requests = tuple(round_.requests)
        for r in requests:
            r.validate(self.model.config.vocab_size, self.model.config.max_context)
            if not self.info.label_mass and any(readout.mass for s in r.segments for readout in s.readouts):
                raise LabelMassUnsupported(f"the engine on {self.info.device} does not sum over the vocabulary")
        parts = [part for i, r in enumerate(requests) for part in split_request(i, r, self.max_stream)]
        gathered = [_Gathered(_no_readout(r), _no_readout(r)) for r in requests]
        prepared = Prepared(requests, [], [], gathered, [], 0)
        handed: dict[int, Checkpoint] = {}
        try:
            for group in pack(parts, requests, self.max_stream):
                self._plan_pass(prepared, group, handed)
        except Exception:
            self.discard(prepared)
            raise
        return prepared

    def _plan_pass(self, prepared: Prepared, group: list[Part], handed: dict[int, Checkpoint]) -> None:
        requests = []
        for part in group:
            original = prepared.requests[part.owner]
            if part.segments is original.segments:
                requests.append(original)
                continue
            start = handed[part.owner] if part.resumes else original.checkpoint
            requests.append(Request(part.segments, start, original.share_key))
        planned = plan_round(Round(requests), self.memory.take)
        prepared.passes.append((group, planned))
        prepared.staged.append(self._forward.stage(planned.plan))
        prepared.tokens += planned.plan.rows
        kept = [
            (table_of(piece, piece.checkpoint)[: position // GRID], slot)
            for placement in planned.placements
            for (_, position), (piece, slot) in placement.saves.items()
        ]
        if kept:
            self.memory.retain(np.concatenate([pages for pages, _ in kept]), np.array([slot for _, slot in kept], np.int32))
        handles = iter(kept)
        for part, placement in zip(group, planned.placements, strict=True):
            out = prepared.gathered[part.owner]
            out.computed += placement.own
            out.shared += placement.shared
            for segment, position in placement.saves:
                pages, slot = next(handles)
                handle = Checkpoint(self.memory, position, pages, slot)
                asked = (segment, position) in part.asked
                if asked:
                    out.checkpoints[part.origin[segment], position] = handle
                if position == part.hand_on:
                    handed[part.owner] = handle
                if not asked:
                    prepared.internal.append(handle)

    def submit(self, prepared: Prepared) -> Ticket:
        """Start a prepared round. On a GPU this returns before the work is done."""
        ticket = Ticket(prepared, [], time.perf_counter())
        try:
            while prepared.staged:
                ticket.pending.append(self._forward.launch(prepared.staged.pop(0)))
        except Exception:
            self.discard(prepared)
            raise
        return ticket

    def collect(self, ticket: Ticket) -> RoundResult:
        """Wait for a submitted round and return its answers; frees what only the pass needed."""
        prepared = ticket.prepared
        try:
            for (group, planned), pending in zip(prepared.passes, ticket.pending, strict=True):
                # One copy for all, since answers outlive the place where they landed.
                flat, ptr = pending.result().copy(), planned.plan.label_ptr.tolist()
                sums = dict(zip(planned.plan.mass.tolist(), flat[ptr[-1] :].tolist(), strict=True))
                for part, placement in zip(group, planned.placements, strict=True):
                    out = prepared.gathered[part.owner]
                    for origin, numbers, places in zip(part.origin, part.readouts, placement.readouts, strict=True):
                        for number, at in zip(numbers, places, strict=True):
                            out.logits[origin][number] = flat[ptr[at] : ptr[at + 1]]
                            out.sums[origin][number] = sums.get(at)
        except Exception:
            self.discard(prepared)
            raise
        seconds, passes = time.perf_counter() - ticket.started, len(prepared.passes)
        self._free_passes(prepared)
        results = tuple(
            RequestResult(
                tuple([tuple([_present(x) for x in s]) for s in g.logits]),
                g.checkpoints,
                g.computed,
                g.shared,
                tuple(map(tuple, g.sums)),
            )
            for g in prepared.gathered
        )
        return RoundResult(results, prepared.tokens, passes, seconds)

    def idle(self) -> bool:
        """One piece of work from which later rounds gain, for a moment in which no round runs or waits: on a GPU a captured graph, 25 to
        45 ms (more where kernels are compiled, once each). It changes no answer. False when nothing was left to do.

        Raises what the device raises, torch.cuda.OutOfMemoryError above all; rounds go on as before, and what failed is not tried
        again until rounds ask for it.
        """
        return self._forward.idle()

    def discard(self, prepared: Prepared) -> None:
        """Give back everything a prepared round has taken, its checkpoints included."""
        for g in prepared.gathered:
            for handle in g.checkpoints.values():
                handle.release()
            g.checkpoints = {}
        self._free_passes(prepared)

    def _free_passes(self, prepared: Prepared) -> None:
        for staged in prepared.staged:
            self._forward.drop(staged)
        for handle in prepared.internal:
            handle.release()
        for _, planned in prepared.passes:
            self.memory.release(planned.pages, planned.slots)
        prepared.internal, prepared.passes, prepared.staged = [], [], []

    def export(self, checkpoint: Checkpoint, since: int = 0) -> Exported:
        """A checkpoint as host tensors: K/V of [since, m) and the state at m. Thread-safe."""
        with self._transfer:
            return export_checkpoint(checkpoint, since, self._lane)

    def import_(self, exported: Exported, parent: Checkpoint | None = None) -> Checkpoint:
        """The reverse of export, bit for bit; pages before `since` are shared with `parent`. Thread-safe.

        Raises TransferError when it does not fit, PoolFull when memory is short.
        """
        with self._transfer:
            return import_checkpoint(self.memory, exported, parent)


def _no_readout(request: Request) -> list[list[Any]]:
    """None for each readout of each segment."""
    return [[None] * len(s.readouts) for s in request.segments]


def _present(x: Logits | None) -> Logits:
    if x is None:
        raise AssertionError("a readout was not computed")
    return x


def memory_shape(config: ModelConfig) -> MemoryShape:
    """What pages and slots hold for a model."""
    return MemoryShape(
        full_layers=config.full_layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        linear_layers=config.linear_layers,
        value_heads=config.gdn_value_heads,
        key_dim=config.gdn_key_dim,
        value_dim=config.gdn_value_dim,
        conv_channels=config.conv_channels,
        conv_taps=config.conv_kernel - 1,
    )


def make_memory(config: ModelConfig, budget: int, *, device: torch.device, dtype: torch.dtype) -> Memory:
    """Pools of at most `budget` bytes. Raises ValueError when the budget holds not even one page and one slot."""
    shape = memory_shape(config)
    state_dtype = torch.float64 if dtype is torch.float64 else torch.float32
    pages, slots = shape.split(budget, dtype, state_dtype)
    return Memory(shape, pages, slots, device=device, dtype=dtype, state_dtype=state_dtype)
