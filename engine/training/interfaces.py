"""The tools that the scripted agent acts through: bash alone, a windowed editor, named functions, or one editor tool beside bash.

Each does its work on the real files of a workplace and says what came of it in words that differ from run to run.
"""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import random
import re
import shlex
from dataclasses import dataclass
from typing import Any

from training.workplace import Workplace

INTERFACES = ("shell", "shell", "windowed", "functions", "editor")

Result = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Call:
    """What is to be run. shell: a bash command, or None when `Tools` does the work of `name` itself."""

    name: str
    arguments: dict[str, Any]
    command: str
    kind: str
    shell: str | None = None


_NOT_FOUND = ("File {path} not found", "Error: {path} does not exist.", "The path {path} does not exist. Please provide a valid path.",
              "FileNotFoundError: no such file: {path}", "could not open {path}: No such file or directory", "{path}: file not found")  # fmt: skip
_NO_MATCH = ('No matches found for "{what}" in {path}', "0 results for {what}", "Nothing found for {what}.", "No results.", "")
_EDITED = ("File updated. Please review the changes and make sure they are correct.", "The file {path} has been edited.", "Edit applied to {path}.",
           "OK, {path} changed", "Successfully replaced text in {path}", "")  # fmt: skip
_NO_OLD = ("No replacement was performed: the text does not appear in {path}.", "Error: old text not found in {path}", "Edit failed. The search text was not found in {path}.",
           "string not found in file {path}; nothing was changed")  # fmt: skip
_SYNTAX = ("Your proposed edit has introduced new syntax error(s). The edit was NOT applied.\nERRORS:\n- {error}", "Edit rejected, invalid syntax: {error}",
           "SyntaxError in the new text ({error}). The file was not changed.")  # fmt: skip
_CREATED = ("File created successfully at: {path}", "[File: {path} (1 lines total)]\n1:", "Created {path}", "wrote {path}", "")


