"""`flide-agent doctor`: what a server with these settings would find here, and what to change."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flide_agent.errors import FlideError
from flide_agent.settings import Settings, default_store

if TYPE_CHECKING:
    from flide_engine.engine import Engine

    from flide_agent.prompts import Prompts

Grade = Literal["good", "warning", "fault"]
MIB, GIB = 1 << 20, 1 << 30
FILES = 1024
"""Open files that a busy server needs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. change: what to do about it, "" when nothing."""

    subject: str
    grade: Grade
    found: str
    change: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """All findings, as they are made. Loads the model; never changes the store."""
    yield from _packages()
    yield from _guarded("device", lambda: _device(settings))
    yield from _guarded("limits", lambda: _limits(settings))
    yield from _guarded("store", lambda: _store(settings))
    yield from _guarded("port", lambda: _port(settings))
    yield from _guarded("keys", lambda: _keys(settings))
    yield from _guarded("model", lambda: _model(settings))


def _guarded(subject: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A look that fails is a finding too: the others still follow."""
    try:
        yield from look()
    except FlideError as e:
        yield Finding(subject, "fault", e.message)
    except Exception as e:
        yield Finding(subject, "fault", f"{type(e).__name__}: {e}")


def _packages() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "good" if (3, 11) <= sys.version_info[:2] <= (3, 13) else "warning", version)
    wanted = {"zstandard": "zstd bodies are refused", "uvloop": "a slower event loop", "httptools": "a slower HTTP parser"}
    for name, without in wanted.items():
        if importlib.util.find_spec(name) is None:
            yield Finding(name, "warning", f"not installed: {without}", f"pip install {name}")


def _device(settings: Settings) -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        grade: Grade = "fault" if settings.device.startswith("cuda") else "good"
        change = "use --device cpu, or install a torch with CUDA and a driver" if grade == "fault" else ""
        yield Finding(
            "device", grade, f"CPU, {torch.get_num_threads()} threads; torch {torch.__version__} sees no CUDA device", change
        )
        return
    if settings.device == "cpu":
        yield Finding("device", "warning", "CPU, and there is a GPU", "use --device auto")
        return
    index = int(settings.device.partition(":")[2] or 0)
    free, total = torch.cuda.mem_get_info(index)
    name = torch.cuda.get_device_name(index)
    found = f"{name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, torch {torch.__version__}"
    lacks = settings.memory_bytes > free
    yield Finding(
        "device", "fault" if lacks else "good", found, "lower memory_bytes, or end what holds the GPU" if lacks else ""
    )
    if importlib.util.find_spec("triton") is None:
        yield Finding("triton", "fault", "not installed", "pip install 'flide-agent[serve,gpu]'")


