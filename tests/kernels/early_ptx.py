"""Compiles every kernel that may start early for compute capability 9.0, and prints the order of what it does, as JSON.

    python tests/kernels/early_ptx.py       # in a process of its own, where Triton does not interpret

{kernel: {"early": [...], "plain": [...]}}: of its PTX, in order, "wait", "next" and "store" (to global memory), equal neighbours once.
"""

from __future__ import annotations

import json
import re
from typing import Any

import triton
from flide_engine.kernels import attention, conv_gate, gdn_branch, gdn_intra, gdn_scan, mlp, norm, rope_page
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WORDS = {
    "wait": r"griddepcontrol\.wait",
    "next": r"griddepcontrol\.launch_dependents",
    "store": r"st\.(?:relaxed\.|volatile\.)?global",
}
BLOCKS = {"q": "fp16[64, 32]", "k": "fp16[64, 32]", "inverse": "fp16[64, 64]", "attention": "fp16[64, 64]"}
HEADS = {"NK": 1, "NV": 1, "DK": 32, "DV": 32}
ROPE = {"HEADS": 2, "H": 2, "HALF": 8, "D": 32, "BLOCK_D": 32}


def order(
    kernel: Any, warps: int, constants: dict[str, Any], types: dict[str, str], blocks: dict[str, str], early: bool
) -> list[str]:
    """types: of arguments that are no pointers to int32."""
    constants = constants | {"EARLY": early}
    signature, values, hints = {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in blocks:
            signature[name] = f"tensordesc<{blocks[name]}>"
        elif name in constants:
            signature[name], values[(i,)] = "constexpr", constants[name]
        else:
            signature[name] = types.get(name, "*i32")
            if signature[name].startswith("*"):
                hints[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=hints)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]
    found = [next(n for n, p in WORDS.items() if re.match(p, m)) for m in re.findall("|".join(WORDS.values()), ptx)]
    return [word for i, word in enumerate(found) if i == 0 or found[i - 1] != word]


def of(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


def main() -> None:
    walk = of("*fp16", "v") | of("*fp32", "grown rest states o") | of("fp32", "scale")
    rope = (
        of("*bf16", "qkv k v weight out k_local k_pages v_pages")
        | of("*fp32", "table")
        | of("fp32", "eps")
        | of("i32", "qkv_stride k_stride")
    )
    attend = (
        of("*bf16", "q gate k_local v_local k_pages v_pages k_blocks v_blocks out") | of("*fp32", "part_acc part_max part_sum")
        | of("i32", "gate_stride v_stride part_rows table_stride depth first_split always_mask") | of("fp32", "scale")
    )  # fmt: skip
    convolve = (
        of("*bf16", "x weight pool") | of("*fp32", "a_log dt_bias g beta") | of("*fp16", "q k v") | of("i32", "x_stride segments capacity")
    )  # fmt: skip
    normed = of("*bf16", "source delta weight residual out") | of("i32", "source_stride") | of("fp32", "eps")
    gated = of("*fp32", "o") | of("*bf16", "z weight out") | of("i32", "heads z_stride") | of("fp32", "eps")
    within = of("*fp32", "g beta grown rest") | of("*fp16", "inverse attention") | of("fp32", "scale")
    scan = HEADS | {"BV": 32, "STAGES": 2, "BULK": False}
    full = {"KV_HEADS": 1, "GROUP": 4, "TOKENS": 16, "D": 32, "ROWS": 64, "KEYS": 64, "PAGE": 64, "MOST_SPANS": 8, "BULK": False,
            "PRECISION": "tf32"}  # fmt: skip
    kernels: dict[str, tuple[Any, int, dict[str, Any], dict[str, str], dict[str, str]]] = {
        "conv_gate": (conv_gate._conv_gate, 4, HEADS | {"NVP": 1, "EPS": 1e-6}, convolve, {}),
        "gdn_intra": (gdn_intra._gdn_intra, 4, {"NK": 1, "NV": 1, "HALF": True}, within, {n: BLOCKS[n] for n in "qk"}),
        "gdn_scan": (gdn_scan._gdn_scan, 4, scan | {"HAS_BRANCH": False, "branch": None}, walk, BLOCKS | {"v_blocks": "fp16[32, 64]"}),
        "gdn_scan with a branch": (gdn_scan._gdn_scan, 4, scan | {"HAS_BRANCH": True}, walk, BLOCKS | {"v_blocks": "fp16[32, 64]"}),
        "gdn_branch": (gdn_branch._gdn_branch, 4, HEADS | {"STAGES": 2, "BULK": True}, walk, BLOCKS | {"v_blocks": "fp16[32, 64]"}),
        "gated_norm": (gdn_scan._gated_norm, 4, {"NV": 1, "DV": 32, "BLOCK": 8}, gated, {}),
        "norm_rope_query": (rope_page._query, 4, ROPE | {"rows": None, "HAS_ROWS": False}, rope, {}),
        "norm_rope_key_value": (rope_page._key_value, 2, ROPE | {"PAGE": 64}, rope, {}),
        "fork_attention": (attention._fork_attention, 4, full, attend, {}),
        "add_rms_norm": (
            norm._add_rms_norm, 4, {"rows": None, "HAS_ROWS": False, "HAS_DELTA": True, "KEEP": True, "WIDTH": 64, "BLOCK": 64}, normed, {},
        ),
        "silu_mul": (mlp._silu_mul, 4, {"WIDTH": 64, "BLOCK": 64}, of("*bf16", "gate_up out"), {}),
    }  # fmt: skip
    print(json.dumps({name: {"early": order(*k, True), "plain": order(*k, False)} for name, k in kernels.items()}))


if __name__ == "__main__":
    main()
