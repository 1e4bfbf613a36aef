"""The model inside the package: Qwen3.5's architecture at 7.2 M parameters, with a tokenizer of 4,096 tokens of its own.

model.safetensors was trained by engine/training. card.json holds the questions that it passed, MODEL_CARD.md all that was measured, with
what it does not do. tokenizer.json and tokenizer_config.json come from engine/training/build_tokenizer.py.
"""

from __future__ import annotations

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent

__all__ = ["DIRECTORY"]
