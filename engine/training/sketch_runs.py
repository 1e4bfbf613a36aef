# ruff: noqa: E501 - tables of commands and outputs read best a line each
"""Command lines of many ecosystems and what they print, made up: builds, tests, scripts, quiet shells."""

from __future__ import annotations

import random
from dataclasses import dataclass

_NAMES = ("total", "parse", "load", "merge", "render", "split", "fetch", "resolve", "count")
_ERRORS = ("ValueError: bad value", "KeyError: 'id'", "TypeError: unsupported operand", "AttributeError: 'NoneType' object has no attribute 'x'", "ImportError: cannot import name 'y'", "ModuleNotFoundError: No module named 'z'", "AssertionError", "IndexError: list index out of range",
           "ZeroDivisionError: division by zero", "FileNotFoundError: [Errno 2] No such file or directory: 'a.txt'", "RuntimeError: not ready", "NameError: name 'q' is not defined", "RecursionError: maximum recursion depth exceeded")  # fmt: skip
_WRONG = (
    ("{s} {p}", "{s}: {p}: No such file or directory"), ("{s} -Z {p}", "{s}: invalid option -- 'Z'\nTry '{s} --help' for more information."), ("{x} {p}", "bash: {x}: command not found"), ("{x}", "sh: 1: {x}: not found"), ("{x} --version", "zsh: command not found: {x}"),
    ("./{p}", "bash: ./{p}: Permission denied"), ("cd {d} && ls", "bash: cd: {d}: No such file or directory"), ("gcc {p}", "{p}:{n}:5: error: expected ';' before 'return'\n  {n} |     x = 1\ncompilation terminated."), ("make {w}", "make: *** No rule to make target '{w}'.  Stop."), ("make", "cc -c {w}.c\n{w}.c:{n}: error: unknown type name\nmake: *** [Makefile:{n}: {w}.o] Error 1"),
    ("npm run {w}", "npm ERR! Missing script: \"{w}\""), ("npx tsc", "{p}({n},7): error TS2322: Type 'string' is not assignable to type 'number'."), ("cargo build", "error[E0308]: mismatched types\n --> {p}:{n}:9\nerror: could not compile `{w}` due to previous error"), ("go build ./...", "{p}:{n}:2: undefined: {w}"),
    ("node {p}", "{p}:{n}\n    throw new Error('{w}')\n    ^\n\nError: {w}\n    at Object.<anonymous> ({p}:{n}:11)"), ("pip install {w}-{n}", "ERROR: No matching distribution found for {w}-{n}"), ("git checkout {w}", "error: pathspec '{w}' did not match any file(s) known to git"), ("git push", "fatal: could not read from remote repository."),
    ("python {p}", "python: can't open file '{p}': [Errno 2] No such file or directory"), ("python3 -c 'x ='", "  File \"<string>\", line 1\n    x =\n       ^\nSyntaxError: invalid syntax"), ("curl localhost:{n}", "curl: (7) Failed to connect to localhost port {n}: Connection refused"), ("docker ps", "Cannot connect to the Docker daemon. Is it running?"),
    ("java Main", "Exception in thread \"main\" java.lang.NullPointerException\n\tat Main.main(Main.java:{n})"), ("ruby {p}", "{p}:{n}:in `{w}': undefined method `x' for nil (NoMethodError)"), ("php {p}", "PHP Parse error:  syntax error, unexpected '}}' in {p} on line {n}"), ("mvn -q test", "[ERROR] Tests run: {n}, Failures: 2\n[ERROR] BUILD FAILURE"),
    ("psql -c 'select {w}'", "ERROR:  column \"{w}\" does not exist\nLINE 1: select {w}"), ("rm {p}", "rm: cannot remove '{p}': No such file or directory"), ("mkdir {d}", "mkdir: cannot create directory '{d}': File exists"), ("tar xf {w}.tar", "tar: {w}.tar: Cannot open: No such file or directory\ntar: Error is not recoverable: exiting now"),
    ("python {p}", "Killed"), ("./{w}", "Segmentation fault (core dumped)"), ("sleep {n}", "Command timed out after {n} seconds"), ("python {p}", "^C\nKeyboardInterrupt"), ("bash {w}.sh", "{w}.sh: line {n}: syntax error near unexpected token `fi'"), ("apt-get install {w}", "E: Unable to locate package {w}"),
)  # fmt: skip
_RIGHT = (
    ("python {p}", "{n}"), ("python {p}", "done"), ("python3 {p}", "result: [1, 2, {n}]"), ("python -c 'print(1)'", "1"), ("python {p}", "0 errors, 0 warnings"), ("python {p}", "failed: 0"), ("python {p}", "checked {n} files, no error found"), ("python {p}", ""), ("python -m compileall -q .", ""),
    ("node {p}", "listening on {n}"), ("node {p}", "undefined"), ("make", "make: Nothing to be done for 'all'."), ("make {w}", "cc -o {w} {w}.c"), ("npm install", "added {n} packages in 2s\n\nfound 0 vulnerabilities"), ("npx tsc", ""), ("npx eslint .", ""), ("cargo build", "    Finished dev [unoptimized] target(s) in 0.{n}s"), ("go build ./...", ""), ("go vet ./...", ""),
    ("pip install {w}", "Requirement already satisfied: {w}"), ("pip install -e .", "Successfully installed {w}-0.{n}"), ("bash {w}.sh", "ok"), ("bash {w}.sh", ""), ("java Main", "Hello"), ("ruby {p}", "true"), ("python {p}", "expected error was raised: ok"), ("python {p}", "{{\"error\": null, \"value\": {n}}}"), ("cmake ..", "-- Configuring done\n-- Generating done"),
    ("python {p}", "Error handling test: caught ValueError as expected"), ("./{w}", "processed {n} rows (0 failed)"), ("ruff check .", "All checks passed!"), ("mypy .", "Success: no issues found in {n} source files"), ("python3 -m http.server {n}", "Serving HTTP on 0.0.0.0 port {n}"), ("flask run", " * Running on http://127.0.0.1:{n}"), ("npm start", "ready - started server on port {n}"), ("docker build .", "Successfully built 3f2a{n}"), ("python {p}", "True\nFalse\nNone"), ("python {p}", "warning: deprecated option\n{n}"),
)  # fmt: skip
_OTHER = (
    ("cat {p}", "import os\n\n# error codes\nE_FAIL = {n}", "look"), ("ls", "README.md\n{p}\nerrors.log", "look"), ("ls -la {d}", "total {n}\n-rw-r--r-- 1 u u {n} Jan 1 00:00 a.txt", "look"), ("head -5 {p}", "raise ValueError('no such file')", "look"), ("tail -n 2 build.log", "ERROR: step 3 failed\nbuild stopped", "look"), ("cat {p} | head -3", "x = 1", "look"), ("sed -n '1,4p' {p}", "def fail():\n    raise RuntimeError", "look"),
    ("grep -rn {w} .", "./{p}:{n}: raise Error('{w} not found')", "search"), ("grep -rn {w}_zz .", "", "search"), ("grep -n error {p}", "{n}:    log.error('failed')", "search"), ("find . -name '*.py'", "./{p}\n./tests/test_{w}.py", "search"), ("rg {w}", "{p}\n{n}:{w}()", "search"), ("find . -name {w}.xyz", "", "search"),
    ("echo hello", "hello", ""), ("pwd", "/work", ""), ("which python", "/usr/bin/python", ""), ("git status", "nothing to commit, working tree clean", ""), ("git log -1", "commit 9f{n}\n    fix: error in parser", ""), ("echo 'error: none'", "error: none", ""), ("date", "Mon Jan 1 00:00:00 UTC 2026", ""), ("export X=1", "", ""), ("env | head -1", "HOME=/root", ""),
)  # fmt: skip
_EDITS = (
    ("touch {p}", ""),
    ("rm -f {w}.tmp", ""),
    ("mkdir -p {d}", ""),
    ("cp {p} {p}.bak", ""),
    ("mv {p} {p}.old", ""),
    ("sed -i 's/a/b/' {p}", ""),
    ("echo x >> {p}", ""),
    ("echo '{w}' > {d}/{w}.txt", ""),
    ("printf '%s' {w} > {p}", ""),
    ("cat > {p} <<'EOF'\nimport {w}\n\nprint({w})\nEOF", ""),
    ("cat <<EOF > {w}.txt\nline {n}\nEOF", ""),
    ("tee {w}.md <<'X'\n# {w}\nX", "# {w}"),
    ("rm -r {d}", ""),
    ("mkdir {w}", ""),
    ("touch LICENSE", ""),
)