def _limits(settings: Settings) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < FILES
    yield Finding(
        "open files", "warning" if few else "good", f"{soft} (hard limit {hard})", f"ulimit -n {FILES}" if few else ""
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if settings.front_ends >= cores:
        found = f"{cores}, for the engine process and {settings.front_ends} front ends"
        yield Finding("cores", "warning", found, f"front_ends={cores - 1} at most; they pay where cores are idle")
    else:
        yield Finding(
            "cores", "good" if cores > 1 else "warning", str(cores), "" if cores > 1 else "text and engine share one core"
        )


def _store(settings: Settings) -> Iterator[Finding]:
    path = settings.store or default_store()
    at = next(p for p in (path, *path.parents) if p.exists())
    free = shutil.disk_usage(at).free
    used = sum(f.stat().st_size for f in (path / "objects").rglob("*") if f.is_file()) if (path / "objects").is_dir() else 0
    short = settings.disk_bytes - used > free
    change = f"set disk_bytes below {max(0, free + used) // MIB}MiB, or free some" if short else ""
    found = (
        f"{path}: {used / MIB:.0f} MiB kept, budget {settings.disk_bytes / GIB:.1f} GiB, {free / GIB:.1f} GiB free on the disk"
    )
    yield Finding("store", "warning" if short else "good", found, change)
    if not os.access(at, os.W_OK | os.X_OK):
        yield Finding("store", "fault", f"{at} cannot be written", f"chown it to user {os.getuid()}, or choose another --store")
    elif path.exists():
        yield from _owner(path)


def _owner(path: Path) -> Iterator[Finding]:
    from flide_agent.store import StoreError
    from flide_agent.store.directory import claim

    try:
        owner, _ = claim(path, False)
    except StoreError as e:
        yield Finding("store", "fault", e.message, "stop that server before starting one here, or choose another --store")
    else:
        owner.release()


def _port(settings: Settings) -> Iterator[Finding]:
    from flide_agent.api.http import url_of
    from flide_agent.listening import bind

    bound = bind(settings.host, settings.port)
    yield Finding("port", "good", f"{url_of(bound)} is free")
    bound.close()


def _keys(settings: Settings) -> Iterator[Finding]:
    from flide_agent.keys import OPERATOR, keys_of

    keys = keys_of(settings)
    if keys is None:
        where = "only this machine reaches it" if settings.auth != "off" else "auth is off: whoever reaches it may use it"
        yield Finding("keys", "good" if settings.auth != "off" else "warning", f"none; {settings.host}: {where}")
        return
    yield Finding("keys", "good", f"tenants: {', '.join(sorted(keys.tenants))}")
    if OPERATOR not in keys.tenants:
        change = f"`flide-agent keys new {OPERATOR}` makes a key for /metrics"
        yield Finding("keys", "warning", "nobody can read /metrics and /v1/stats", change)


def _model(settings: Settings) -> Iterator[Finding]:
    from flide_agent.local import load

    started = time.perf_counter()
    engine, prompts, served = load(settings)
    info = engine.info
    found = f"{served.name}, {info.dtype} on {info.device}, context {info.max_context}, loaded in {time.perf_counter() - started:.1f} s"
    if served.untrained:
        yield Finding("model", "warning", f"{found}; untrained: its answers mean nothing", "give a trained model with --model")
    else:
        yield Finding("model", "good", found)
    yield from _prompts(prompts)
    yield from _memory(engine)
    test = engine.self_test
    slower = "; ".join(str(s) for s in test.slower)
    grade: Grade = "fault" if not test.stable else "warning" if slower else "good"
    what = "products give equal bits in any round" if test.stable else "products do not give equal bits in any round"
    yield Finding("self-test", grade, what + (f"; on a slower path: {slower}" if slower else ""))
    yield _speed(engine)


def _prompts(prompts: Prompts) -> Iterator[Finding]:
    options = prompts.max_options
    yield Finding("labels", "good" if options >= 255 else "warning", f"up to {options} options a choice")
    whole = f"whole histories are tokenised at each step: {prompts.reason}"
    yield Finding("tokenizer", "good" if prompts.incremental else "warning",
                  "messages are tokenised on their own" if prompts.incremental else whole)  # fmt: skip


def _memory(engine: Engine) -> Iterator[Finding]:
    info = engine.info
    tokens = info.pages * 64
    few = tokens < info.max_context or info.slots < 16
    found = f"{tokens} tokens of K/V in {info.pages} pages, {info.slots} states of {info.state_bytes / MIB:.1f} MiB"
    yield Finding(
        "memory", "warning" if few else "good", found, "raise memory_bytes: the longest history does not fit" if few else ""
    )


def _speed(engine: Engine) -> Finding:
    import numpy as np
    from flide_engine.segments import Readout, Request, Round, Segment

    rows = 512
    request = Round((Request((Segment(np.full(rows, 5, np.int32), readouts=(Readout(rows - 1, (5, 6)),)),)),))
    engine.run(request)
    started = time.perf_counter()
    (done,) = engine.run(request).results
    seconds = time.perf_counter() - started
    if not all(np.isfinite(np.asarray(x)).all() for segment in done.logits for x in segment):
        return Finding("answers", "fault", "the model gives numbers that are not finite", "check or replace its weights")
    return Finding("speed", "good", f"{rows / seconds:.0f} rows a second, {1e3 * seconds:.1f} ms for {rows}")


def report(settings: Settings, tell: Callable[[str], None], as_json: bool) -> int:
    """Tell every finding. Returns the exit code: 1 when a server would not start or not be right, else 0."""
    import msgspec

    found: list[Finding] = []
    for each in examine(settings):
        found.append(each)
        if not as_json:
            tell(f"{each.grade:8} {each.subject:10} {each.found}" + (f"\n{'':20}-> {each.change}" if each.change else ""))
    if as_json:
        rows: list[dict[str, Any]] = [msgspec.to_builtins(each) for each in found]
        tell(msgspec.json.encode(rows).decode())
    return int(any(each.grade == "fault" for each in found))
