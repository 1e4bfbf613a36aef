"""The tools that the scripted agent acts through: bash alone, a windowed editor, named functions, or one editor tool beside bash.

Each does its work on the real files of a workplace and says what came of it in words that differ from run to run.
"""

from __future__ import annotations

import difflib
from typing import Any

from training.calls import Call, Calls

Result = tuple[int, str]


class Tools(Calls):
    """The interface of one run."""

    def do(self, call: Call, timeout: float) -> Result:
        if call.command in self._refused:
            return 1, self._refused[call.command]
        if call.shell is not None:
            return self.place.run(call.shell, timeout)
        a = call.arguments
        operation = a.get("command") if call.name == self._editor else call.name
        path = self._relative(str(a.get("path", a.get("dir", "."))))
        if operation in ("open", "view", self._names[0]):
            start = a.get("line") or a.get("start") or (a.get("view_range") or [1])[0]
            return self._show(path, int(start))
        if operation in ("goto", "scroll_down"):
            return (
                self._show(self.open_file, int(a.get("line", self._window)))
                if self.open_file
                else (1, "No file open. Use the open command first.")
            )
        if operation == self._names[1]:
            return self._listing(path)
        if operation in ("search_dir", self._names[2]):
            return self._found(str(a.get("term", a.get("pattern"))), path, names=False)
        if operation in ("find_file", self._names[3]):
            return self._found(str(a["name"]), path, names=True)
        if operation in ("create", self._names[4]):
            target = self.place.here / path
            if not target.parent.is_dir():
                return 1, self._said("missing", str(path).rpartition("/")[0])
            target.write_text(str(a.get("content", a.get("file_text", "\n"))), encoding="utf-8")
            self.open_file = path
            shown = "\n" + self._show(path, 1)[1] if self._shows in ("view", "snippet") else ""
            return 0, self._said("created", path) + shown
        if operation in ("edit", "str_replace", self._names[5]):
            return self._edit(path, a)
        raise ValueError(f"no tool {call.name} in this interface")

    def _with_code(self, said: str, *parts: tuple[str, str]) -> str:
        """An error and the code that it is about, in the order of this run's tools."""
        if not self._echoes:
            return said
        shown = "\n\n".join(f"{title}:\n{text}" for title, text in parts)
        return f"{said}\n\n{shown}" if self._echoes == "first" else f"{shown}\n\n{said}"

    def _relative(self, path: str) -> str:
        return path.removeprefix(self.place.root).lstrip("/") or "."

    def _said(self, key: str, path: str, **more: str) -> str:
        return self._say[key].format(path=self.path(path), **more)

    def _show(self, path: str, start: int) -> Result:
        target = self.place.here / path
        if target.is_dir():
            return self._listing(path)
        if not target.is_file():
            return 1, self._said("missing", path)
        self.open_file = path
        return 0, self._windowed(path, self.place.text(path).splitlines(), start)

    def _windowed(self, path: str, lines: list[str], start: int) -> str:
        """Some lines as this run's tools show them."""
        start = max(1, min(start, len(lines)))
        part = lines[start - 1 : start - 1 + self._window]
        head = self._head.format(path=self.path(path), n=len(lines), a=start, b=start + len(part) - 1)
        body = "\n".join(self._number.format(i=i, line=line) for i, line in enumerate(part, start))
        more = f"\n({len(lines) - start - len(part) + 1} more lines below)" if self.interface == "windowed" else ""
        return head + body + more

    def _listing(self, path: str) -> Result:
        target = self.place.here / path
        if not target.is_dir():
            return 1, self._said("missing", path)
        return 0, "\n".join(sorted(p.name + "/" * p.is_dir() for p in target.iterdir() if p.name != ".git"))

    def _found(self, what: str, path: str, *, names: bool) -> Result:
        target = self.place.here / path
        if not target.exists():
            return 1, self._said("missing", path)
        files = sorted(p for p in (target.rglob("*") if target.is_dir() else [target]) if p.is_file() and ".git" not in p.parts)
        if names:
            hits = [self.path(str(p.relative_to(self.place.here))) for p in files if p.match(what)]
        else:
            hits = [f"{self.path(str(p.relative_to(self.place.here)))}:{i}: {line.strip()[:120]}" for p in files if p.suffix == ".py"
                    for i, line in enumerate(p.read_text(encoding="utf-8", errors="replace").splitlines(), 1) if what in line]  # fmt: skip
        if not hits:
            return 0, self._say["none"].format(what=what, path=self.path(path))
        return 0, f'Found {len(hits)} matches for "{what}" in {self.path(path)}:\n' + "\n".join(hits[:40])

    def _edit(self, path: str, a: dict[str, Any]) -> Result:
        target = self.place.here / path
        if not target.is_file():
            return 1, self._said("missing", path)
        text = self.place.text(path)
        if "start" in a:
            lines = text.splitlines()
            new = "\n".join([*lines[: a["start"] - 1], *str(a["text"]).split("\n"), *lines[a["end"] :]]) + "\n"
        else:
            old = str(a.get("old", a.get("old_str")))
            if old not in text:
                return 1, self._with_code(self._said("old", path), ("Looked for", old))
            new = text.replace(old, str(a.get("new", a.get("new_str"))), 1)
        if self._rejects and path.endswith(".py"):
            try:
                compile(new, path, "exec")
            except SyntaxError as error:
                would, was = "\n".join(new.splitlines()[:40]), text[:1500]
                if self.interface == "windowed":
                    would, was = (self._windowed(path, x.splitlines(), max(1, int(a["start"]) - 10)) for x in (new, text))
                return 1, self._with_code(
                    self._said("syntax", path, error=str(error)),
                    ("The edit would give", would),
                    ("The file before", was),
                )
        target.write_text(new, encoding="utf-8")
        said = self._said("edited", path)
        before, after = text.splitlines(), new.splitlines()
        at = next((i for i, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), 0)
        if self.interface == "windowed":
            return 0, self._show(path, max(1, int(a["start"]) - 10))[1] + "\n" + said
        if self._shows == "snippet":
            said += "\n" + "\n".join(
                self._number.format(i=i + 1, line=after[i]) for i in range(max(0, at - 4), min(len(after), at + 5))
            )
        elif self._shows == "view":
            said = (
                f"{said}\n{self._show(path, max(1, at - 10))[1]}"
                if self._absolute
                else f"{self._show(path, max(1, at - 10))[1]}\n{said}"
            )
        elif self._shows == "diff":
            said = "\n".join(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm="")) or said
        return 0, said
