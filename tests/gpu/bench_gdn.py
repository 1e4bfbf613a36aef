"""Gated DeltaNet on the GPU: every shipped configuration against float64, bits between rounds, then times in captured graphs.

    PYTHONPATH=engine:.:tests/kernels python tests/gpu/bench_gdn.py            # check, then time; half a minute
    PYTHONPATH=engine:.:tests/kernels python tests/gpu/bench_gdn.py variants beside    # and other settings, and flash-linear-attention
    PYTHONPATH=engine:.:tests/kernels python tests/gpu/bench_gdn.py check 16 2 bfloat16

Heads are 128 x 128. A time is the median of 20 replays of a graph of 10 layers' worth of launches, divided by 10. Bytes are what the
kernels must read and write once; the floor is bytes over 4.2 TB/s.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import torch
from delta_rule import (
    Layer,
    Pools,
    by_row,
    distance,
    expect,
    level_lists,
    make_layer,
    make_pools,
    make_rows,
    metadata,
    plan_of,
    run,
    run_core,
    run_tiles,
    segment,
    stored,
)
from flide_engine.kernels import conv_gate as conv_room
from flide_engine.kernels import gdn_branch as branch_room
from flide_engine.kernels import gdn_intra as intra_room
from flide_engine.kernels import gdn_scan as scan_room
from flide_engine.kernels.gdn_chunks import core_dtype
from flide_engine.kernels.gdn_intra import empty_intra
from flide_engine.plan import RoundPlan
from flide_engine.segments import Request

DEVICE = "cuda"
HEADS = ((16, 1), (16, 2), (16, 3))
BANDWIDTH = 4.2e12


def some_round() -> RoundPlan:
    return plan_of([
        Request((segment(330, saves=(64, 256)), segment(66, parent=0, local=True), segment(1, parent=1, local=True),
                 segment(40, parent=0, local=True))),
        Request((segment(70, saves=(192,)), segment(130, parent=0, local=True)), stored(128, 10)),
        Request((segment(0), segment(4, parent=0, local=True)), stored(64, 10)),
    ])  # fmt: skip


def check(nk: int, ratio: int, dtype: torch.dtype) -> bool:
    """Largest errors of a round of every kind, and bit stability. Prints one line."""
    torch.backends.cuda.matmul.allow_tf32 = False
    layer = make_layer(1, nk=nk, ratio=ratio, dk=128, dv=128, dtype=dtype, device=DEVICE)
    plan = some_round()
    x = make_rows(layer, plan.rows, 2, dtype, DEVICE)
    pools = make_pools(layer, 12, dtype, DEVICE)
    pools.states[10] = torch.randn(pools.states[10].shape, device=DEVICE) * 0.3
    pools.conv[10] = torch.randn(pools.conv[10].shape, device=DEVICE).to(dtype)
    want = expect(layer, x, plan, pools)
    ran = run(layer, x, plan, pools)
    torch.cuda.synchronize()
    trunk = torch.from_numpy(plan.seg_kind[plan.row_segment] == 0).to(DEVICE)
    errors = {
        "q": distance(by_row(ran.tiles.q, plan, ran.chunks), want.q),
        "v": distance(by_row(ran.tiles.v.transpose(2, 3), plan, ran.chunks), want.v),
        "g": distance(by_row(ran.tiles.g, plan, ran.chunks), want.g),
        "o": distance(ran.o[trunk], want.o[trunk]),
        "out trunk": distance(ran.out[trunk], want.out[trunk]),
        "out branch": distance(ran.out[~trunk], want.out[~trunk]),
        "state": max(distance(pools.states[s], t) for s, t in want.states.items()),
    }
    limit = {"q": 5e-4, "v": 5e-4, "g": 1e-5, "o": 2e-3, "out trunk": 4e-3, "out branch": 4e-3, "state": 2e-3}
    if dtype == torch.float32:
        limit = dict.fromkeys(errors, 5e-6)
    bits = bits_hold(layer, dtype)
    again = run(layer, x, plan, pools).out
    bits["repeat"] = torch.equal(again, ran.out)
    good = all(errors[k] <= limit[k] for k in errors) and all(bits.values())
    shown = " ".join(f"{k} {e:.1e}" for k, e in errors.items())
    print(f"{'ok ' if good else 'BAD'} {nk}/{nk * ratio} {str(dtype)[6:]:9} {shown} {bits}", flush=True)
    return good


def bits_hold(layer: Layer, dtype: torch.dtype) -> dict[str, bool]:
    whole = plan_of([Request((segment(200, saves=(64, 128)), segment(70, parent=0, local=True)))])
    x = make_rows(layer, whole.rows, 5, dtype, DEVICE)
    pools = make_pools(layer, 8, dtype, DEVICE)
    fresh = run(layer, x, whole, pools).out
    resumed = True
    for i, at in enumerate((64, 128)):
        rest = plan_of(
            [Request((segment(200 - at), segment(70, parent=0, local=True)), stored(at, int(whole.save_slot[i])))], 5
        )
        resumed &= torch.equal(run(layer, x[at:], rest, pools).out, fresh[at:])
    many = plan_of(
        [Request((segment(200), segment(70, parent=0, local=True))), *[Request((segment(65 + i),)) for i in range(9)]]
    )
    y = make_rows(layer, many.rows, 6, dtype, DEVICE)
    mine = [
        s
        for s in range(len(many.seg_len))
        if many.seg_len[s] in (200, 70) and (many.seg_len[s] == 200 or many.seg_kind[s] == 1)
    ]
    spans = [slice(int(many.seg_first_row[s]), int(many.seg_first_row[s] + many.seg_len[s])) for s in mine]
    y[spans[0]], y[spans[1]] = x[:200], x[200:]
    out = run(layer, y, many, make_pools(layer, 12, dtype, DEVICE)).out
    alone = torch.equal(out[spans[0]], fresh[:200]) and torch.equal(out[spans[1]], fresh[200:])
    return {"resumed": resumed, "alone": alone}


def graph_time(work: Callable[[], object], repeats: int = 10) -> float:
    """Milliseconds of one call of `work` inside a captured graph, median of 20 replays."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            work()
    for _ in range(3):
        graph.replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(20)]
    for a, b in events:
        a.record()
        graph.replay()
        b.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in events)[10] / repeats


