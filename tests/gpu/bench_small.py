"""The kernels that are no products, against an older copy of themselves: equal bits in every launch setting, then times.

    PYTHONPATH=engine:.:tests/kernels python tests/gpu/bench_small.py OLD        # OLD: a folder with the older kernels' files
    ... bench_small.py OLD --cpu                                                 # tiny shapes in the interpreter, host clock

One line a kernel, round and setting: microseconds of a launch (20 in a captured graph, median of 20 replays), old over new, and whether
every output has the old one's bits. Settings are compiled by child processes first. Heads are 128 x 128.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from delta_rule import Layer, level_lists, make_layer, make_rows, metadata
from flide_engine.kernels import language
from flide_engine.kernels.gdn_chunks import chunk_capacity, empty_chunks, empty_tiles, fill_chunks
from flide_engine.kernels.gdn_intra import empty_intra
from flide_engine.plan import RoundPlan
from small_settings import SETTINGS, Setting, rounds

LAUNCHES, REPLAYS = 20, 20
KERNELS = ("conv_gate", "gdn_intra", "gdn_scan", "gdn_branch", "gated_norm", "silu_mul", "add_rms_norm")
NEW = "flide_engine.kernels"
ROOMS = {"gated_norm": "gdn_scan", "silu_mul": "mlp", "add_rms_norm": "norm"}
"""The module of a kernel that is not named after it."""


def old_kernels(folder: Path, into: Path) -> None:
    """The files of `folder` as a package old_kernels that imports itself."""
    package = into / "old_kernels"
    package.mkdir()
    for path in folder.glob("*.py"):
        (package / path.name).write_text(path.read_text().replace("flide_engine.kernels", "old_kernels"))
    sys.path.insert(0, str(into))


@contextmanager
def using(room: Any, setting: Setting) -> Iterator[None]:
    kept = {name: getattr(room, name) for name in setting}
    for name, value in setting.items():
        setattr(room, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(room, name, value)


class Bench:
    """Inputs of one layer over one round, and each kernel as a function that returns all its outputs."""

    def __init__(self, plan: RoundPlan, nk: int, ratio: int, dim: int, dtype: torch.dtype, device: str, hidden: int) -> None:
        self.layer: Layer = make_layer(1, nk=nk, ratio=ratio, dk=dim, dv=dim, dtype=dtype, device=device)
        self.plan, self.m, self.device, self.dtype = plan, metadata(plan, device), device, dtype
        self.x = make_rows(self.layer, plan.rows, 2, dtype, device)
        count = len(plan.seg_len)
        self.chunks = fill_chunks(self.m.seg_len, empty_chunks(chunk_capacity(plan.rows, count), count, torch.device(device)))
        slots = max([11, *plan.seg_state_out.tolist(), *plan.save_slot.tolist()]) + 1
        rng = torch.Generator().manual_seed(3)
        layer, nv = self.layer, self.layer.nv
        self.states = (torch.randn(slots, nv, dim, dim, generator=rng) * 0.3).to(device)
        self.conv = torch.randn(slots, 3, layer.channels, generator=rng).to(device, dtype)
        self.lists = level_lists(plan, device)
        self.gate_up = torch.randn(plan.rows, 7 * hidden, generator=rng).to(device, dtype)
        self.stream, self.delta = (torch.randn(plan.rows, hidden, generator=rng).to(device, dtype) for _ in range(2))
        self.made: dict[str, tuple[torch.Tensor, ...]] = {}

    def outputs(self, name: str) -> tuple[torch.Tensor, ...]:
        """Fresh buffers that nothing has written."""
        rows, layer, dim = self.plan.rows, self.layer, self.layer.dv
        device, shape = torch.device(self.device), (rows, layer.nv, dim)
        capacity = self.chunks.table.shape[0]
        if name == "conv_gate":
            made = (
                *empty_tiles(capacity, layer.nk, layer.nv, layer.dk, dim, self.dtype, device),
                torch.empty_like(self.conv),
            )
        elif name == "gdn_intra":
            made = tuple(empty_intra(capacity, layer.nv, self.dtype, device))
        elif name == "gdn_scan":
            made = (torch.empty(shape, device=device), torch.empty_like(self.states))
        elif name == "gdn_branch":
            made = (torch.empty(shape, dtype=self.dtype, device=device), torch.empty_like(self.states))
        elif name == "gated_norm":
            made = (torch.empty(shape, dtype=self.dtype, device=device),)
        elif name == "silu_mul":
            made = (torch.empty(rows, self.gate_up.shape[1] // 2, dtype=self.dtype, device=device),)
        else:
            made = (torch.empty_like(self.stream), torch.empty_like(self.stream))
        for t in made:
            t.fill_(7.0)
        if name in ("gdn_scan", "gdn_branch"):
            made[1].copy_(self.states if name == "gdn_scan" else self.made["gdn_scan"][1])
        if name == "conv_gate":
            made[-1].copy_(self.conv)
        return made

    def work(self, name: str, room: Any, out: tuple[torch.Tensor, ...]) -> Callable[[], object]:
        """One layer's launches of a kernel of `room`, from the old kernels' inputs into `out`."""
        m, layer, chunks, made = self.m, self.layer, self.chunks, self.made
        lengths = {"seg_first_row": m.seg_first_row, "seg_len": m.seg_len}
        slots = {"seg_state_in": m.seg_state_in, "seg_state_out": m.seg_state_out}
        saves = {"seg_start": m.seg_start, "save_ptr": m.save_ptr, "save_pos": m.save_pos, "save_slot": m.save_slot}
        z = layer.z(self.x)
        if name == "conv_gate":
            from flide_engine.kernels.gdn_chunks import Tiles

            return lambda: room.conv_gate(
                self.x, layer.conv, layer.a_log, layer.dt_bias, out[-1], chunks=chunks, conv_prev=m.conv_prev,
                out=Tiles(*out[:-1]), **lengths, **saves,
            )  # fmt: skip
        if name == "silu_mul":
            return lambda: room.silu_mul(self.gate_up, out[0])
        if name == "add_rms_norm":
            weight = self.stream[0] * 0.1
            return lambda: room.add_rms_norm(self.stream, weight, out[0], eps=1e-6, delta=self.delta, residual=out[1])
        if name == "gated_norm":
            scanned = made["gdn_scan"][0]
            return lambda: room.gated_norm(scanned, z, layer.norm, out[0], eps=1e-6, row_segment=m.row_segment)
        from flide_engine.kernels.gdn_chunks import Tiles
        from flide_engine.kernels.gdn_intra import IntraOut

        tiles = Tiles(*made["conv_gate"][:-1])
        if name == "gdn_intra":
            return lambda: room.gdn_intra(tiles, chunks, IntraOut(*out))
        inside = IntraOut(*made["gdn_intra"])
        if name == "gdn_scan":
            trunks = [a[:-1] for a, _ in self.lists if len(a) > 1]
            return lambda: [
                room.gdn_scan(tiles, inside, chunks, out[1], out[0], segments=s, **lengths, **slots, **saves) for s in trunks
            ]
        locals_ = [b[:-1] for _, b in self.lists if len(b) > 1]
        return lambda: [
            room.gdn_branch(tiles, inside, chunks, out[1], z, layer.norm, out[0], eps=1e-6, segments=s, **lengths, **slots)
            for s in locals_
        ]


def microseconds(work: Callable[[], object], device: str) -> float:
    """Of one call: 20 in a captured graph, median of 20 replays; the host clock without a GPU."""
    if device == "cpu":
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e6
    work()  # compiles what is not compiled
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            work()
    graph.replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPLAYS)]
    for a, b in events:
        a.record()
        graph.replay()
        b.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in events) * 1000 / LAUNCHES


def room_of(package: str, name: str) -> Any:
    return importlib.import_module(f"{package}.{ROOMS.get(name, name)}")


def run(bench: Bench, title: str, kernels: tuple[str, ...], timed: bool) -> int:
    """Each kernel in each setting (in float32 the shipped one) against the old one. Returns how many settings gave other bits."""
    others = 0
    for name in KERNELS:
        out = bench.outputs(name)
        old = bench.work(name, room_of("old_kernels", name), out)
        old()
        bench.made[name] = tuple(t.clone() for t in out)
        if name not in kernels:
            continue
        before = microseconds(old, bench.device) if timed else 0.0
        room = room_of(NEW, name)
        for label, setting in SETTINGS[name].items():
            if bench.dtype == torch.float32 and bench.device != "cpu" and label not in ("shipped", "across 16"):
                continue
            try:
                with using(room, setting):
                    mine = bench.outputs(name)
                    new = bench.work(name, room, mine)
                    new()
                    bits = [torch.equal(a, b) for a, b in zip(mine, bench.made[name], strict=True)]
                    after = microseconds(new, bench.device) if timed else 1.0
            except Exception as problem:  # a setting that does not fit the chip is a result
                print(f"{title} {name} {label}: {type(problem).__name__} {str(problem)[:100]}", flush=True)
                others += label == "shipped"
                continue
            others += not all(bits)
            if timed:
                far = "" if all(bits) else f" differ: {[i for i, b in enumerate(bits) if not b]}"
                ratio = before / after
                print(
                    f"{title:22} {name:12} {label:22} {before:8.1f} -> {after:8.1f} us  x{ratio:.2f}  equal {all(bits)}{far}",
                    flush=True,
                )
    return others + (in_a_row(bench, title) if "conv_gate" in kernels else 0)


def in_a_row(bench: Bench, title: str) -> int:
    """A linear layer's five kernels, each on what the one before wrote: old, new, and new with dependent launches."""
    names, times, others = KERNELS[:5], {}, 0
    ways = (("old", "old_kernels", False), ("new", NEW, False), ("PDL", NEW, True))
    for label, package, pdl in ways[: 2 if bench.device == "cpu" else 3]:
        with using(language, {"PDL": pdl}):
            chain = copy.copy(bench)
            chain.made, works = {}, []
            for name in names:
                out = chain.outputs(name)
                if name == "gdn_branch":
                    out = (out[0], chain.made["gdn_scan"][1])
                works.append(chain.work(name, room_of(package, name), out))
                chain.made[name] = out
            times[label] = microseconds(lambda works=works: [w() for w in works], bench.device)  # type: ignore[misc]
        same = [name for name in names if name != "gdn_scan"]
        equal = all(torch.equal(a, b) for n in same for a, b in zip(chain.made[n], bench.made[n], strict=True))
        equal &= torch.equal(chain.made["gdn_scan"][0], bench.made["gdn_scan"][0])
        others += not equal
        times[label + " equal"] = equal
    print(f"{title:22} in a row     {times}", flush=True)
    return others


