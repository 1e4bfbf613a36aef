"""CudaForward: one pass over a planned round. Everything is enqueued; only the label logits come back, into pinned memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch

from flide_engine.cuda.aside import Aside
from flide_engine.cuda.capacity import capacities, row_capacity
from flide_engine.cuda.full import FullMixing, Tiles, key_value_rows, page_blocks
from flide_engine.cuda.graphs import CudaRecorder, Graphs
from flide_engine.cuda.landing import Landing, Landings
from flide_engine.cuda.linear import input_matrices, mix_linear
from flide_engine.cuda.metadata import DeviceRound, MetadataBlock, Staged
from flide_engine.cuda.process import from_hopper
from flide_engine.cuda.products import Products, check_products, parts_agree
from flide_engine.cuda.shape import PassShape, apart, shape_of
from flide_engine.cuda.workspace import Workspace
from flide_engine.kernels.gdn_chunks import Chunks, fill_chunks
from flide_engine.kernels.language import triton
from flide_engine.kernels.mlp import silu_mul
from flide_engine.kernels.norm import add_rms_norm
from flide_engine.kernels.readout import label_logits
from flide_engine.kernels.rope_page import rope_table
from flide_engine.kernels.tiles import FIRST_SPLIT, build_readout_tiles, build_tiles
from flide_engine.memory import Memory
from flide_engine.models import LinearLayer, Model
from flide_engine.plan import RoundPlan, plan_round
from flide_engine.segments import Round
from flide_engine.selftest import SelfTest
from flide_engine.vocabulary import log_sum_exp, normed_rows, place_matters

Tensor = torch.Tensor

NUMERICS_VERSION = 3
"""Changes whenever the arithmetic of any kernel does."""
READOUTS_AT_START = 256
NOTHING = plan_round(Round(()), lambda pages, slots: (np.zeros(pages, np.int32), np.zeros(slots, np.int32))).plan
"""A plan of no rows: in any shape all of it is padding, so a pass over it writes no page, no slot and no logit."""


class CudaForward:
    """The pass of one model on one GPU, bfloat16 or float32 (exact: no TF32). Used by one thread, on the default stream."""

    label_mass = True

    def __init__(
        self, model: Model, memory: Memory, max_stream: int, *, graphs: bool = True, first_split: int = FIRST_SPLIT
    ) -> None:
        """graphs: replay captured passes; the bits are the same without. first_split: where histories are first split; part of the
        numerics, changed by tests alone."""
        self._model, self._memory, self._max_stream, self._first_split = model, memory, max_stream, first_split
        self._products = Products()
        self._one_gate = True  # the gate may come with a layer's first product: known once the self-test has tried
        self.numerics = ""  # known once the self-test has chosen the products
        self._block, self._landings = MetadataBlock(memory.device), Landings()
        c = model.config
        self._rope = rope_table(c.rope_theta, c.rotary_dim, c.max_context, memory.device)
        self._page_blocks = page_blocks(memory)
        in_all = max((w.in_all.shape[0] for w in model.layers if isinstance(w, LinearLayer)), default=0)
        self._workspace = Workspace(
            c,
            in_all,
            row_capacity(max_stream),
            row_capacity(min(READOUTS_AT_START, max_stream)),
            device=memory.device,
            dtype=memory.dtype,
        )
        self._taps = [layer.conv.t().contiguous() for layer in model.layers if isinstance(layer, LinearLayer)]
        self._aside = Aside(memory.device)
        self._early = from_hopper(memory.device)
        self._alone: bool | None = None  # known when the vocabulary is first summed
        self.graphs: Graphs | None = None
        if graphs and memory.device.type == "cuda":
            self.graphs = Graphs(CudaRecorder(memory.device), row_capacity(max_stream), kernels=self._workspace.kernels)

    def self_test(self) -> SelfTest:
        """Every product shape over every row capacity of this engine; what was taken for it is given back."""
        rows = capacities(self._max_stream)
        result = check_products(self._weights(), self._products, rows)
        mixing = next((layer for layer in self._model.layers if isinstance(layer, LinearLayer)), None)
        if mixing is not None and (few := [count for count in rows if not apart(count)]):
            self._one_gate = parts_agree(mixing.in_all, (mixing.in_first, mixing.in_z), self._products, few)
        if self._memory.device.type == "cuda":
            torch.cuda.empty_cache()
        self.numerics = self._numerics()
        return result

    def _numerics(self) -> str:
        """Kernel version, GPU, and a digest of library builds and of the products that run in fixed order."""
        fixed = ",".join(f"{n}x{k}" for n, k in sorted(self._products.fixed))
        build = f"{torch.__version__}|{triton.__version__}|{torch.version.cuda}|{self._first_split}|{fixed}"
        major, minor = torch.cuda.get_device_capability(self._memory.device)
        return f"cuda-{NUMERICS_VERSION}/sm_{major}{minor}/{hashlib.sha256(build.encode()).hexdigest()[:12]}"

    def _weights(self) -> list[Tensor]:
        found: dict[tuple[int, ...], Tensor] = {}
        for layer in self._model.layers:
            if isinstance(layer, LinearLayer):
                mixing = [*input_matrices(layer), layer.out]
            else:
                mixing = [layer.qkv, layer.o, layer.q, key_value_rows(layer)]
            for w in (*mixing, layer.gate_up, layer.down):
                found.setdefault(tuple(w.shape), w)
        return list(found.values())

    def stage(self, plan: RoundPlan) -> Staged:
        """Everything of a launch that the GPU is not needed for. Give it to launch, or to drop."""
        wanted = shape_of(plan, self._first_split)
        return self._block.stage(plan, wanted if self.graphs is None else self.graphs.choose(wanted), wanted)

    def drop(self, staged: Staged) -> None:
        """It will not be launched."""
        self._block.drop(staged)

    def launch(self, staged: Staged) -> Landing:
        """Enqueue the pass; its logits arrive in pinned memory. Does not wait for the GPU."""
        if not staged.plan.rows:
            self.drop(staged)
            return self._landings.empty(len(staged.plan.label_ids))
        return self._launch(staged)

    def _launch(self, staged: Staged) -> Landing:
        plan, shape = staged.plan, staged.shape
        moved = self._block.reserve(staged)
        moved |= self._landings.reserve(len(plan.label_ids))
        if self._workspace.reserve(shape) or moved:
            self._clear()
        landing = self._landings.take(len(plan.label_ids))
        self._block.post(staged, landing.at)
        enqueue = self._pass_of(shape)
        try:
            if self.graphs is None:
                enqueue()
            else:
                self.graphs.run(shape, enqueue, staged.wanted)
            done = landing.launched(self._sums(plan) if len(plan.mass) else None)
        except BaseException:
            self._block.failed()  # waits: the pass may still read its pinned block, which nothing holds after this
            raise
        self._block.sent(staged, done)
        self._landings.make_room()
        return landing

    def _pass_of(self, shape: PassShape) -> Callable[[], None]:
        """Enqueues a pass of this shape over the plan that is posted when it runs."""

        def enqueue() -> None:
            with torch.inference_mode():  # here and not around a launch, since entering it takes as long as half a replay
                self._block.fetch(shape, self._aside)
                self.enqueue(self._block.views(shape), self._landings.buffer)

        return enqueue

    @torch.inference_mode()
    def idle(self) -> bool:
        """Make one graph that passes wanted or may want soon; where its kernels are not compiled yet, compile them and make it the next
        time. Takes no memory of the device beyond the graph's own. False when nothing is left to do.
        """
        if self.graphs is None:
            return False
        shape = self.graphs.next_wanted() or self.graphs.next_guess(self._fits)
        if shape is None:
            return False
        if not self._fits(shape):  # a buffer would move, and all other graphs go
            return True
        self._workspace.reserve(shape)
        if self.graphs.compiled(shape):
            self.graphs.capture(shape, self._pass_of(shape))
        else:
            self._launch(self._block.stage(NOTHING, shape, shape))
        return True

    def _fits(self, shape: PassShape) -> bool:
        return self._block.holds(shape) and self._workspace.holds(shape)

    @torch.inference_mode()
    def _sums(self, plan: RoundPlan) -> Tensor:
        """[W] float32: the log of the sum over the vocabulary of the readouts in plan.mass, from what the pass left behind.
        Launch by launch: few ask."""
        model, read = self._model, self._workspace.read
        if self._alone is None:
            self._alone = place_matters(model.head)
        rows = torch.from_numpy(plan.mass).long().to(read.residual.device)
        normed = normed_rows(read.residual, read.delta, model.norm, rows, eps=model.config.rms_eps)
        return log_sum_exp(normed, model.head, softcap=model.config.softcap, alone=self._alone)

    def _clear(self) -> None:
        if self.graphs is not None:
            self.graphs.clear()

    def enqueue(self, at: DeviceRound, logits: Tensor) -> None:
        """The whole pass behind the fetch: tables, then layers. Neither allocates nor waits, so a graph can hold it."""
        self.run(at, self.tables(at), logits)
        self._aside.join()

    def tables(self, at: DeviceRound) -> tuple[Tiles, Chunks]:
        """Attention tiles, which may still be on their way aside, and delta-rule chunks, built on the GPU."""
        w, s, shape = self._workspace, at.segments, at.shape
        held = w.tables(shape)
        with self._aside:  # nothing reads them before the first full layer, which joins
            build_tiles(
                s.first_row, s.length, s.start, s.kind, s.hist, tile_ptr=held.pointers, unordered=held.unordered,
                weights=held.weights, tiles=held.tiles, tokens_a_tile=w.tokens_a_tile(shape), first_split=self._first_split,
            )  # fmt: skip
            build_readout_tiles(
                at.readout_row, at.row_segment, s.first_row, s.start, s.kind, s.hist, count=at.counts, tiles=held.readouts,
                spans=shape.spans, first_split=self._first_split,
            )  # fmt: skip
        return Tiles(held.tiles, held.readouts, shape.spans), fill_chunks(s.length, w.chunks(shape))

    def run(self, at: DeviceRound, tables: tuple[Tiles, Chunks], logits: Tensor) -> None:
        """Kernels alone: no allocation that a graph could not hold, no host synchronisation."""
        model, eps = self._model, self._model.config.rms_eps
        tiles, chunks = tables
        stream, read = self._workspace.stream.cut(at.shape.rows), self._workspace.read.cut(at.shape.readouts)
        linear = full = 0
        for i, layer in enumerate(model.layers):
            if i == 0:
                add_rms_norm(model.embed, layer.input_norm, stream.normed, eps=eps, residual=stream.residual, rows=at.token_ids)
            else:
                add_rms_norm(
                    stream.residual,
                    layer.input_norm,
                    stream.normed,
                    eps=eps,
                    delta=stream.delta,
                    residual=stream.residual,
                    early=self._early,
                )
            last = i + 1 == len(model.layers)
            if isinstance(layer, LinearLayer):
                mixed = mix_linear(
                    model.config,
                    layer,
                    self._taps[linear],
                    at,
                    chunks,
                    self._memory,
                    linear,
                    self._workspace,
                    self._products,
                    self._aside,
                    apart=not self._one_gate or apart(at.shape.rows),
                    early=self._early,
                )
                linear += 1
                if last and not at.shape.readouts:
                    return
                if last:
                    mixed = torch.index_select(mixed, 0, at.readout_row)
            else:
                mixing = FullMixing(
                    model.config,
                    layer,
                    at,
                    self._memory,
                    full,
                    self._workspace,
                    self._products,
                    self._rope,
                    self._page_blocks[full],
                    early=self._early,
                )
                self._aside.join()
                mixing.project(last)
                if last and not at.shape.readouts:
                    return
                mixed = mixing.attend(tiles, last, self._first_split)
                full += 1
            after, rows = (read, at.readout_row) if last else (stream, None)
            self._products(mixed, layer.out if isinstance(layer, LinearLayer) else layer.o, after.delta)
            add_rms_norm(
                stream.residual,
                layer.post_norm,
                after.normed,
                eps=eps,
                delta=after.delta,
                residual=after.residual,
                rows=rows,
                early=self._early,
            )
            self._products(after.normed, layer.gate_up, after.gate_up)
            silu_mul(after.gate_up, after.acted, early=self._early)
            self._products(after.acted, layer.down, after.delta)
        label_logits(
            read.residual, read.delta, model.norm, model.head, at.label_ptr, at.label_ids, logits, count=at.shape.readouts,
            most_labels=at.shape.most_labels, eps=eps, softcap=model.config.softcap, place=at.counts[1:],
        )  # fmt: skip