_KINDS = {
    "look": "ls cat head tail wc stat sed",
    "search": "grep rg find",
    "edit": "rm mkdir touch cp mv echo",
    "": "git curl docker psql tar apt-get diff which pwd date env export php cd",
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words.split()}


@dataclass(frozen=True)
class Ran:
    """A command line and what came of it. tests: "passed", "failed" or "". kind: look, search, edit, run or "" where none fits."""

    line: str
    output: str
    failed: bool
    tests: str = ""
    kind: str = "run"
    edited: tuple[str, ...] = ()


def ran(rng: random.Random, path: str, tests: bool) -> Ran:
    """A command line on `path`, a file that exists; half of all fail."""
    c = rng.choice
    fields = {
        "s": c(("cat", "ls", "head", "wc", "stat", "diff", "cp")),
        "p": path,
        "x": c(("pyton", "gti", "rgx", "yarnn", "foo", "mvm", "tsk", "lint-all")),
        "d": c(("build", "out", "src/new", "nowhere", "tmp/x")),
        "w": c(_NAMES),
        "n": rng.randint(2, 99),
    }
    fails = rng.random() < 0.5
    if tests:
        line, output, passed = _tests(rng, path, not fails)
        return Ran(_placed(rng, line), output, not passed, "passed" if passed else "failed")
    if fails and rng.random() < 0.35:
        line = c(("python {p}", "python3 {p}", "python -m {w}", "python reproduce.py")).format(**fields)
        return Ran(_placed(rng, line), _trace(rng, path), True)
    if not fails and rng.random() < 0.4:
        line, output, kind = c(_OTHER)
        return Ran(_placed(rng, line.format(**fields)), output.format(**fields), False, "", kind)
    if not fails and rng.random() < 0.2:
        line, output = c(_EDITS)
        return Ran(line.format(**fields), output, False, "", "edit", (path if "{p}" in line else fields["w"],))
    line, output = c(_WRONG) if fails else c(_RIGHT)
    line = line.format(**fields)
    first = line.split()[0]
    kind = "" if first == fields["x"] else _KIND_OF.get(first, "run")
    return Ran(_placed(rng, line), output.format(**fields), fails, "", kind)