def benches(cpu: bool, ratio: int) -> Iterator[tuple[str, Bench]]:
    """ratio 0: two value heads a key head in float32, a round of every kind."""
    for name, plan in rounds(cpu).items():
        if cpu:
            yield name, Bench(plan, 1, ratio, 16, torch.float32, "cpu", 64)
        elif ratio:
            yield name, Bench(plan, 16, ratio, 128, torch.bfloat16, "cuda", 1024 if ratio == 1 else 2560)
        elif name == "mixed":
            yield "float32", Bench(plan, 16, 2, 128, torch.float32, "cuda", 2560)


def compile_all(old: Path) -> None:
    """Every setting once, in parallel, so that the timed process finds them compiled."""
    parts = [("conv_gate",), ("gdn_intra", "gated_norm"), ("gdn_scan",), ("gdn_branch", "silu_mul", "add_rms_norm")]
    children = [
        subprocess.Popen([sys.executable, __file__, str(old), "--compile", str(ratio), *part])
        for ratio in (0, 1, 2)
        for part in parts
    ]
    for child in children:
        child.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("old", type=Path)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--compile", nargs="+", default=[])
    parser.add_argument("--only", nargs="*", default=[])
    chosen = parser.parse_args()
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        old_kernels(chosen.old, Path(folder))
        if chosen.compile:
            ratio, *part = chosen.compile
            for title, bench in benches(False, int(ratio)):
                run(bench, title, tuple(part), timed=False)
            return 0
        if not chosen.cpu:
            compile_all(chosen.old)
            print(f"{torch.cuda.get_device_name()}, compiled in {time.time() - began:.0f} s", flush=True)
        others = 0
        for ratio in (1, 2) if chosen.cpu else (1, 2, 0):
            for title, bench in benches(chosen.cpu, ratio):
                kernels = tuple(chosen.only) or KERNELS
                others += run(bench, f"{bench.layer.nk}/{bench.layer.nv} {title}", kernels, timed=True)
    print(f"{others} settings gave other bits; {time.time() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
