"""What stable bits cost: whole passes with the library's split-K products off (as served) and on, in processes in turn.

    python tests/gpu/bench_split_k.py WORKLOADS.json [0.8b 4b]

The library reads its settings when it starts, so each variant needs a process of its own. Prints Markdown: median of the processes'
medians of graph replays, and their ratio. With split-K the self-test is left out, as its products would fail it.
Shapes are a pass's own: nothing is borrowed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "kernels"), str(Path(__file__).parent)]

IN_TURN = int(os.environ.get("IN_TURN", "3"))


def measure(path: str, size: str, split: bool) -> dict[str, float]:
    """Milliseconds of one replay by workload, in this process."""
    import torch
    from flide_engine.cuda import CudaForward
    from flide_engine.cuda.process import VARIABLES
    from flide_engine.engine import Engine, make_memory
    from flide_engine.segments import Round
    from flide_engine.selftest import SelfTest

    if split:
        for name in VARIABLES:
            os.environ.pop(name, None)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    from bench_attention import median_ms
    from profile_pass import WORKLOADS, median_request
    from quick import quick_model

    class Untested(CudaForward):
        def self_test(self) -> SelfTest:
            return SelfTest(True, ())

    shapes = json.loads(Path(path).read_text())
    model = quick_model(size, torch.bfloat16)
    memory = make_memory(model.config, 4 << 30, device=model.device, dtype=torch.bfloat16)
    engine = Engine(model, memory, (Untested if split else CudaForward)(model, memory, 8192, graphs=False), 8192)
    forward, out = engine._forward, {}
    for name in WORKLOADS:
        round_ = Round((median_request(shapes[name]),))
        for _ in range(3):
            for result in engine.run(round_).results:
                for handle in result.checkpoints.values():
                    handle.release()
        prepared = engine.prepare(round_)
        staged = prepared.staged.pop()
        with torch.inference_mode():
            forward._block.post(staged, 0)  # type: ignore[attr-defined]
            forward._block.fetch(staged.shape, forward._aside)  # type: ignore[attr-defined]
            at = forward._block.views(staged.shape)  # type: ignore[attr-defined]
            out[name] = median_ms(lambda at=at: forward.enqueue(at, forward._landings.buffer), 30)  # type: ignore[attr-defined,misc]
        engine.discard(prepared)
    return out


def main() -> None:
    if sys.argv[1] == "--one":
        path, size, split = sys.argv[2:]
        print(json.dumps(measure(path, size, split == "split")))
        return
    print("| model | workload | stable ms | split-K allowed ms | ratio |\n|---|---|---|---|---|")
    for size in sys.argv[2:] or ["0.8b", "4b"]:
        found: dict[str, list[dict[str, float]]] = {"stable": [], "split": []}
        for _ in range(IN_TURN):
            for split, runs in found.items():
                command = [sys.executable, __file__, "--one", sys.argv[1], size, split]
                environment = {k: v for k, v in os.environ.items() if not k.startswith("CUBLAS")}
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise SystemExit(done.stderr[-2000:])
                runs.append(json.loads(done.stdout.splitlines()[-1]))
        for name in found["stable"][0]:
            a, b = (statistics.median(run[name] for run in found[which]) for which in ("stable", "split"))
            print(f"| {size} | {name} | {a:.3f} | {b:.3f} | {a / b:.3f} |", flush=True)


if __name__ == "__main__":
    main()
