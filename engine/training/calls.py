"""What the agent wants, as calls of the tools it has: bash alone, a windowed editor, named functions, or one editor tool beside bash."""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import random
import re
import shlex
from dataclasses import dataclass, replace
from typing import Any

from training import phrases
from training.workplace import Workplace

INTERFACES = ("shell", "shell", "windowed", "functions", "editor")


@dataclass(frozen=True, slots=True)
class Call:
    """What is to be run. shell: a bash command, or None when `Tools` does the work of `name` itself."""

    name: str
    arguments: dict[str, Any]
    command: str
    kind: str
    shell: str | None = None


_NAMES = (("read_file", "view", "ReadFile", "fs_read", "cat_file", "Read", "get_file", "open_document"), ("list_dir", "ls", "ListFiles", "fs_list", "Dir", "tree_view"),
          ("search_text", "grep_search", "Search", "code_search", "Grep", "ripgrep", "search_code"), ("find_files", "glob", "FindFile", "file_search", "Glob", "locate_file"),
          ("write_file", "create_file", "WriteFile", "fs_write", "Write", "new_file", "put_file"), ("replace_text", "edit_file", "EditFile", "apply_edit", "Edit", "replace_in_file", "patch_file"),
          ("run_command", "terminal", "Shell", "execute", "Bash", "exec_shell", "system"))  # fmt: skip
"""What a read, a listing, a search, a search for names, a write, a replacement and a shell may be called."""


class Calls:
    """What one run's tools are called and say, and how what the agent wants becomes a call."""

    def __init__(self, place: Workplace, rng: random.Random, interface: str) -> None:
        self.place, self.interface = place, interface
        self._say = {"missing": phrases.missing(rng), "none": phrases.nothing(rng), "edited": phrases.edited(rng),
                     "old": phrases.not_in_file(rng), "syntax": phrases.bad_syntax(rng), "created": phrases.created(rng)}  # fmt: skip
        self._shows = rng.choice(("", "", "snippet", "diff", "view"))
        self._echoes = rng.choice(("", "", "first", "last"))  # whether a refused edit shows the code that it was about
        self._refused: dict[str, str] = {}
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
        self._names = [rng.choice(some) for some in _NAMES]
        self._editor = rng.choice(
            ("file_editor", "text_editor", "code_editor", "str_edit_tool", "editor", "edit_tool", "FileEdit")
        )
        self._bash = rng.choice(
            ("bash", "run", "execute", "shell", "terminal", "run_command", "exec", "Bash", "cmd", "console")
        )
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
            whole = self.place.text(path) if (self.place.here / path).is_file() else ""
            before, found, after = whole.partition(old)
            first = before.count("\n") + 1
            last = first + (old.count("\n") if found else 0)
            text = before.rpartition("\n")[2] + new + after.partition("\n")[0] if found else new
            arguments = {"path": path, "start": first, "end": last, "text": text}
            return Call("edit", arguments, f"edit {first}:{last}\n{text}\nend_of_edit", "edit")
        if rng.random() < 0.6 and "\n" not in old:
            return self.bash(f"sed -i {shlex.quote(f's/{_sed(old)}/{_sed(new)}/')} {shown}", "edit")
        script = f"from pathlib import Path\np = Path({shown!r})\ns = p.read_text()\nassert {old!r} in s, 'text not found'\np.write_text(s.replace({old!r}, {new!r}, 1))\n"
        return self.bash(f"python - <<'PY'\n{script}PY", "edit")

    def misuse(self, rng: random.Random) -> Call:
        """A call that its tool does not take; the next `do` with it says so."""
        word = rng.choice(("view_range", "start", "pattern", "command", "limit", "old_text", "line", "encoding"))
        path = rng.choice((self.place.package, "setup.cfg", "README.md"))
        if self.interface in ("functions", "editor"):
            which = rng.choice((0, 2, 5))
            call = self._call(
                which, ("look", "", "search", "", "", "edit")[which], path=path, **{word: rng.choice(("", "abc", -1, None))}
            )
        elif self.interface == "windowed":
            call = Call(*rng.choice((("goto", {"line": word}, f"goto {word}", "look"), ("search_file", {"term": path, "dir": "0"}, f'search_file "{path}" {rng.randint(1, 99)} {word}', "search"),
                                     ("edit", {"path": path, "start": 0}, f"edit 0:{word}\n    pass\nend_of_edit", "edit"))))  # fmt: skip
        else:
            command = rng.choice((f"vim {path}", f"nano {path}", "python", f"less {path}", f"cd {path}\nls\npwd"))
            call = replace(self.bash(command, "other"), shell=None)
        self._refused[call.command] = phrases.misuse(rng, word)
        return call

    def _call(self, which: int, kind: str, **arguments: Any) -> Call:
        name = self._names[which]
        return Call(name, arguments, f"{name} " + " ".join(f"{k}={v!r}" for k, v in arguments.items()), kind)

    def _edit_call(self, kind: str, **arguments: Any) -> Call:
        lines = [f"{self._editor} {arguments['command']} {arguments['path']}"]
        lines += [
            f"--{k}\n{v}" if isinstance(v, str) else f"--{k} {v}" for k, v in arguments.items() if k not in ("command", "path")
        ]
        return Call(self._editor, arguments, "\n".join(lines), kind)


def _sed(text: str) -> str:
    return re.sub(r"([/&\\.*\[\]^$])", r"\\\1", text)
