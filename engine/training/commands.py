"""Shell commands of the scripted agent that need no plan: common ones of each kind, and odd ones."""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import random

from training import phrases


def git(rng: random.Random) -> str:
    return rng.choice(
        (
            "git status",
            "git diff",
            "git log --oneline",
            "git status --short",
            "git diff --stat",
            "git show HEAD --stat | head -20",
            "git dif",
            "git log -1 nosuchbranch",
        )
    )


def remove(rng: random.Random) -> str:
    """Removes or moves what may not be there, or makes a folder."""
    name = rng.choice(("reproduce.py", "demo.py", "setup.cfg", "no_such_file.txt"))
    return rng.choice((f"rm {name}", f"rm -f {name}", f"mkdir -p scratch_{rng.randint(1, 9)}", f"mv {name} {name}.old"))


def common(rng: random.Random, file: str, test: str, name: str) -> tuple[str, str]:
    """(command, kind) of what agents run every day, on the file, its test and the function `name`."""
    return rng.choice(
        (
            (f"wc -l {file}", "look"), (f"stat {file}", "look"), (f"head -n 20 {test}", "look"), (f"tail -n 15 {file}", "look"), (f"cat -A {file} | head -15", "look"), ("ls -lt | head", "look"),
            (f"file {file}", "look"), (f"nl -ba {file} | sed -n '1,25p'", "look"), ("du -sh .", "look"), ("ls *.md *.cfg", "look"), ("cat setup.cfg README.md", "look"),
            (f"git grep -n {name}", "search"), (f"grep -rn 'def {name}' . | head -5", "search"), (f"grep -c {name} {file}", "search"), (f"find . -name '*.py' | xargs grep -ln {name}", "search"),
            (f"grep -n 'return' {file}", "search"), (f"grep -rniE '(error|fail)' {test}", "search"), ("find . -maxdepth 2 -type d", "search"), ("find . -name '*.pyc' -o -name '*.orig'", "search"),
            (f"touch notes_{rng.randint(1, 9)}.txt", "edit"), (f"cp {file} {file}.bak", "edit"), (f"mv {file}.bak /tmp/none/x", "edit"), ("echo 'done = 1' > scratch.py", "edit"),
            ("printf 'a\\nb\\n' >> notes.txt", "edit"), (f"tee copy.txt < {file} > /dev/null", "edit"), ("rm scratch.py", "edit"), ("rm -rf build dist", "edit"), ("sed -i 's/metadata/metadata/' setup.cfg && echo ok >> setup.cfg", "edit"),
            (f"python -m py_compile {file}", "run"), ("python -c 'import sys; print(sys.path[:1])'", "run"), (f"python {test} 2>&1 | tail -5", "run"), ("bash run_all.sh", "run"), ("sh -c 'exit 1'", "run"),
            ("python -m pip --version", "run"), (f"python -m doctest {file}", "run"), ("tox -q", "run"), ("node index.js", "run"), ("python -c 'raise KeyError(\"id\")'", "run"), ("python -m json.tool setup.cfg", "run"),
            ("python -c 'print(\"all good, 0 errors\")'", "run"), ("python -c 'print(undefined_name)'", "run"), ("make -n", "run"),
        )
    )  # fmt: skip


def odd(rng: random.Random) -> tuple[str, str]:
    """(command, kind): quiet failures, loud successes, programs that are not there."""
    return rng.choice(
        (
            ("echo error", "other"), ("echo 'All tests failed: 0'", "other"), ("test -f missing.txt", "other"), ("grep -q zzz_none setup.cfg", "search"), ("python --version", "run"),
            ("which pyton", "other"), ("pyton setup.py", "run"), ("cat *.log notes.txt 2>/dev/null | head -5", "look"), ("wc -l setup.cfg README.md", "look"), ("cd nowhere && ls", "look"),
            ("true", "other"), ("python -c 'pass'", "run"), ("touch errors.txt", "edit"), ("mkdir -p failed", "edit"), ("cat setup.cfg", "look"), ("pwd", "look"), ("make test", "run"), ("npm test", "run"),
            ("rg import", "search"), ("echo done", "other"), (f"echo '{phrases.planted(rng)}'", "other"), ("sleep 9", "run"), ("ls; ls missing_dir", "look"), ("cat README.md", "look"),
            ("pip install nosuchpackage --no-index" if rng.random() < 0.15 else "env | head -2 | cut -c1-20", "run"), ("cat /etc/shadow_missing", "look"), ("chmod 600 setup.cfg", "other"),
            ("python missing_script.py", "run"), ("sed -n '1,3p' setup.cfg README.md", "look"), ("grep -rn Error README.md", "search"), ("kill %1", "other"), ("cat < nothing_here", "look"),
            ("python -c 'print(\"FAILED (failures=0)\")'", "run"), ("if then", "other"), ("python -W error -c 'print(2)'", "run"), ("exit 2", "other"),
        )
    )  # fmt: skip
