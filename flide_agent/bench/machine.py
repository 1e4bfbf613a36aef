"""What a figure was measured on, and how much of the machine it took."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("flide-agent", "torch", "triton", "numpy", "tokenizers", "transformers", "uvicorn", "uvloop")
GIB = 1 << 30


def describe() -> dict[str, Any]:
    """Processor, cores, memory, GPU and driver, versions, date, commit. What is not known is None."""
    gpu = _nvidia_smi("--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "gpu": gpu.splitlines() if gpu else None,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": _commit(),
    }


def _processor() -> str:
    from flide_engine.reference.cpu import processor

    return processor()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """FLIDE_COMMIT where the checkout has no history of its own."""
    if given := os.environ.get("FLIDE_COMMIT"):
        return given
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    head = _output("git", "-C", str(root), "rev-parse", "HEAD")
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return f"{head}{' with changes' if changed else ''}" if head else None


def _nvidia_smi(*arguments: str) -> str | None:
    return _output("nvidia-smi", *arguments)


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def peak_resident(pid: int | None = None) -> int | None:
    """Bytes that a process held at most: this one, or another one of this system. None where the system does not say."""
    if pid is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


class GpuWatch:
    """The driver's own readings of the GPU in use while a server is asked: the share of time that a kernel ran, memory in use.

    Memory is the device's, less what was in use when the watch began. Without nvidia-smi it knows nothing.
    """

    INTERVAL_MS = 100

    def __init__(self, device: str = "cuda") -> None:
        """device: as torch names it; what CUDA_VISIBLE_DEVICES leaves is counted."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        index = int(device.partition(":")[2] or 0)
        self._id = visible.split(",")[index].strip() if index < len(visible.split(",")) and visible else str(index)
        self._readings: list[tuple[float, float, int]] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> GpuWatch:
        query = [
            "--query-gpu=utilization.gpu,memory.used",
            "--format=csv,noheader,nounits",
            f"--loop-ms={self.INTERVAL_MS}",
            f"--id={self._id}",
        ]
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                ["nvidia-smi", *query], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                busy, used = line.split(",")
                self._readings.append((time.perf_counter(), float(busy) / 100, int(used) << 20))

    def between(self, started: float, ended: float) -> dict[str, float | None]:
        """busy: mean share over a span of time.perf_counter. memory_bytes: most in use then."""
        window = [r for r in self._readings if started <= r[0] <= ended]
        if not window:
            return {"busy": None, "memory_bytes": None}
        idle = self._readings[0][2]
        return {"busy": sum(r[1] for r in window) / len(window), "memory_bytes": max(r[2] for r in window) - idle}
