"""What training leaves on the disk: the checkpoint for the engine, and the state that another attempt goes on from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from flide_engine.models.config import ModelConfig, read_json
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from flide_agent.default_model import DIRECTORY
from training.network import Network
from training.step import Flat

KEPT = ("eos_token_id", "pad_token_id")
"""What config.json of the default model says beyond the architecture."""


@dataclass(frozen=True)
class Done:
    """part: of the whole training; steps, tokens: taken until then."""

    part: float = 0.0
    steps: int = 0
    tokens: int = 0


def export(network: Network, out: Path, dtype: torch.dtype) -> None:
    """Write model.safetensors and config.json, the file in place at once. A_log and dt_bias stay float32, as the engine keeps them."""
    tensors = {}
    for name, value in network.named():
        kept = value.detach().float() if name.endswith(("A_log", "dt_bias")) else value.detach().to(dtype)
        tensors[f"model.{name}"] = kept.cpu().contiguous()
    staging = out / "model.safetensors.part"
    save_file(tensors, staging, {"format": "pt"})
    staging.rename(out / "model.safetensors")
    config = network.config.to_json() | {k: v for k, v in read_json(DIRECTORY / "config.json").items() if k in KEPT}
    config["dtype"] = str(dtype).removeprefix("torch.")
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def load(directory: Path) -> Network:
    """The network with the weights of a directory, float32."""
    network = Network(ModelConfig.read(directory), 0)
    stored = load_file(directory / "model.safetensors")
    with torch.no_grad():
        for name, value in network.named():
            value.copy_(stored[f"model.{name}"].float())
    return network


def keep(flat: Flat, file: Path, done: Done) -> None:
    """Write weights, moments and how far the training is, in place at once."""
    staging = file.with_suffix(".part")
    told = {name: repr(getattr(done, name)) for name in Done.__dataclass_fields__}
    save_file({name: value.cpu() for name, value in flat.state().items()}, staging, told)
    staging.rename(file)


def read(file: Path | None) -> Done:
    """How far the state in a file is; nothing done where there is no file."""
    if file is None or not file.exists():
        return Done()
    with safe_open(file, "pt") as stored:
        told = stored.metadata()
    return Done(float(told["part"]), int(told["steps"]), int(told["tokens"]))


def restore(flat: Flat, file: Path | None) -> None:
    """Put the state of a file, where there is one, into weights and moments."""
    if file is not None and file.exists():
        flat.restore(load_file(file))
