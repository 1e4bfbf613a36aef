"""A small round of everything, for `compute-sanitizer --tool memcheck python tests/gpu/sanitize.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "engine"), str(Path(__file__).parent)]

import numpy as np
import torch
from flide_engine.engine import Engine
from flide_engine.segments import Round
from forests import random_forest, resumed


def main() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        # Without the caching allocator nothing may be allocated while a graph is captured.
        engine = Engine.load("dummy:tiny6", device="cuda", dtype=dtype, memory_bytes=64 << 20, max_stream=1024, graphs=False)
        for seed in range(3):
            forest = random_forest(np.random.default_rng(seed), engine.info.vocab_size, most=130)
            results = engine.run(Round(forest.requests)).results
            for request, result in zip(forest.requests, results, strict=True):
                for _, checkpoint in list(result.checkpoints.items())[:1]:
                    engine.run(Round((resumed(request, checkpoint),)))
        torch.cuda.synchronize()
        print(f"{dtype}: 3 rounds and their resumed requests ran", flush=True)


if __name__ == "__main__":
    main()
