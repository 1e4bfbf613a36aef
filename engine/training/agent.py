"""The scripted agent: it looks, searches, reproduces, edits, tests and submits, and makes the mistakes that agents make."""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from training import phrases, toys
from training.calls import INTERFACES, Call
from training.commands import common, git, odd, remove
from training.facts import Action, Episode
from training.interfaces import Tools
from training.observed import tests_of, told
from training.wording import task_text, thought
from training.workplace import Templates, Workplace

ROOTS = ("/testbed", "/repo", "/workspace/{p}", "/home/user/{p}", "/app", "/srv/project", "/root/work")
_TIMEOUT_SAID = (
    "The command timed out.",
    "Execution timed out",
    "Command timed out after 30 seconds; it was stopped.",
    "timeout: the command took too long",
)
_WORDS = (
    "import",
    "def ",
    "class ",
    "Error",
    "raise",
    "return None",
    "error",
    "Traceback",
    "self",
    "exception",
    "TODO",
    "except",
    "fail",
)


class Agent:
    """One run in one workplace."""

    def __init__(self, place: Workplace, rng: random.Random) -> None:
        self.place, self.rng = place, rng
        self.interface = rng.choice(INTERFACES)
        self.tools = Tools(place, rng, self.interface)
        self.toy, self.module = toys.pick(rng)
        self.file = f"{place.package}/{self.module}.py"
        self.test = rng.choice((f"tests/test_{self.module}.py", f"test_{self.module}.py"))
        self.actions: list[Action] = []
        self._last: Call | None = None
        self.clumsy = rng.choice((0.05, 0.15, 0.3, 0.5))
        self._files = self._prepare()

    def run(self, most: int) -> Episode:
        """Act until submission or `most` actions."""
        plan = self._plan(1 + most // 30)
        while len(self.actions) < most:
            step = next(plan, None)
            if step is None:
                break
            step()
        task = task_text(self.rng, self.toy, self.file, self.test, self.place)
        return Episode("package", self.interface, task, tuple(self.actions), self.place.root)

    def _prepare(self) -> dict[str, tuple[int, int]]:
        here, rng = self.place.here, self.rng
        lead = "# " + phrases.planted(rng).replace("\n", " ") + "\n\n\n" if rng.random() < 0.25 else ""
        (here / self.file).write_text(f'"""Small tools."""\n\n\n{lead}{self.toy.buggy}', encoding="utf-8")
        (here / self.test).parent.mkdir(exist_ok=True)
        (here / self.test).parent.joinpath("__init__.py").touch()
        (here / self.test).write_text(
            self.toy.test(f"{self.place.package}_x" if rng.random() < 0.05 else "extra_path"), encoding="utf-8"
        )
        # The toy must not import the whole package: many packages import what the interpreter at hand lacks.
        (here / self.test).write_text(
            self.toy.test(self.module).replace(
                "import unittest\n", f"import sys\nimport unittest\n\nsys.path.insert(0, '{self.place.package}')\n", 1
            ),
            encoding="utf-8",
        )
        log = "2026-01-01 ERROR worker failed\nTraceback (most recent call last):\n  File \"app.py\", line 3, in <module>\nKeyError: 'id'\n"
        (here / rng.choice(("old_errors.log", "error.log", "build.log", "notes.txt"))).write_text(log, encoding="utf-8")
        return self.place.snapshot()

    def _plan(self, rounds: int) -> Iterator[Callable[[], None]]:
        rng = self.rng
        yield from self._several((self.look, self.search, self.find, self.list, self.odd, self.misuse), 1, 6)
        if rng.random() < 0.7:
            yield self.reproduce
        for _ in range(rounds * rng.choice((0, 1, 1, 2, 3))):
            if rng.random() < 0.7:
                yield self.run_tests
            yield from self._several((self.look, self.search, self.reproduce, self.odd, self.list, self.misuse), 0, 4 * rounds)
            wrong = rng.random()
            if wrong < 0.25:
                yield self.edit_wrongly
                if rng.random() < 0.6:
                    yield self.run_tests
                yield self.undo
            elif wrong < 0.45:
                yield self.edit_misses
            if rng.random() < 0.3:
                yield self.write_script
        if rng.random() < 0.8:
            yield self.edit_rightly
            yield from self._several((self.look, self.odd, self.git), 0, 2)
        if rng.random() < 0.8:
            yield self.run_tests
        yield from self._several((self.look, self.search, self.git, self.odd, self.remove, self.list), 0, 5)
        if rng.random() < 0.6:
            yield self.submit

    def _several(self, some: tuple[Callable[[], None], ...], least: int, most: int) -> Iterator[Callable[[], None]]:
        for _ in range(self.rng.randint(least, most)):
            step = self.rng.choice(some)
            yield step
            if self.rng.random() < 0.22:  # agents repeat themselves
                for _ in range(self.rng.choice((1, 1, 2, 3))):
                    yield self.again

    # Single acts.

    def again(self) -> None:
        if self._last is not None and self._last.kind != "submit":
            self._act(self._last)

    def list(self) -> None:
        path = "." if self.rng.random() < 0.5 else self.place.package
        self._act(self.tools.list(self._slip(path), self.rng))

    def look(self) -> None:
        rng = self.rng
        if self.interface == "windowed" and rng.random() < 0.3:
            self._act(self.tools.goto(rng.randint(1, 200), rng.random() < 0.5))
            return
        file = rng.choice((self.file, self.test, *self.place.sources(rng, 2)))
        self._act(self.tools.view(self._slip(file), rng.choice((1, 1, 10, 50)), rng))

    def search(self) -> None:
        pattern = self.rng.choice(
            (*_WORDS, self.toy.name, "no_such_name_anywhere", "[unclosed" if self.interface == "shell" else "zzz")
        )
        self._act(self.tools.search(pattern, self._slip(self.place.package), self.rng))

    def find(self) -> None:
        name = self.rng.choice(
            ("*.py", f"{self.module}.py", "test_*.py", "*.cfg", "*error*", "*.toml", "exceptions.py", "missing_*.py")
        )
        self._act(self.tools.find(name, self._slip("."), self.rng))

    def reproduce(self) -> None:
        rng, (arguments, _) = self.rng, self.rng.choice(self.toy.calls)
        lead = f"import sys; sys.path.insert(0, '{self.place.package}'); "
        call = f"from {self.module} import {self.toy.name}; print({self.toy.name}({arguments}))"
        code = rng.choice((lead + call, lead + call, lead + call.replace("print(", "print(("), "import " + rng.choice(("numpyy", "missing_module", "setup_tools_x")),
                           lead + f"from {self.module} import {self.toy.name}_; print(1)", "print('error: none')", "print(1/0)", "import sys; sys.exit(3)", "x = {}; x['key']",
                           "print('Traceback (most recent call last):')" if rng.random() < 0.3 else "print(open('missing.txt').read())",
                           "raise RuntimeError('boom')" if rng.random() < 0.5 else "print('ok')", "assert [] == [1], 'lists differ'", "int('x')", "None.strip()"))  # fmt: skip
        self._act(self.tools.bash(f'python -c "{code}"' if '"' not in code else f"python -c '{code}'", "run"))

    def write_script(self) -> None:
        arguments, result = self.rng.choice(self.toy.calls)
        name = self.rng.choice(("reproduce.py", "check_error.py", "demo.py", "repro_bug.py"))
        text = f"import sys\nsys.path.insert(0, '{self.place.package}')\nfrom {self.module} import {self.toy.name}\n\nprint({self.toy.name}({arguments}))\nassert {self.toy.name}({arguments}) == {result}\n"
        self._act(self.tools.write(name, text, self.rng))
        if self.rng.random() < 0.7:
            self._act(self.tools.bash(f"python {self._slip(name)}", "run"))

    def run_tests(self) -> None:
        command = self.rng.choice(
            (
                "python -m unittest {m}",
                "python {t}",
                "python -m unittest -v {m}",
                "python {t} -v",
                "pytest -q {t}" if self.rng.random() < 0.4 else "python {t}",
            )
        )
        self._act(
            self.tools.bash(command.format(m=self._slip(self.test[:-3].replace("/", ".")), t=self._slip(self.test)), "run"),
            tests=True,
        )

    def edit_rightly(self) -> None:
        right, wrong = self.toy.wrong
        if self.rng.random() < 0.4:  # the whole function at once
            self._act(self.tools.replace(self.file, self.toy.buggy.strip("\n"), self.toy.code.strip("\n"), self.rng))
        else:
            self._act(self.tools.replace(self.file, wrong.strip("\n"), right.strip("\n"), self.rng))

    def edit_wrongly(self) -> None:
        line = next(
            line
            for line in self.toy.code.splitlines()
            if line.strip().startswith(("return", "if", "for", "out", "n ", "raise"))
        )
        bad = self.rng.choice(
            (line + ")", line.replace("return", "retrun") + "  # x", "    " + line + " +", "    raise ValueError('not done')")
        )
        self._act(self.tools.replace(self.file, line.strip(), bad.strip(), self.rng))

    def edit_misses(self) -> None:
        if self.rng.random() < 0.5:
            old = self.rng.choice(
                ("this line is not there", self.toy.code.replace("return", "yield"), f"def {self.toy.name}(self):")
            )
            self._act(self.tools.replace(self.file, old, self.rng.choice(("pass", self.toy.code)), self.rng))
        else:
            self._act(self.tools.replace(self._typo(self.file), "def", "def", self.rng))

    def undo(self) -> None:
        command = self.rng.choice(("git checkout -- {f}", "git stash", "cp {f} {f}.bak", "git restore {f}"))
        good = f"""python -c "from pathlib import Path; Path('{self.file}').write_text(Path('{self.file}').read_text())" """.strip()
        tracked = not command.startswith("cp")
        self._act(
            self.tools.bash(
                command.format(f=self.place.package if tracked else self.file) if self.rng.random() < 0.8 else good, "edit"
            )
        )
        # The file was not in the first commit, so undoing is writing it again.
        self._act(self.tools.write(self.file, f'"""Small tools."""\n\n\n{self.toy.buggy}', self.rng))

    def git(self) -> None:
        self._act(self.tools.bash(git(self.rng), "other"))

    def remove(self) -> None:
        self._act(self.tools.bash(remove(self.rng), "edit"))

    def misuse(self) -> None:
        self._act(self.tools.misuse(self.rng))

    def odd(self) -> None:
        """Quiet failures, loud successes, programs that are not there; and common commands of each kind."""
        rng = self.rng
        command, kind = odd(rng) if rng.random() < 0.5 else common(rng, self.file, self.test, self.toy.name)
        self._act(self.tools.bash(command, kind), timeout=0.15 if command == "sleep 9" else 8.0)

    def submit(self) -> None:
        self._record(Call("submit", {}, "submit", "submit"), 0, "", ())

    # Carrying out.

    def _act(self, call: Call, *, tests: bool = False, timeout: float = 8.0) -> None:
        code, output = self.tools.do(call, 0.15 if call.command == "sleep 9" else timeout)
        if code == 124:
            output = (output + "\n" + self.rng.choice(_TIMEOUT_SAID)).lstrip("\n")
        now = self.place.snapshot()
        edited = tuple(sorted(p for p in now.keys() | self._files.keys() if now.get(p) != self._files.get(p)))
        self._files = now
        ran = tests or (bool(self.actions) and call.command == self.actions[-1].command and self.actions[-1].tests != "")
        self._record(call, code, output, edited, tests_of(code, output) if ran else "")

    def _record(self, call: Call, code: int, output: str, edited: tuple[str, ...], tests: str = "") -> None:
        self._last = call
        words = call.command.split()
        kind = call.kind if call.kind != "edit" or edited or code else "other"
        action = Action(
            call.name, call.arguments, call.command, kind, output, code, told(call, code, output), words[0], edited, tests
        )
        self.actions.append(_with_thought(action, thought(self.rng, action)))

    def _slip(self, path: str) -> str:
        return self._typo(path) if self.rng.random() < self.clumsy else path

    def _typo(self, path: str) -> str:
        i = self.rng.randrange(max(1, len(path) - 4))
        wrong = self.rng.choice((path[:i] + path[i + 1 :], "src/" + path, path.replace(".py", "s.py"), "lib/" + path))
        return wrong if wrong and wrong != path and not (self.place.here / wrong).exists() else "missing/" + path


def _with_thought(action: Action, text: str) -> Action:
    return replace(action, thought=text)


def episode(templates: Templates, packages: list[Path], seed: int) -> Episode:
    """Run number `seed`: its package, tools, task and mistakes all follow from it."""
    rng = random.Random(f"package-{seed}")
    package = rng.choice(packages)
    root = rng.choice(ROOTS).format(p=package.name)
    with Workplace(templates, package, root, f"run-{seed}") as place:
        return Agent(place, rng).run(rng.choice((3, 8, 15, 30, 60)))
