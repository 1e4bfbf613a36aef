"""The digest of stored weights, and a small cache of it keyed by path, inode, size and times of the files."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from flide_engine.models.config import ModelConfig

_KEPT = 256  # entries of the cache; the oldest go


def stored_digest(config: ModelConfig, sources: Mapping[str, tuple[Path, str]]) -> str:
    """SHA-256 hex over config and each tensor's name, stored dtype, shape and bytes; free of sharding and name prefixes."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        parts = list(pool.map(lambda item: _tensor_digest(*item), sorted(sources.items())))
    whole = hashlib.sha256(b"stored|" + config.canonical())
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def _tensor_digest(ours: str, source: tuple[Path, str]) -> bytes:
    path, full = source
    with safe_open(path, framework="pt", device="cpu") as file:
        tensor = file.get_tensor(full).contiguous()
    one = hashlib.sha256(f"{ours}|{tensor.dtype}|{list(tensor.shape)}|".encode())
    one.update(tensor.view(-1).view(torch.uint8).numpy())
    return one.digest()


def cached_digest(directory: Path, files: list[Path], compute: Callable[[], str]) -> str:
    """The digest of these files with the config beside them, from the cache unless one of them is new or changed."""
    stats = [(path, path.stat()) for path in [directory / "config.json", *files]]
    # The time of the last status change too: unlike the modification time, a copying program cannot set it back.
    stamps = [(str(path.resolve()), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in stats]
    key = hashlib.sha256(json.dumps(stamps).encode()).hexdigest()
    cache = cache_file()
    entries = _entries(cache)
    if key in entries:
        return entries[key]
    digest = compute()
    _write(cache, dict([*entries.items(), (key, digest)][-_KEPT:]))
    return digest


def cache_file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flide-agent" / "digests.json"


def _entries(cache: Path) -> dict[str, str]:
    """What the cache holds; an absent or damaged cache holds nothing, since all of it can be computed again."""
    try:
        raw: Any = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(raw, dict):
        return {}
    return {key: value for key, value in raw.items() if isinstance(value, str) and len(value) == 64}


def _write(cache: Path, entries: dict[str, str]) -> None:
    """Replace the cache file. One that cannot be written (read-only home, full disk) costs time at the next start, no more."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=cache.parent, prefix="digests-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(entries, file)
        os.replace(temporary, cache)
    except OSError:
        return
