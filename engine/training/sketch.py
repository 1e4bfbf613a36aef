# ruff: noqa: E501 - tables of words and commands read best a line each
"""Sketched runs: tools of many names, on files that exist only in memory, and what they answer; the truth is known as it is made.

The scripted agent (`agent`) shows what real programs print. A sketch costs a thousandth of it and differs more from run to run: names and
kinds of tools, syntax of calls, refusals of windowed editors and of JSON tools, quiet shells, successes full of errors.
"""

from __future__ import annotations

import difflib
import functools
import json
import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from training import phrases, wording
from training.facts import Action, Episode
from training.sketch_runs import ran
from training.sketch_says import AFTER_HITS, EDITED, GONE, HEADS, HITS, MADE, NONE, UNDONE, Manner
from training.sketch_words import ENDS, FOLDERS, KIND, NOUNS, PATHS, PATTERNS, REFUSALS, STEMS, STORIES, TASKS, VERBS
from training.workplace import packages


@functools.cache
def texts() -> tuple[tuple[str, ...], ...]:
    """Lines of real sources, a file each, that windows and hits are taken from."""
    found = []
    for folder in packages():
        for path in sorted(folder.rglob("*.py"))[:12]:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if len(lines) > 8:
                found.append(tuple(line[:110] for line in lines[:400]))
    return tuple(found)


@dataclass
class _File:
    path: str
    lines: list[str]