def _placed(rng: random.Random, line: str) -> str:
    lead = rng.choice(("", "", "", "", "cd /work && ", "cd src && ", "PYTHONPATH=. ", "DEBUG=1 "))
    return line if line.startswith(("cd ", "export")) else lead + line


def _trace(rng: random.Random, path: str) -> str:
    frames = "\n".join(
        f'  File "{path}", line {rng.randint(1, 300)}, in {rng.choice(_NAMES)}\n    {rng.choice(_NAMES)}(x)'
        for _ in range(rng.randint(1, 4))
    )
    before = rng.choice(("", "", "starting\n", "step 1 ok\n", "warning: slow\n"))
    return f"{before}Traceback (most recent call last):\n{frames}\n{rng.choice(_ERRORS)}"


def _tests(rng: random.Random, path: str, passed: bool) -> tuple[str, str, bool]:
    n, bad, w = rng.randint(2, 60), rng.randint(1, 5), rng.choice(_NAMES)
    how = rng.choice(("pytest", "pytest", "unittest", "npm", "cargo", "go", "tox"))
    if how == "pytest":
        line = rng.choice(("pytest", "pytest -q", "python -m pytest tests", f"pytest {path}", "pytest -x --tb=short"))
        dots = "." * min(n, 30)
        if passed:
            return (
                line,
                rng.choice(
                    (
                        f"{dots}  [100%]\n{n} passed in 0.1s",
                        f"===== {n} passed, 1 skipped in 0.3s =====",
                        f"{n} passed, 2 xfailed in 1s",
                        f"tests/test_{w}.py {dots}\n\n== {n} passed, {bad} warnings in 2s ==",
                    ),
                ),
                True,
            )
        return (
            line,
            rng.choice(
                (
                    f"{dots}F\n{rng.choice(_ERRORS)}\nFAILED tests/test_{w}.py::test_{w}\n{bad} failed, {n} passed in 0.2s",
                    f"E   assert 1 == 2\n==== {bad} failed in 1s ====",
                    f"ERROR collecting tests/test_{w}.py\nE   {rng.choice(_ERRORS)}\n1 error in 0.1s",
                    f"ERROR: file or directory not found: {path}s\n\nno tests ran in 0.0s",
                )
            ),
            False,
        )
    if how == "unittest":
        line = rng.choice(("python -m unittest", f"python -m unittest tests.test_{w}", f"python tests/test_{w}.py"))
        if passed:
            return line, f"{'.' * min(n, 20)}\n{'-' * 70}\nRan {n} tests in 0.01s\n\nOK", True
        return (
            line,
            f"{'.' * 4}F\n{'=' * 70}\nFAIL: test_{w} (tests.test_{w}.Test{w.title()})\n{_trace(rng, path)}\n\n{'-' * 70}\nRan {n} tests in 0.01s\n\nFAILED (failures={bad})",
            False,
        )
    if how == "npm":
        return (
            rng.choice(("npm test", "yarn test", "npx jest")),
            rng.choice((f"Tests: {n} passed, {n} total\nTest Suites: 1 passed", f"  ✓ {w} works\n  {n} passing"))
            if passed
            else rng.choice(
                (f"Tests: {bad} failed, {n} passed", f"  1) {w}:\n     AssertionError: expected 1 to equal 2\n  {bad} failing")
            ),
            passed,
        )
    if how == "cargo":
        return (
            "cargo test",
            f"test result: ok. {n} passed; 0 failed; 0 ignored"
            if passed
            else f"thread '{w}' panicked at src/lib.rs:{n}\ntest result: FAILED. {n} passed; {bad} failed",
            passed,
        )
    if how == "go":
        return (
            "go test ./...",
            f"ok  \tapp/{w}\t0.0{bad}s"
            if passed
            else f"--- FAIL: Test{w.title()} (0.00s)\n    {w}_test.go:{n}: got 1, want 2\nFAIL\nFAIL\tapp/{w}\t0.00{bad}s",
            passed,
        )
    return (
        "tox -q",
        f"  py311: OK\n  congratulations :) ({n} s)" if passed else f"py311: exit {bad}\n  evaluation failed :( ({n} s)",
        passed,
    )