class Tools:
    """The interface of one run. seed decides its wording."""

    def __init__(self, place: Workplace, rng: random.Random, interface: str) -> None:
        self.place, self.interface = place, interface
        self._say = {key: rng.choice(some) for key, some in (
            ("missing", _NOT_FOUND), ("none", _NO_MATCH), ("edited", _EDITED), ("old", _NO_OLD), ("syntax", _SYNTAX), ("created", _CREATED))}  # fmt: skip
        self._window = rng.choice((40, 60, 100))
        self._head = rng.choice(
            (
                "[File: {path} ({n} lines total)]\n",
                "Here's the result of running `cat -n` on {path}:\n",
                "",
                "{path}, lines {a} to {b} of {n}\n",
            )
        )
        self._number = rng.choice(("{i}:{line}", "{i:6d}\t{line}", "{i}: {line}", "{line}"))
        self._rejects = rng.random() < 0.5
        self._absolute = rng.random() < 0.5
        self._names = rng.choice((("read_file", "list_dir", "search_text", "find_files", "write_file", "replace_text", "run_command"),
                                  ("view", "ls", "grep_search", "glob", "create_file", "edit_file", "terminal"),
                                  ("ReadFile", "ListFiles", "Search", "FindFile", "WriteFile", "EditFile", "Shell"),
                                  ("fs_read", "fs_list", "code_search", "file_search", "fs_write", "apply_edit", "execute")))  # fmt: skip
        self._editor = rng.choice(("file_editor", "text_editor", "code_editor", "str_edit_tool"))
        self._bash = rng.choice(("bash", "run", "execute_bash", "shell", "terminal"))
        self.open_file = ""

    def path(self, path: str) -> str:
        """How the agent writes a relative path."""
        return f"{self.place.root}/{path}" if self._absolute else path

    # What the agent wants, as a call of this interface.

    def bash(self, command: str, kind: str) -> Call:
        name = self._names[6] if self.interface == "functions" else self._bash
        return Call(name, {"command": command}, command, kind, command)

    def list(self, path: str, rng: random.Random) -> Call:
        if self.interface == "functions":
            return self._call(1, "look", path=self.path(path))
        return self.bash(
            rng.choice(
                ("ls {p}", "ls -la {p}", "ls -R {p} | head -40", "tree {p} 2>/dev/null || ls {p}", "ls -l {p}", "ls -1 {p}")
            ).format(p=self.path(path)),
            "look",
        )

    def view(self, path: str, start: int, rng: random.Random) -> Call:
        shown = self.path(path)
        if self.interface == "windowed":
            return Call(
                "open", {"path": path, "line": start}, f'open "{shown}" {start}' if start > 1 else f"open {shown}", "look"
            )
        if self.interface == "functions":
            return self._call(0, "look", path=shown, start=start, end=start + self._window)
        if self.interface == "editor" and rng.random() < 0.8:
            return self._edit_call("look", command="view", path=shown, view_range=[start, start + self._window])
        end = start + rng.choice((20, 40, 80))
        command = rng.choice(
            (
                "cat {p}",
                "sed -n '{a},{b}p' {p}",
                "head -n 50 {p}",
                "nl -ba {p} | sed -n '{a},{b}p'",
                "cat -n {p} | head -60",
                "tail -n 30 {p}",
            )
        )
        return self.bash(command.format(p=shown, a=start, b=end), "look")

    def goto(self, start: int, down: bool) -> Call:
        return Call(
            "scroll_down" if down else "goto",
            {} if down else {"line": start},
            "scroll_down" if down else f"goto {start}",
            "look",
        )

    def search(self, pattern: str, path: str, rng: random.Random) -> Call:
        shown = self.path(path)
        if self.interface == "windowed":
            return Call("search_dir", {"term": pattern, "dir": path}, f'search_dir "{pattern}" {shown}', "search")
        if self.interface == "functions":
            return self._call(2, "search", pattern=pattern, path=shown)
        command = rng.choice(
            (
                "grep -rn {q} {p}",
                "grep -rn {q} {p} --include='*.py'",
                "grep -rln {q} {p}",
                "grep -rn {q} {p} | head -20",
                "grep -in {q} -r {p}",
            )
        )
        return self.bash(command.format(q=shlex.quote(pattern), p=shown), "search")

    def find(self, name: str, path: str, rng: random.Random) -> Call:
        if self.interface == "windowed":
            return Call("find_file", {"name": name, "dir": path}, f'find_file "{name}" {self.path(path)}', "search")
        if self.interface == "functions":
            return self._call(3, "search", name=name, path=self.path(path))
        command = rng.choice(
            ("find {p} -name {q}", "find {p} -type f -name {q} | sort", "find {p} -iname {q} -not -path '*/.git/*'")
        )
        return self.bash(command.format(p=self.path(path), q=shlex.quote(name)), "search")

    def write(self, path: str, text: str, rng: random.Random) -> Call:
        shown = self.path(path)
        if self.interface == "functions":
            return self._call(4, "edit", path=shown, content=text)
        if self.interface == "editor":
            return self._edit_call("edit", command="create", path=shown, file_text=text)
        if self.interface == "windowed" and rng.random() < 0.4:
            return Call("create", {"path": path}, f"create {shown}", "edit")
        mark = rng.choice(("EOF", "PY", "END"))
        return self.bash(f"cat > {shown} <<'{mark}'\n{text}{mark}", "edit")

    def replace(self, path: str, old: str, new: str, rng: random.Random) -> Call:
        """Put `new` in the place of one line's part `old`."""
        shown = self.path(path)
        if self.interface == "functions":
            return self._call(5, "edit", path=shown, old=old, new=new)
        if self.interface == "editor":
            return self._edit_call("edit", command="str_replace", path=shown, old_str=old, new_str=new)
        if self.interface == "windowed":
            lines = self.place.text(path).splitlines() if (self.place.here / path).is_file() else []
            at = next((i for i, line in enumerate(lines, 1) if old in line), 1)
            text = lines[at - 1].replace(old, new) if lines and old in lines[at - 1] else new
            arguments = {"path": path, "start": at, "end": at, "text": text}
            return Call("edit", arguments, f"edit {at}:{at}\n{text}\nend_of_edit", "edit")
        if rng.random() < 0.6:
            return self.bash(f"sed -i {shlex.quote(f's/{_sed(old)}/{_sed(new)}/')} {shown}", "edit")
        script = f"from pathlib import Path\np = Path({shown!r})\ns = p.read_text()\nassert {old!r} in s, 'text not found'\np.write_text(s.replace({old!r}, {new!r}, 1))\n"
        return self.bash(f"python - <<'PY'\n{script}PY", "edit")

    # Doing it.

    def do(self, call: Call, timeout: float) -> Result:
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
            return 0, self._said("created", path)
        if operation in ("edit", "str_replace", self._names[5]):
            return self._edit(path, a)
        raise ValueError(f"no tool {call.name} in this interface")

    def _call(self, which: int, kind: str, **arguments: Any) -> Call:
        name = self._names[which]
        return Call(name, arguments, f"{name} " + " ".join(f"{k}={v!r}" for k, v in arguments.items()), kind)

    def _edit_call(self, kind: str, **arguments: Any) -> Call:
        lines = [f"{self._editor} {arguments['command']} {arguments['path']}"]
        lines += [
            f"--{k}\n{v}" if isinstance(v, str) else f"--{k} {v}" for k, v in arguments.items() if k not in ("command", "path")
        ]
        return Call(self._editor, arguments, "\n".join(lines), kind)

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
        lines = self.place.text(path).splitlines()
        start = max(1, min(start, len(lines)))
        part = lines[start - 1 : start - 1 + self._window]
        head = self._head.format(path=self.path(path), n=len(lines), a=start, b=start + len(part) - 1)
        body = "\n".join(self._number.format(i=i, line=line) for i, line in enumerate(part, start))
        more = f"\n({len(lines) - start - len(part) + 1} more lines below)" if self.interface == "windowed" else ""
        return 0, head + body + more

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
                return 1, self._said("old", path)
            new = text.replace(old, str(a.get("new", a.get("new_str"))), 1)
        if self._rejects and path.endswith(".py"):
            try:
                compile(new, path, "exec")
            except SyntaxError as error:
                return 1, self._said("syntax", path, error=str(error))
        target.write_text(new, encoding="utf-8")
        said = self._said("edited", path)
        if self.interface == "windowed":
            return 0, self._show(path, max(1, int(a["start"]) - 10))[1] + "\n" + said
        return 0, said


def _sed(text: str) -> str:
    return re.sub(r"([/&\\.*\[\]^$])", r"\\\1", text)