class Sketch:
    """One run's files, tools and manner."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.manner = rng, Manner(rng)
        self.root = rng.choice(("/work", "/repo", "/home/dev/project", "/app", "/testbed", "/srv/site", "C:/code", "."))
        self.files = [self._file() for _ in range(rng.randint(3, 7))]
        self.window = rng.choice((5, 10, 20, 40, 80, 100, 120))
        self.size = rng.choice((1, 2, 6, 15, 40, 90))
        self.case = rng.choice(("snake", "snake", "snake", "camel", "pascal", "kebab", "dot", "mcp", "bare"))
        self.prefix = rng.choice(("fs", "files", "editor", "workspace", "code", "repo"))
        self.names = {op: self._name(op) for op in VERBS}
        self.syntax = rng.choice(("words", "words", "flags", "call", "json", "lines"))
        self.path_word = rng.choice(PATHS)
        self.one_tool = (
            rng.choice(("file_tool", "editor", "workspace_edit", "text_tool", "oh_editor", "FileTool", "doc"))
            if rng.random() < 0.3
            else ""
        )
        self.number = rng.choice(("{i}:{t}", "{i:5d}\t{t}", "{i}| {t}", "{t}", "{i}: {t}", "L{i} {t}"))
        self.head = rng.choice(HEADS)
        self.more = rng.choice(("", "({k} more lines {w})", "({k} more lines {w})", "[{k} lines {w}]", "... {k} lines {w} ..."))
        # Refusals show code as views do: a frame around code tells nothing of what became of it.
        self.headed = rng.random() < 0.7
        self.shell = rng.random() < 0.6
        self.bad = rng.choice((0.15, 0.35, 0.5, 0.6))

    def _file(self) -> _File:
        rng = self.rng
        folder = rng.choice(FOLDERS)
        return _File(f"{folder}{'/' if folder else ''}{rng.choice(STEMS)}{rng.choice(ENDS)}", list(rng.choice(texts())))

    def _name(self, op: str) -> str:
        rng = self.rng
        verb, noun = rng.choice(VERBS[op]), rng.choice(NOUNS[op])
        words = [w for w in f"{verb}_{noun}".strip("_").split("_") if w]
        if self.case == "bare":
            return words[0]
        if self.case in ("camel", "pascal"):
            joined = "".join(w.capitalize() for w in words)
            return joined if self.case == "pascal" else joined[0].lower() + joined[1:]
        name = ("-" if self.case == "kebab" else "_").join(words)
        return f"{self.prefix}.{name}" if self.case == "dot" else f"mcp__{self.prefix}__{name}" if self.case == "mcp" else name

    def _block(self, lines: Sequence[str], at: int) -> str:
        """Some lines as an agent would copy them."""
        return "\n".join(lines[max(0, at - 1) : at - 1 + self.rng.randint(1, self.size)]).strip("\n") or "pass"

    def shown(self, lines: list[str], start: int) -> str:
        part = lines[start - 1 : start - 1 + self.window]
        return "\n".join(self.number.format(i=i, t=t) for i, t in enumerate(part, start))

    def view(self, file: _File, start: int) -> str:
        return self.framed(file.path, file.lines, start)

    def framed(self, path: str, lines: list[str], start: int) -> str:
        """A window of lines with its head and what lies around it."""
        start = max(1, min(start, len(lines)))
        end = min(len(lines), start + self.window - 1)
        parts = [self.head.format(p=path, n=len(lines), a=start, b=end), self.shown(lines, start)]
        if self.more:
            parts.insert(1, self.more.format(k=start - 1, w="above") if start > 1 else "")
            parts.append(self.more.format(k=len(lines) - end, w="below") if end < len(lines) else "")
        return "\n".join(part for part in parts if part)

    # Acts: each gives (arguments, output, failed, edited files).

    def act(self, op: str) -> Action:
        rng = self.rng
        if op == "shell":
            return self._shell()
        file = rng.choice(self.files)
        n = len(file.lines)
        why = rng.choice(REFUSALS[op]) if rng.random() < self.bad else ""
        path = (
            file.path
            if why not in ("missing", "parent")
            else rng.choice((f"src/{file.path}", file.path[1:], f"old/{rng.choice(STEMS)}.py", f"{file.path}x"))
        )
        if why == "folder":
            path = path.rpartition("/")[0] or "src"
        a = rng.randint(1, n) if why not in ("beyond",) else n + rng.randint(1, 900)
        b = a + rng.randint(1, 9) if why != "range" else max(0, a - rng.randint(1, 9))
        query = rng.choice(PATTERNS) if rng.random() < 0.8 else rng.choice(file.lines).strip()[:30] or "x"
        old, new = self._block(file.lines, a), self._block(rng.choice(texts()), rng.randint(1, 9))
        if rng.random() < 0.5:
            new = old.replace(rng.choice(old.split() or ["x"]), rng.choice(("value", "result", "None", "(")))
        where = f"{self.root}/{path}" if rng.random() < 0.4 else path
        made: dict[str, Callable[[], dict[str, Any]]] = {
            "open": lambda: {self.path_word: where} | ({"start": a} if rng.random() < 0.6 or why in ("beyond", "range") else {}) | ({"end": b} if why == "range" or rng.random() < 0.3 else {}), "list": lambda: {self.path_word: where.rpartition("/")[0] or "."},
            "scroll": lambda: {"lines": self.window} if rng.random() < 0.3 else {}, "search": lambda: {"query": query} | ({self.path_word: where} if rng.random() < 0.7 else {}), "find": lambda: {"pattern": f"*{path[-6:]}"},
            "create": lambda: {self.path_word: where, "content": "\n".join(file.lines[: rng.randint(1, 12 * self.size)])}, "insert": lambda: {self.path_word: where, "line": a, "text": new},
            "edit": lambda: {self.path_word: where, **({"start": a, "end": b, "text": new} if why in ("beyond", "range", "closed") or rng.random() < 0.4 else {"old": old, "new": new})}, "delete": lambda: {self.path_word: where},
            "move": lambda: {"source": where, "target": f"{rng.choice(FOLDERS)}/{rng.choice(STEMS)}.py"}, "undo": lambda: {self.path_word: where} if rng.random() < 0.6 else {}, "run": lambda: {"command": f"python {where}"}, "test": lambda: {self.path_word: where} if rng.random() < 0.5 else {},
        }  # fmt: skip
        arguments = made[op]()
        fields: dict[str, object] = {"p": where, "a": a, "b": b, "n": n, "q": query}
        if why:
            changed = [*file.lines[: a - 1], *new.split("\n"), *file.lines[b:]]
            show = (lambda lines, at: self.framed(file.path, lines, at)) if self.headed else self.shown
            would = show(changed, max(1, a - self.window // 2))
            window = show(file.lines, max(1, min(a, n) - self.window // 2))
            output = self.manner.refuse(why, self.names[op], fields, window, would if why == "syntax" else old)
            return self._action(op, arguments, output, True, ())
        if op in ("run", "test"):
            made_up = ran(rng, file.path, op == "test")
            if op == "run" and made_up.kind == "run":
                arguments = {"command": made_up.line}
                return self._action(op, arguments, made_up.output, made_up.failed, (), made_up.tests)
            if op == "test":
                return self._action(op, arguments, made_up.output, made_up.failed, (), made_up.tests)
            return self._shell()
        return self._action(
            op, arguments, self.manner.accept(self._good(op, file, a, fields)), False, (where,) if KIND[op] == "edit" else ()
        )

    def _good(self, op: str, file: _File, a: int, fields: dict[str, object]) -> str:
        rng = self.rng

        def said(some: tuple[str, ...]) -> str:
            return rng.choice(some).format(**fields)

        if op in ("open", "scroll"):
            return self.view(file, a if rng.random() < 0.7 else 1)
        if op in ("list", "find"):
            if op == "find" and rng.random() < 0.3:
                return said(NONE)
            found = [f.path for f in self.files] + [f"{rng.choice(STEMS)}{rng.choice(ENDS)}" for _ in range(rng.randint(0, 6))]
            return "\n".join([*([said(HITS)] if op == "find" else []), *sorted(found)]).strip()
        if op == "search":
            if rng.random() < 0.35:
                return said(NONE)
            hits = [f"{file.path}:{i}:{line.strip()}" for i, line in enumerate(file.lines, 1) if line.strip()]
            shown = rng.sample(hits, min(len(hits), rng.randint(1, 9)))
            return f"{said(HITS)}\n" * (rng.random() < 0.6) + "\n".join(shown) + "\n" + said(AFTER_HITS)
        text = said({"create": MADE, "delete": GONE, "move": GONE, "undo": UNDONE}.get(op, EDITED))
        if op in ("edit", "create") and rng.random() < 0.2:
            old, new = file.lines[a - 1 : a + 2], self._block(rng.choice(texts()), 2).split("\n")
            return "\n".join(difflib.unified_diff(old if op == "edit" else [], new, file.path, file.path, lineterm="", n=1))
        if op in ("edit", "insert", "create") and rng.random() < 0.3:
            text = self.manner.review(text)
        if op in ("edit", "insert", "undo", "create") and rng.random() < 0.45:
            text = f"{text}\n{self.view(file, a)}" if self.manner.first else f"{self.view(file, a)}\n{text}"
        return text

    def _shell(self) -> Action:
        """A command line; what it prints is made up."""
        rng, file = self.rng, self.rng.choice(self.files)
        made_up = ran(rng, file.path, rng.random() < 0.3)
        command, name = made_up.line, self.names["run"]
        action = Action(
            name,
            {"command": command},
            command,
            made_up.kind or "other",
            made_up.output,
            int(made_up.failed),
            made_up.failed,
            _first(command),
            made_up.edited,
            made_up.tests,
        )
        return replace(action, thought=wording.thought(rng, action))

    def _action(
        self, op: str, arguments: dict[str, Any], output: str, failed: bool, edited: tuple[str, ...], tests: str = ""
    ) -> Action:
        rng, name = self.rng, self.names[op]
        command, program = self._command(name, arguments), name
        if op == "run" and "command" in arguments:
            command = str(arguments["command"])
            program = _first(command)
        if self.one_tool and op not in ("run", "test"):
            verb = name.replace("-", "_").rpartition(".")[2].rpartition("__")[2]
            arguments = {"command": verb} | arguments
            command, program, name = self._command(self.one_tool, arguments, verb), verb, self.one_tool
        if edited and edited[0] not in command:
            edited = (edited[0], "another")  # which file it was is not said
        code = rng.choice((1, 1, 1, 2, 127, 255)) if failed else 0
        action = Action(name, arguments, command, KIND[op], output, code, failed, program, edited, tests)
        return replace(action, thought=wording.thought(rng, action))

    def _command(self, name: str, arguments: dict[str, Any], verb: str = "") -> str:
        """The call as one text, in the manner of this run."""
        shown = {k: v for k, v in arguments.items() if not (verb and k == "command")}
        lead = f"{name} {verb}".strip()
        long = any("\n" in str(v) for v in shown.values())
        if self.syntax == "json":
            return f"{lead} {json.dumps(shown)}"
        if self.syntax == "call":
            return f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
        if self.syntax == "flags":
            return f"{lead} " + " ".join(f"--{k} {shlex.quote(str(v))}" for k, v in shown.items())
        if self.syntax == "lines" or long:
            return "\n".join([lead, *(f"{k}: {v}" for k, v in shown.items())])
        return f"{lead} " + " ".join(str(v) for v in shown.values())


def _first(command: str) -> str:
    """The program of a command line: after a change of folder and variables."""
    words = command.rpartition("&&")[2].split() if command.startswith("cd ") and "&&" in command else command.split()
    while len(words) > 1 and "=" in words[0]:
        words = words[1:]
    return words[0]


def episode(seed: int) -> Episode:
    """Run number `seed`."""
    rng = random.Random(f"sketch-{seed}")
    s = Sketch(rng)
    ops = (
        ["open"] * 4
        + ["list"] * 2
        + [
            "scroll",
            "search",
            "search",
            "search",
            "find",
            "find",
            "create",
            "edit",
            "edit",
            "edit",
            "edit",
            "insert",
            "delete",
            "move",
            "undo",
            "run",
            "test",
        ]
    )
    ops += ["shell"] * 8 if s.shell else ["run"] * 3
    actions: list[Action] = []
    for _ in range(rng.choice((2, 4, 6, 9, 14, 22, 34, 48))):
        if actions and rng.random() < 0.12:
            actions.append(actions[-1])
            continue
        actions.append(s.act(rng.choice(ops)))
    if rng.random() < 0.25:
        actions.append(Action("submit", {}, "submit", "submit", "", 0, False, "submit", thought=rng.choice(("Done.", ""))))
    task = rng.choice(TASKS).format(p=rng.choice(s.files).path, s=rng.choice(STORIES))
    if rng.random() < 0.1:
        task += "\n" + phrases.planted(rng)
    return Episode("package", "functions", task, tuple(actions), s.root)
