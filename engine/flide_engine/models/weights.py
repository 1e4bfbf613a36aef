"""load_model: from a name to a Model. Reads safetensors straight into the fused buffers on the device."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from flide_engine.models.config import ModelConfig, ModelError, read_json
from flide_engine.models.digest import cached_digest, stored_digest
from flide_engine.models.dummy import dummy_config, fill_random, random_digest
from flide_engine.models.qwen3_5 import EMBED, HEAD, Model, Weights, allocate

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
STORED_DTYPES = ("F64", "F32", "BF16", "F16")
PREFIXES = ("model.language_model.", "language_model.model.", "model.")
IGNORED = re.compile(r"^(mtp\.|model\.mtp\.|model\.visual\.|visual\.)|\.rotary_emb\.inv_freq$")
HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$", re.ASCII)
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "merges.txt"]
INDEX = "model.safetensors.index.json"


def load_model(name: str, *, device: torch.device | str, dtype: torch.dtype) -> Model:
    """Load "dummy:SIZE[:SEED]", a checkpoint directory, or a hub id "org/name".

    device: "cpu" or "cuda[:n]". dtype: float32, float64 or bfloat16; A_log and dt_bias stay float32.
    Raises ModelError with the file, field or tensor at fault and what to do about it.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype} is not supported; use one of {', '.join(str(d) for d in DTYPES)}")
    target = torch.device(device)
    if name.startswith("dummy:"):
        size, seed = _dummy_parts(name)
        return _random_model(name, dummy_config(size), seed, target, dtype)
    directory = locate(name)
    config = ModelConfig.read(directory)
    stored = StoredWeights.open(directory, config)
    weights = allocate(config, target, dtype)
    stored.copy_into(weights)
    if config.tied:
        stored.check_tied_head()
    digest = cached_digest(directory, stored.files(), lambda: stored_digest(config, stored.sources))
    return _model(name, config, weights, digest, False, target, dtype)


def locate(name: str) -> Path:
    """The directory of a model named by path or hub id, downloaded when it is a hub id that is not here yet."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if not HUB_ID.match(name) or name.startswith("."):
        raise ModelError(f"model {name!r} is no directory, no hub id (org/name) and no dummy:SIZE")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelError(f"model {name!r} needs huggingface-hub to be downloaded: pip install 'flide-agent[serve]'") from error
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub client's errors have no common base over its versions; none is hidden
        raise ModelError(
            f"model {name!r} is no directory here and could not be fetched from the hub ({type(error).__name__}: {error}). "
            "Check the id and the network; a gated model needs `hf auth login`; offline, give the directory of a copy"
        ) from error


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The text tower's tensors in one directory, names and shapes checked. sources: our name -> (file, name in the file)."""

    directory: Path
    sources: dict[str, tuple[Path, str]]
    tied_head: tuple[Path, str] | None

    @classmethod
    def open(cls, directory: Path, config: ModelConfig) -> StoredWeights:
        stored: dict[str, tuple[Path, str]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for path in _shards(directory):
            with _open(path) as file:
                for full in file.keys():  # noqa: SIM118 - safe_open is no mapping
                    if IGNORED.search(full):
                        continue
                    ours = _strip(full)
                    if ours in stored:
                        raise ModelError(f"{directory}: {full} is stored twice, in {stored[ours][0].name} and {path.name}")
                    view = file.get_slice(full)
                    if view.get_dtype() not in STORED_DTYPES:
                        raise ModelError(f"{path}: {full} is stored as {view.get_dtype()}; needed: {', '.join(STORED_DTYPES)}")
                    stored[ours] = (path, full)
                    shapes[ours] = tuple(view.get_shape())
        tied_head = stored.pop(HEAD, None) if config.tied else None
        expected = {ours: tuple(tensor.shape) for ours, tensor in allocate(config, "meta", torch.float32).by_name.items()}
        unexpected = [stored[ours][1] for ours in sorted(stored.keys() - expected.keys())]
        missing = sorted(expected.keys() - stored.keys())
        if missing:
            hint = "; without a stored head set tie_word_embeddings to true" if missing == [HEAD] else ""
            raise ModelError(f"{directory}: {len(missing)} tensors are missing: {_some(missing)}{hint}")
        if unexpected:
            raise ModelError(f"{directory}: {len(unexpected)} tensors do not belong to this architecture: {_some(unexpected)}")
        wrong = [
            f"{stored[ours][1]} is {list(shapes[ours])}, config.json asks for {list(shape)}"
            for ours, shape in sorted(expected.items())
            if shapes[ours] != shape
        ]
        if wrong:
            raise ModelError(f"{directory}: {len(wrong)} tensors have the wrong shape: {_some(wrong)}")
        return cls(directory, stored, tied_head)

    def files(self) -> list[Path]:
        return sorted({path for path, _ in self.sources.values()})

    def copy_into(self, weights: Weights) -> None:
        """Copy every tensor to its place, file by file; beyond the weights at most one tensor is held at a time."""
        by_file: dict[Path, list[tuple[str, str]]] = defaultdict(list)
        for ours, (path, full) in self.sources.items():
            by_file[path].append((ours, full))
        for path, entries in by_file.items():
            with _open(path) as file:
                for ours, full in entries:
                    weights.by_name[ours].copy_(file.get_tensor(full))

    def check_tied_head(self) -> None:
        """A stored head beside tied embeddings must be the embeddings, else one of the two is wrong."""
        if self.tied_head is None:
            return
        path, full = self.sources[EMBED]
        with _open(path) as file, _open(self.tied_head[0]) as other:
            if not torch.equal(file.get_tensor(full), other.get_tensor(self.tied_head[1])):
                raise ModelError(
                    f"{self.directory}: config.json ties the embeddings but {self.tied_head[1]} differs from {full}; "
                    "set tie_word_embeddings to false to use the stored head"
                )


def _model(
    name: str, config: ModelConfig, weights: Weights, digest: str, untrained: bool, device: torch.device, dtype: torch.dtype
) -> Model:
    return Model(name, config, weights.embed, weights.head, weights.norm, weights.layers, digest, untrained, device, dtype)


def _random_model(name: str, config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype) -> Model:
    weights = allocate(config, device, dtype)
    fill_random(weights, seed)
    return _model(name, config, weights, random_digest(config, seed), True, device, dtype)


def _dummy_parts(name: str) -> tuple[str, int]:
    _, size, *rest = name.split(":")
    if len(rest) > 1 or (rest and not rest[0].isdigit()):
        raise ModelError(f"{name!r}: write dummy:SIZE or dummy:SIZE:SEED, the seed a whole number")
    return size, int(rest[0]) if rest else 0


def _shards(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not index.exists():
        found = sorted(directory.glob("*.safetensors"))
        if not found:
            raise ModelError(f"{directory} holds no *.safetensors file; convert the checkpoint with save_pretrained")
        return found
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()):
        raise ModelError(f"{index}: weight_map is missing or no table of file names")
    shards = [directory / file for file in sorted(set(table.values()))]
    for path in shards:
        if path.parent != directory or not path.is_file():
            raise ModelError(f"{index} names {path.name}, which is not in {directory}; the download may be incomplete")
    return shards


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is no readable safetensors file: {error}") from error


def _strip(full: str) -> str:
    for prefix in PREFIXES:
        if full.startswith(prefix):
            return full.removeprefix(prefix)
    return full


def _some(items: list[str]) -> str:
    return "; ".join(items[:8]) + ("; ..." if len(items) > 8 else "")