class Bench:
    """One layer over one round, stage by stage."""

    def __init__(self, nk: int, ratio: int, plan: RoundPlan, dtype: torch.dtype = torch.bfloat16) -> None:
        self.layer = make_layer(1, nk=nk, ratio=ratio, dk=128, dv=128, dtype=dtype, device=DEVICE)
        self.plan, self.m = plan, metadata(plan, DEVICE)
        self.x = make_rows(self.layer, plan.rows, 2, dtype, DEVICE)
        slots = int(max([0, *plan.seg_state_out.tolist(), *plan.save_slot.tolist()])) + 1
        self.pools: Pools = make_pools(self.layer, slots, dtype, DEVICE)
        self.taps = self.layer.conv.t().contiguous()
        self.tiles, self.chunks = run_tiles(self.layer, self.x, plan, self.pools)
        self.ran = run_core(self.layer, self.x, plan, self.pools, self.tiles, self.chunks)
        self.intra = empty_intra(self.tiles.k.shape[0], self.layer.nv, dtype, torch.device(DEVICE))
        self.lists = level_lists(plan, DEVICE)
        self.o = torch.zeros(plan.rows, self.layer.nv, 128, dtype=core_dtype(dtype), device=DEVICE)
        self.out = torch.empty(plan.rows, self.layer.nv, 128, dtype=dtype, device=DEVICE)

    def conv(self) -> None:
        m, layer = self.m, self.layer
        conv_room.conv_gate(
            self.x, self.taps, layer.a_log, layer.dt_bias, self.pools.conv, chunks=self.chunks, seg_first_row=m.seg_first_row,
            seg_len=m.seg_len, seg_start=m.seg_start, conv_prev=m.conv_prev, save_ptr=m.save_ptr, save_pos=m.save_pos,
            save_slot=m.save_slot, out=self.tiles,
        )  # fmt: skip

    def inside(self) -> None:
        intra_room.gdn_intra(self.tiles, self.chunks, self.intra)

    def scan(self) -> None:
        m = self.m
        for trunks, _ in self.lists[:1]:
            scan_room.gdn_scan(
                self.tiles, self.intra, self.chunks, self.pools.states, self.o, segments=trunks[:-1], seg_first_row=m.seg_first_row,
                seg_len=m.seg_len, seg_start=m.seg_start, seg_state_in=m.seg_state_in, seg_state_out=m.seg_state_out,
                save_ptr=m.save_ptr, save_pos=m.save_pos, save_slot=m.save_slot,
            )  # fmt: skip

    def branch(self) -> None:
        m = self.m
        for _, locals_ in self.lists[1:]:
            branch_room.gdn_branch(
                self.tiles, self.intra, self.chunks, self.pools.states, self.o, segments=locals_[:-1], seg_first_row=m.seg_first_row,
                seg_len=m.seg_len, seg_state_in=m.seg_state_in, seg_state_out=m.seg_state_out,
            )  # fmt: skip

    def branch_by_scan(self) -> None:
        """Branches through the trunk's kernel: the alternative to gdn_branch."""
        m = self.m
        for _, locals_ in self.lists[1:]:
            scan_room.gdn_scan(
                self.tiles, self.intra, self.chunks, self.pools.states, self.o, segments=locals_[:-1], seg_first_row=m.seg_first_row,
                seg_len=m.seg_len, seg_start=m.seg_start, seg_state_in=m.seg_state_in, seg_state_out=m.seg_state_out,
                save_ptr=m.save_ptr, save_pos=m.save_pos, save_slot=m.save_slot,
            )  # fmt: skip

    def norm(self) -> None:
        layer = self.layer
        scan_room.gated_norm(self.o, layer.z(self.x), layer.norm, self.out, eps=1e-6, row_segment=self.m.row_segment)

    def core(self) -> None:
        self.inside()
        self.scan()

    def stages(self) -> dict[str, float]:
        names = ["conv", "inside", "scan", "core", "norm"] + (["branch"] if len(self.lists) > 1 else [])
        return {n: graph_time(getattr(self, n)) for n in names}


