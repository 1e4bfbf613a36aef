"""What installing and importing costs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement


def needed(extra: str) -> set[str]:
    """Every distribution that `pip install "flide-agent[extra]"` brings: by pyproject.toml, then by what is installed here."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    own = [*project["dependencies"], *project["optional-dependencies"][extra]]
    found: set[str] = set()
    todo = [("flide-agent", frozenset({extra}))]
    done = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        found.add(name)
        for line in own if name == "flide-agent" else metadata.requires(name) or []:
            requirement = Requirement(line)
            wanted = any(requirement.marker.evaluate({"extra": e}) for e in (extras or {""})) if requirement.marker else True
            if wanted:
                todo.append((requirement.name.lower().replace("_", "-"), frozenset(requirement.extras)))
    return found


@pytest.mark.parametrize(("extra", "brings"), [("langchain", {"langchain", "langgraph", "langchain-core"}), ("mcp", {"mcp"})])
def test_extras_bring_no_torch(extra: str, brings: set[str]) -> None:
    found = needed(extra)
    assert brings | {"httpx", "msgspec"} <= found
    assert not found & {"torch", "triton", "transformers", "litestar", "lmdb", "tokenizers"}


def imported(code: str) -> dict[str, Any]:
    """Runs code in a fresh interpreter; what it prints as JSON."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


TIMED = """
import json, sys, time
import langchain_core.decisions, langchain_core.tools, langchain_core.messages, langchain_core.runnables
start = time.perf_counter()
import langchain_flide
{more}
print(json.dumps({{"s": time.perf_counter() - start, "bad": [m for m in ("torch", "flide_engine", "litestar") if m in sys.modules]}}))
"""


@pytest.mark.parametrize("more", ["", "from langchain_flide import FlideDecisionModel, FlideDecider"])
def test_import_is_light(more: str) -> None:
    """How long it takes is a bar, below: a busy machine must not fail this one."""
    assert imported(TIMED.format(more=more))["bad"] == []


@pytest.mark.bars
def test_bar_import(bar: Any) -> None:
    times = sorted(imported(TIMED.format(more="from langchain_flide import FlideDecisionModel"))["s"] for _ in range(5))
    bar("langchain_flide_import_s", times[2], limit=0.5)


def test_middleware_without_langchain_says_what_to_install() -> None:
    code = """
import json, sys
sys.modules["langchain"] = None
try:
    from langchain_flide import FlideMiddleware
except ImportError as e:
    print(json.dumps({"error": str(e)}))
"""
    assert 'pip install "flide-agent[langchain]"' in imported(code)["error"]
    code = "import json, sys; sys.modules['langchain'] = None; from langchain_flide import FlideDecider; print(json.dumps({'ok': True}))"
    assert imported(code)["ok"]


def test_every_public_name_is_there() -> None:
    import langchain_flide

    assert all(getattr(langchain_flide, name) is not None for name in langchain_flide.__all__)
    with pytest.raises(AttributeError):
        _ = langchain_flide.nothing
