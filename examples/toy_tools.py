"""Tools of the example agents: a toy project in a temporary folder, and nothing outside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from langchain_core.tools import BaseTool, tool
from make_trajectory import PROJECT


def lay_out(folder: Path) -> None:
    """Write the toy project, which has a bug, into the folder."""
    for name, text in PROJECT.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def tools_in(folder: Path) -> list[BaseTool]:
    """read_file, edit_file, delete_file and run_tests, bound to the folder."""
    root = folder.resolve()

    def inside(path: str) -> Path:
        found = (root / path).resolve()
        if not found.is_relative_to(root):
            raise ValueError(f"{path} is outside the project")
        return found

    @tool
    def read_file(path: str) -> str:
        """Read a file of the project."""
        return inside(path).read_text(encoding="utf-8")

    @tool
    def edit_file(path: str, old: str, new: str) -> str:
        """Replace one piece of text, which must occur exactly once, by another."""
        text = inside(path).read_text(encoding="utf-8")
        if text.count(old) != 1:
            return f"The old text occurs {text.count(old)} times, not once."
        inside(path).write_text(text.replace(old, new), encoding="utf-8")
        return "Replaced."

    @tool
    def delete_file(path: str) -> str:
        """Delete a file of the project."""
        inside(path).unlink()
        return "Deleted."

    @tool
    def run_tests() -> str:
        """Run the project's tests."""
        command = [sys.executable, "-B", "-m", "unittest"]
        run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
        return "\n".join(run.stderr.strip().splitlines()[-12:])

    return [read_file, edit_file, delete_file, run_tests]
