"""Weights between those of several trainings of one architecture that started from the same weights.

    python -m training.blend OUT 0.35*flide_agent/default_model 0.65*TUNED

Weights on the straight line from where a fine-tuning began to where it ended often keep what the beginning knew and the end has unlearnt
(Wortsman et al., Robust fine-tuning of zero-shot models, 2022). OUT gets model.safetensors and the first one's config.json.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file


def blend(parts: Sequence[tuple[float, Path]], out: Path) -> None:
    """The mean of the directories' weights, weighted, each tensor summed in float32 and kept in its dtype.

    Raises ValueError where tensors' names or shapes differ, or the weights do not sum to more than zero.
    """
    total = sum(weight for weight, _ in parts)
    if total <= 0:
        raise ValueError(f"weights {[w for w, _ in parts]} do not sum to more than zero")
    stored = [load_file(directory / "model.safetensors") for _, directory in parts]
    for other in stored[1:]:
        if {k: v.shape for k, v in other.items()} != {k: v.shape for k, v in stored[0].items()}:
            raise ValueError("the directories hold different architectures")
    mixed = {
        name: (sum(w * s[name].float() for (w, _), s in zip(parts, stored, strict=True)) / total).to(value.dtype)  # type: ignore[union-attr]
        for name, value in stored[0].items()
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(mixed, out / "model.safetensors", {"format": "pt"})
    shutil.copyfile(parts[0][1] / "config.json", out / "config.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", nargs="+", metavar="WEIGHT*DIRECTORY")
    a = parser.parse_args()
    blend([(float(w), Path(d)) for w, d in (part.split("*", 1) for part in a.parts)], a.out)


if __name__ == "__main__":
    main()
