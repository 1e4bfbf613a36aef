"""What a run prints and writes: readable tables, and one JSON file with everything that is needed to read them later."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from flide_agent.bench import machine

Cell = str | float | int | None


def percentile(values: Sequence[float], q: float) -> float:
    """The q-quantile of at least one value, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under their headings. columns: key in a row -> heading; columns without any value are left out."""
    shown = {key: heading for key, heading in columns.items() if any(row.get(key) is not None for row in rows)}
    cells = [[_cell(key, row.get(key)) for key in shown] for row in rows]
    widths = [max(len(h), *(len(line[i]) for line in cells)) for i, h in enumerate(shown.values())] if cells else []
    lines = [list(shown.values()), *cells]
    return "\n".join(
        "  ".join(x.rjust(w) if i else x.ljust(w) for i, (x, w) in enumerate(zip(line, widths, strict=True))) for line in lines
    )


def _cell(key: str, value: Cell) -> str:
    if value is None:
        return "-"
    if key.endswith("_bytes"):
        return f"{float(value) / machine.GIB:.2f}"
    if key in ("equal", "busy", "engine_share", "cold", "exact"):
        return f"{100 * float(value):.4g} %"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


@dataclass
class Report:
    """One run. settings: what it was asked for. tables: rows by name. failures: what must not be, a line each.

    path: the JSON file, written anew with each row, so that what was measured outlives an interruption; None for none.
    """

    command: str
    settings: dict[str, Any]
    path: Path | None = None
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, row: dict[str, Any]) -> None:
        self.tables.setdefault(name, []).append(row)
        shown = [f"{k} {_cell(k, v)}" for k, v in row.items() if isinstance(v, str | int | float)]
        print(f"{name}: {', '.join(shown[:10])}", file=sys.stderr, flush=True)
        self._write(complete=False)

    def show(self, name: str, columns: Mapping[str, str]) -> None:
        """Print a table that has rows."""
        if rows := self.tables.get(name):
            print(f"\n{name}\n{table(columns, rows)}", flush=True)

    def check_equal(self, where: str, row: Mapping[str, Any]) -> None:
        """Note what a row of measured answers must not show: lost or different answers, wrong sizes, states that were not cold."""
        if row.get("failed"):
            self.failures.append(f"{where}: {row['failed']} requests failed ({row.get('failure')})")
        for key, what in (("equal", "answers have the bits of the single client's"), ("exact", "requests have their token count"),
                          ("cold", "states were cold")):  # fmt: skip
            if (share := row.get(key)) is not None and share < 1.0:
                self.failures.append(f"{where}: only {100 * share:.4g} % of {what}")

    def finish(self) -> int:
        """Write the file, print failures. Returns the exit code: 1 when there are failures."""
        for failure in self.failures:
            print(f"FAILED {failure}", file=sys.stderr, flush=True)
        self._write(complete=True)
        return 1 if self.failures else 0

    def _write(self, *, complete: bool) -> None:
        if self.path is None:
            return
        whole = {
            "command": f"flide-agent bench {self.command}",
            "argv": sys.argv[1:],
            "complete": complete,
            "settings": self.settings,
            "machine": _machine(),
            "facts": self.facts,
            "tables": self.tables,
            "failures": self.failures,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
        new.replace(self.path)


@cache
def _machine() -> dict[str, Any]:
    return machine.describe()
