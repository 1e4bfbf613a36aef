"""The model inside the package: Qwen3.5's architecture at 7.2 M parameters, with a tokenizer of 4,096 tokens of its own.

config.json declares random weights drawn from a seed, so answers are untrained until a model.safetensors lies beside it.
tokenizer.json and tokenizer_config.json come from engine/training/build_tokenizer.py.
"""

from __future__ import annotations

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent

__all__ = ["DIRECTORY"]