def rounds() -> dict[str, RoundPlan]:
    return {
        "2,048": plan_of([Request((segment(2048),))]),
        "4,096": plan_of([Request((segment(4096),))]),
        "8 x 1,024": plan_of([Request((segment(1024),)) for _ in range(8)]),
        "325": plan_of([Request((segment(256), segment(69, parent=0, local=True)))]),
        "3,355 + 48 x 64": plan_of([Request((segment(3355), *[segment(64, parent=0, local=True) for _ in range(48)]))]),
    }


def table() -> None:
    print(f"{'heads':>6} {'round':>16}  milliseconds by stage (core = inside + scan in one graph)")
    for nk, ratio in HEADS:
        for name, plan in rounds().items():
            stages = Bench(nk, ratio, plan).stages()
            print(f"{nk}/{nk * ratio:>3} {name:>16} ", *(f"{k} {v:.4f}" for k, v in stages.items()), flush=True)


def beside() -> None:
    """flash-linear-attention's chunk rule (l2 norm and output included) where it is installed: one captured graph, the same shapes."""
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError as problem:
        print(f"flash-linear-attention not timed: {problem}", flush=True)
        return
    for nk, ratio in HEADS:
        for tokens in (2048, 4096):
            nv = nk * ratio
            q, k = (torch.randn(1, tokens, nv, 128, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
            v = torch.randn(1, tokens, nv, 128, device=DEVICE, dtype=torch.bfloat16)
            g = -torch.rand(1, tokens, nv, device=DEVICE)
            beta = torch.rand(1, tokens, nv, device=DEVICE, dtype=torch.bfloat16)

            def work(q=q, k=k, v=v, g=g, beta=beta) -> object:
                with torch.no_grad():
                    return chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)

            print(f"flash-linear-attention {nk}/{nv} {tokens}: {graph_time(work):.4f} (key heads repeated)", flush=True)


def variants() -> None:
    """Other launch settings, each checked against the shipped one's output before it is timed."""
    bench = {ratio: Bench(16, ratio, rounds()["3,355 + 48 x 64"]) for ratio in (1, 2)}
    for room, setting, stage, tries in (
        (conv_room, "CONV", "conv", [{"num_warps": 4, "maxnreg": 128}, {"num_warps": 8}, {"num_warps": 8, "maxnreg": 80}]),
        (scan_room, "SCAN", "scan", [scan_room.SCAN | {"STAGES": 2}, scan_room.SCAN | {"BULK": False}]),
        (scan_room, "SCAN", "branch_by_scan", [scan_room.SCAN | {"STAGES": n} for n in (1, 2)]),
        (intra_room, "INTRA", "inside", [{"num_warps": 4, "maxnreg": n} for n in (96, 112, 144)]),
        (
            branch_room,
            "BRANCH",
            "branch",
            [branch_room.BRANCH | other for other in ({"STAGES": 1}, {"STAGES": 3}, {"BULK": False})],
        ),
    ):
        shipped = getattr(room, setting)
        for config in (shipped, *tries):
            setattr(room, setting, config)
            try:
                b = bench[2]
                error = distance(run(b.layer, b.x, b.plan, b.pools).out, b.ran.out)
                times = " ".join(f"16/{16 * ratio} {graph_time(getattr(each, stage)):.4f}" for ratio, each in bench.items())
                print(f"{stage} {config} error {error:.1e} {times}", flush=True)
            except Exception as problem:  # a setting that does not fit the chip is a result, not a failure of the run
                print(f"{stage} {config}: {type(problem).__name__} {str(problem)[:120]}", flush=True)
        setattr(room, setting, shipped)


def main() -> int:
    if sys.argv[1:2] == ["check"]:
        return 0 if check(int(sys.argv[2]), int(sys.argv[3]), getattr(torch, sys.argv[4])) else 1
    began = time.time()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    cases = [(nk, ratio, dtype) for nk, ratio in HEADS for dtype in ("bfloat16", "float32")]
    children = [subprocess.Popen([sys.executable, __file__, "check", *map(str, case)]) for case in cases]
    failed = sum(child.wait() != 0 for child in children)
    print(f"{failed} of {len(cases)} configurations failed; {time.time() - began:.0f} s", flush=True)
    table()
    print(f"{time.time() - began:.0f} s", flush=True)
    if "variants" in sys.argv:
        variants()
    if "beside" in sys.argv:
        beside()
    print(f"{time.time() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
