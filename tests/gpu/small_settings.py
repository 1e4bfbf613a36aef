"""The launch settings that bench_small.py compares with the shipped ones, and its rounds."""

from __future__ import annotations

from typing import Any

from delta_rule import plan_of, segment, stored
from flide_engine.plan import RoundPlan
from flide_engine.segments import Request

Setting = dict[str, Any]
"""Attributes of a kernel's module, by name."""


def scan_across(bv: int, warps: int, stages: int = 3) -> Setting:
    return {"ACROSS": {"BV": bv, "num_warps": warps, "STAGES": stages}}


def one_launch(**launch: int) -> Setting:
    return {"launch_of": lambda programs, core: launch}


SETTINGS: dict[str, dict[str, Setting]] = {
    "conv_gate": {
        "shipped": {},
        "16 rows": {"CONV": {"ROWS": 16, "num_warps": 4}},
        "16 rows 2 warps": {"CONV": {"ROWS": 16, "num_warps": 2}},
        "32 rows 96 reg": {"CONV": {"ROWS": 32, "num_warps": 4, "maxnreg": 96}},
        "64 rows 8 warps": {"CONV": {"ROWS": 64, "num_warps": 8}},
        "64 rows 8 warps 96 reg": {"CONV": {"ROWS": 64, "num_warps": 8, "maxnreg": 96}},
    },
    "gdn_intra": {
        "shipped": {},
        "112 reg": {"INTRA": {"num_warps": 4, "maxnreg": 112}},
        "168 reg": {"INTRA": {"num_warps": 4, "maxnreg": 168}},
    },
    "gdn_scan": {
        "shipped": {},
        "2 stages": {"SCAN": {"BV": 64, "STAGES": 2, "num_warps": 4}},
        "across 16": scan_across(16, 4),
        "across 32": scan_across(32, 4),
        "across 32 8 warps": scan_across(32, 8),
        "across 32 2 stages": scan_across(32, 4, 2),
        "across 64 8 warps": scan_across(64, 8),
    },
    "gdn_branch": {
        "shipped": {},
        "alone": one_launch(STAGES=2, num_warps=8),
        "shared": one_launch(STAGES=1, num_warps=8, maxnreg=128),
    },
    "gated_norm": {
        "shipped": {},
        "8": {"NORM": {"BLOCK": 8, "num_warps": 4}},
        "32": {"NORM": {"BLOCK": 32, "num_warps": 4}},
    },
    "silu_mul": {
        "shipped": {},
        "512 2 warps": {"LAUNCH": {"BLOCK": 512, "num_warps": 2}},
        "512": {"LAUNCH": {"BLOCK": 512, "num_warps": 4}},
        "2048 8 warps": {"LAUNCH": {"BLOCK": 2048, "num_warps": 8}},
    },
    "add_rms_norm": {"shipped": {}},
}  # fmt: skip


def rounds(cpu: bool) -> dict[str, RoundPlan]:
    def tree(trunk: int, branches: list[int], saves: tuple[int, ...] = ()) -> RoundPlan:
        return plan_of([Request((segment(trunk, saves=saves), *[segment(n, parent=0, local=True) for n in branches]))])

    mixed = plan_of([
        Request((segment(330, saves=(64, 256)), segment(66, parent=0, local=True), segment(1, parent=1, local=True),
                 segment(40, parent=0, local=True), segment(150, parent=0, local=True))),
        Request((segment(70, saves=(192,)), segment(130, parent=0, local=True), segment(9, parent=1, local=True)), stored(128, 10)),
        Request((segment(0), segment(4, parent=0, local=True)), stored(64, 10)),
    ])  # fmt: skip
    if cpu:
        return {"mixed": mixed}
    return {
        "mixed": mixed,
        "race_one": tree(243, [65], (192,)),
        "race_all": tree(285, [58, 56, 61, 57], (256,)),
        "multirc": tree(290, [24 + (i * 37) % 56 for i in range(45)], (256,)),
        "quality_one": tree(3340, [54], (3328,)),
        "quality_all": tree(6700, [45 + i * 2 for i in range(15)], (6656,)),
    }
