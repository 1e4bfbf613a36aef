"""A few random rounds through an engine on the GPU, with times per pass: the first thing to run on a new machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "engine"), str(Path(__file__).parent)]

import numpy as np
import torch
from flide_engine.engine import Engine
from flide_engine.segments import Round
from forests import random_forest
from test_gpu_bits import Tally, check_round


def main() -> None:
    name, dtype, rounds = sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3])
    began = time.perf_counter()
    engine = Engine.load(name, device="cuda", dtype=dtype, memory_bytes=4 << 30)
    print(f"{name} {dtype}: loaded in {time.perf_counter() - began:.1f} s; {engine.info.numerics}", flush=True)
    for shape in engine.self_test.slower:
        print("slower:", shape)
    if name.startswith("dummy:tiny"):
        reference = Engine.load(name, dtype=torch.float32, memory_bytes=1 << 30)
        worst = 0.0
        for seed in range(3):
            forest = random_forest(np.random.default_rng(seed), engine.info.vocab_size)
            for a, b in zip(
                engine.run(Round(forest.requests)).results, reference.run(Round(forest.requests)).results, strict=True
            ):
                worst = max(
                    [
                        worst,
                        *(
                            float(np.abs(x - y).max())
                            for s, t in zip(a.logits, b.logits, strict=True)
                            for x, y in zip(s, t, strict=True)
                        ),
                    ]
                )
        print(f"largest logit difference from the CPU reference: {worst:.3g}", flush=True)
    tally = Tally()
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        forest = random_forest(rng, engine.info.vocab_size)
        at = time.perf_counter()
        check_round(engine, forest, rng, tally, states=True)
        print(
            f"round {seed}: {time.perf_counter() - at:.2f} s, {tally.made} comparisons, failed {tally.failed[:3]}", flush=True
        )
        tally.failed.clear()


if __name__ == "__main__":
    main()
