"""Real commands in a temporary copy of an installed pure-Python package: no network, limits, neutral paths."""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

LIMITS = "ulimit -t 4 -f 8192 -v 4000000\n"
"""CPU seconds, blocks written, KiB of address space of one command."""
OUTPUT_CHARACTERS = 16_000
GIT = shutil.which("git") is not None
_LINE = re.compile(r"^(/bin/)?bash: line \d+: ", re.MULTILINE)
_TIMING = re.compile(r"\bin \d+\.\d+s\b")


def packages(least: int = 3, most: int = 45, largest: int = 700_000) -> list[Path]:
    """Packages of a fitting size, installed or of the standard library, by name: folders of .py files and nothing compiled."""
    found = []
    places = [Path(sysconfig.get_paths()[name]) for name in ("purelib", "stdlib")]
    for folder in sorted((p for place in places for p in place.iterdir()), key=lambda p: (p.name, str(p))):
        if not (folder / "__init__.py").is_file() or folder.name.startswith(
            ("_", "flide", "langchain_flide", "torch", "nvidia")
        ):
            continue
        files = [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        sources = [p for p in files if p.suffix == ".py"]
        size = sum(p.stat().st_size for p in sources)
        if least <= len(sources) <= most and size <= largest and not any(p.suffix in (".so", ".pyd") for p in files):
            found.append(folder)
    return found


class Templates:
    """Prepared copies of packages under one folder, made on first use; `programs` holds python, pip and pytest for the commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        self.programs.mkdir(parents=True, exist_ok=True)
        interpreter = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        if not interpreter.exists():
            interpreter = Path(sys.executable)
        site = sysconfig.get_paths()["purelib"]
        # Without -S the start of the interpreter would take most of a run's time, and its output depend on what is installed.
        texts = {
            "python": f'exec {interpreter} -S "$@"',
            "pytest": f'PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH={site}:. exec {interpreter} -S -m pytest -p no:cacheprovider "$@"',
            "pip": f'PYTHONPATH={site} exec {interpreter} -S -m pip --isolated --disable-pip-version-check --no-input "$@"',
        }
        for name, text in texts.items():
            path = self.programs / name
            path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            path.chmod(0o755)

    def of(self, package: Path) -> Path:
        """A copy of the package's sources in a repository with one commit."""
        target = self.folder / "templates" / package.name
        if not target.exists():
            staging = target.with_name(f".{package.name}.{os.getpid()}")
            (staging / package.name).parent.mkdir(parents=True)
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "py.typed", "*.exe")
            shutil.copytree(package, staging / package.name, ignore=ignored)
            (staging / "README.md").write_text(
                f"# {package.name}\n\nError handling is described in docs/errors.md.\n", encoding="utf-8"
            )
            (staging / "setup.cfg").write_text(f"[metadata]\nname = {package.name}\nversion = 1.0\n", encoding="utf-8")
            quiet = {
                "cwd": staging,
                "check": True,
                "env": self._git(),
                "stdout": subprocess.DEVNULL,
                "stderr": subprocess.DEVNULL,
            }
            if GIT:  # without it, `git` is one more program that is not there
                for command in (["init", "-q", "--template="], ["add", "."], ["commit", "-q", "-m", "Initial commit"]):
                    subprocess.run(["git", *command], **quiet)  # type: ignore[call-overload]
            try:
                staging.rename(target)
            except OSError:  # another process was first
                shutil.rmtree(staging)
        return target

    @staticmethod
    def _git() -> dict[str, str]:
        who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in (
            ("NAME", "Dev"), ("EMAIL", "dev@example.com"), ("DATE", "2026-01-01T00:00:00Z"))}  # fmt: skip
        return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **who}


class Workplace:
    """One copy to work in. root: the path that agents see; here: the real one. Use as a context manager."""

    def __init__(self, templates: Templates, package: Path, root: str, name: str) -> None:
        self.package = package.name
        self.root = root
        self.here = templates.folder / name
        shutil.copytree(templates.of(package), self.here)
        path = f"{templates.programs}:/usr/bin:/bin"
        self._env = Templates._git() | {
            "PATH": path, "HOME": str(self.here), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1",
            "PYTHONHASHSEED": "0", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "COLUMNS": "80",
        }  # fmt: skip
        self._neutral = [(str(self.here), root), (str(templates.folder), "/opt"), (sysconfig.get_paths()["purelib"], "/usr/lib/python3/dist-packages"),
                         (sys.base_prefix, "/usr"), (f"/bin/{Path(sys.executable).name}", "/bin/python")]  # fmt: skip

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.here, ignore_errors=True)

    def run(self, command: str, timeout: float = 8.0) -> tuple[int, str]:
        """(exit status, stdout and stderr as they came); 124 after a timeout. The command is bash, its paths may be the neutral ones."""
        process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", LIMITS + command.replace(self.root, str(self.here))],
            cwd=self.here, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            data, _ = process.communicate(timeout=timeout)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            data, _ = process.communicate()
            code = 124
        return code if code >= 0 else 128 - code, self.neutral(data.decode("utf-8", "replace"))

    def neutral(self, text: str) -> str:
        """The text with neutral paths and times, shortened like a terminal of limited memory would."""
        for real, shown in self._neutral:
            text = text.replace(real, shown)
        text = _TIMING.sub("in 0.01s", _LINE.sub("bash: line 1: ", text))
        if len(text) > OUTPUT_CHARACTERS:
            half = OUTPUT_CHARACTERS // 2
            text = f"{text[:half]}\n... [{len(text) - 2 * half} characters elided] ...\n{text[-half:]}"
        return text

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file but git's and caches, by relative path."""
        out: dict[str, tuple[int, int]] = {}
        stack = [str(self.here)]
        skip = len(str(self.here)) + 1
        while stack:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.name in (".git", "__pycache__", ".pytest_cache", ".cache"):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    else:
                        stat = entry.stat(follow_symlinks=False)
                        out[entry.path[skip:]] = (stat.st_size, stat.st_mtime_ns)
        return out

    def sources(self, rng: random.Random, n: int) -> list[str]:
        """n random Python files of the package, relative."""
        files = sorted(str(p.relative_to(self.here)) for p in (self.here / self.package).rglob("*.py"))
        return rng.sample(files, min(n, len(files)))

    def text(self, path: str) -> str:
        return (self.here / path).read_text(encoding="utf-8", errors="replace")
