"""Tokenizers of the prompt tests: Qwen3.5's, built once into pytest's cache, and the embedded one."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from whole_prompt import Oracle

from flide_agent.prompts import Prompts


@pytest.fixture(scope="session")
def qwen35(request: pytest.FixtureRequest, shared: Path) -> Path:
    """Directory of the Qwen3.5 tokenizer with its chat template."""
    tool = shared / "tools" / "qwen35_tokenizer.py"
    version = hashlib.sha256(tool.read_bytes()).hexdigest()[:12]
    kept = getattr(request.config, "cache", None)
    cache = kept.mkdir("flide-tokenizers") if kept is not None else Path(tempfile.mkdtemp())
    directory = cache / f"qwen35-{version}"
    if not (directory / "tokenizer.json").exists():
        work = Path(tempfile.mkdtemp(dir=cache))
        built = subprocess.run([sys.executable, tool, work], capture_output=True, text=True, check=False)
        if built.returncode:
            if "CalledProcessError" in built.stderr:
                pytest.skip(f"pip cannot fetch the packages of the Qwen3.5 tokenizer: {built.stderr.strip().splitlines()[-1]}")
            pytest.fail(f"the Qwen3.5 tokenizer cannot be built: {built.stderr}")
        try:
            work.rename(directory)
        except OSError:  # another worker has built it meanwhile
            if not (directory / "tokenizer.json").exists():
                raise
    return directory


@pytest.fixture(scope="session")
def embedded() -> Path:
    """Directory of the default model."""
    from flide_agent.default_model import DIRECTORY

    return Path(DIRECTORY)


@pytest.fixture(scope="session", params=["qwen35", "embedded"])
def directory(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture(scope="session")
def prompts(directory: Path) -> Prompts:
    return Prompts.load(directory)


@pytest.fixture(scope="session")
def oracle(directory: Path) -> Oracle:
    return Oracle(directory)
