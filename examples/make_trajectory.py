"""A scripted agent fixes a small bug with real commands and is recorded in SWE-agent's 1.1 format.

    python examples/make_trajectory.py [OUT.traj]       # default: examples/fix_slugify.traj

The agent's words are written below; what it sees is real: every command runs in a fresh copy of the toy project in a temporary
folder, which the recording calls /repo. Needs Python, ls, cat and grep. Standard library only.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_name("fix_slugify.traj")

PROJECT = {
    "README.md": """# slugs

Turns titles into the last part of a URL.

    >>> from slugs import slugify
    >>> slugify("Hello World")
    'hello-world'

Rules
- ASCII letters, digits and the separator, nothing else; accents are dropped (`é` becomes `e`)
- one separator between two words, none at the start or the end
- `max_length` cuts the slug; 0 means no limit
- the command line: `python -m slugs TITLE`

Run the tests with `python -m unittest`.
""",
    "CHANGELOG.md": "# Changes\n\n## 1.3.0\n- `max_length` limits the slug's length\n\n## 1.2.0\n- accents are dropped\n",
    "slugs/__init__.py": '"""Slugs for titles."""\n\nfrom slugs.slugify import slugify\n\n__all__ = ["slugify"]\n',
    "slugs/__main__.py": """import sys

from slugs import slugify

print(slugify(" ".join(sys.argv[1:])))
""",
    "slugs/slugify.py": '''"""The one function of this package."""

import re
import unicodedata


def slugify(text, separator="-", max_length=0):
    """The slug of a title; at most max_length characters when that is not 0."""
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii").lower()
    words = re.split(r"[^a-z0-9]", text)
    slug = separator.join(words)
    if max_length:
        slug = slug[:max_length]
    return slug
''',
    "tests/__init__.py": "",
    "tests/test_slugify.py": """import unittest

from slugs import slugify


class SlugifyTest(unittest.TestCase):
    def test_words_are_joined(self):
        self.assertEqual(slugify("Hello World"), "hello-world")

    def test_accents_are_dropped(self):
        self.assertEqual(slugify("Crème brûlée"), "creme-brulee")

    def test_no_double_separator(self):
        self.assertEqual(slugify("rock & roll"), "rock-roll")

    def test_no_separator_at_the_ends(self):
        self.assertEqual(slugify("  What now?  "), "what-now")

    def test_other_separator(self):
        self.assertEqual(slugify("a, b and c", separator="_"), "a_b_and_c")

    def test_max_length_ends_on_a_word(self):
        self.assertEqual(slugify("one two three", max_length=8), "one-two")

    def test_nothing_left(self):
        self.assertEqual(slugify("???"), "")
""",
}

SYSTEM = """You are a software engineer who fixes bugs in small repositories. You work in a terminal, one tool call at a time.

Tools
- bash: runs one command in /repo and returns what it prints. There is no network, and nothing waits for input.
- edit: replaces one piece of text in a file by another. The old text must occur exactly once, white space included.
- submit: hands in the repository as it is and ends the session.

Say in a sentence or two why you make a call before you make it. Read before you change anything, keep changes small, and run
the tests before you submit."""

ISSUE = """The repository in /repo has an open issue. Solve it so that all of its tests pass.

ISSUE: two separators in a row
`slugify("rock & roll")` gives `rock---roll`, and titles with punctuation at the end get a separator there: `slugify("What now?")`
gives `what-now-`. The README promises one separator between two words and none at the ends. A slug that is cut by `max_length`
should not end in a separator either. Please add a line to CHANGELOG.md under a new heading 1.3.1.

The working directory is /repo. Do not change the tests."""


@dataclass(frozen=True)
class Call:
    """What the scripted agent says and does. arguments: of the tool."""

    thought: str
    tool: str
    arguments: dict[str, str]

    @property
    def action(self) -> str:
        """The call as SWE-agent writes it into `action`."""
        if self.tool == "bash":
            return self.arguments["command"]
        return " ".join([self.tool, *(shlex.quote(v) for v in self.arguments.values())])


def bash(thought: str, command: str) -> Call:
    return Call(thought, "bash", {"command": command})


def edit(thought: str, path: str, old: str, new: str) -> Call:
    return Call(thought, "edit", {"path": path, "old": old, "new": new})


SPLIT = '    words = re.split(r"[^a-z0-9]", text)\n'
JOIN = "    slug = separator.join(words)\n"
CUT = "        slug = slug[:max_length]\n"
SCRIPT = (
    bash("I start with what is in the repository.", "ls -F"),
    bash("The package and the tests sit in two folders. Let me see the files in both.", "ls -1 slugs tests"),
    bash("The README states the rules that the issue refers to, so I read it first.", "cat README.md"),
    bash("Now the function itself.", "cat slugs/slugify.py"),
    bash("Before I change anything I run the tests, to see which of the rules are broken.", "python -m unittest"),
    edit(
        "The ends carry separators because the split leaves empty words there. Stripping the separator should help.",
        "slugs/slugify.py",
        JOIN,
        "    slug = separator.join(words).strip(separator)\n",
    ),
    bash("Let me see whether that was enough.", "python -m unittest"),
    bash("The middle still has several separators. I look at how the tests call the function.", "cat tests/test_slugify.py"),
    bash("And who else uses it: a change must not break the command line.", 'grep -rn --include=*.py "slugify" .'),
    edit(
        "Stripping treats a symptom. The cause is that the split makes an empty word for every further character that is no "
        "letter. I drop empty words instead, which covers the middle and the ends.",
        "slugs/slugify.py",
        "    words = re.split(r'[^a-z0-9]', text)\n",
        '    words = [word for word in re.split(r"[^a-z0-9]+", text) if word]\n',
    ),
    bash("The old text was not found. I look at the line again.", 'grep -n "words" slugs/slugify.py'),
    edit(
        "The file has double quotes where I wrote single ones. The same change again with the right text.",
        "slugs/slugify.py",
        SPLIT,
        '    words = [word for word in re.split(r"[^a-z0-9]+", text) if word]\n',
    ),
    edit(
        "With no empty words left, the strip of my first try is not needed any more, so I take it out again.",
        "slugs/slugify.py",
        "    slug = separator.join(words).strip(separator)\n",
        JOIN,
    ),
    bash("The tests again.", "python -m unittest"),
    edit(
        "One is left: a slug that is cut must not end in a separator. The cut is the place for that.",
        "slugs/slugify.py",
        CUT,
        "        slug = slug[:max_length].rstrip(separator)\n",
    ),
    bash("Now all rules should hold.", "python -m unittest -v"),
    bash(
        "All pass. I try the two titles of the issue through the command line as well.",
        'python -m slugs "rock & roll, what now?"',
    ),
    edit(
        "What is left is the changelog.",
        "CHANGELOG.md",
        "## 1.3.0\n",
        "## 1.3.1\n- one separator between two words and none at the ends, also after a cut\n\n## 1.3.0\n",
    ),
    bash("A last look at the function as I hand it in.", "cat slugs/slugify.py"),
    Call("The issue is solved, the tests pass and the changelog has its line. I submit.", "submit", {}),
)


@dataclass
class Recorder:
    """Runs calls in `repo` and keeps history and trajectory as SWE-agent 1.1 does."""

    repo: Path
    history: list[dict[str, Any]] = field(default_factory=list)
    trajectory: list[dict[str, Any]] = field(default_factory=list)

    def say(self, role: str, content: str, message_type: str) -> None:
        self.history.append({"role": role, "content": content, "agent": "main", "message_type": message_type})

    def step(self, number: int, call: Call) -> None:
        query = list(self.history)
        started = time.perf_counter()
        observation = self.run(call).replace(str(self.repo), "/repo")
        seconds = time.perf_counter() - started
        call_id = f"call_{number:02d}"
        function = {"name": call.tool, "arguments": json.dumps(call.arguments)}
        self.history.append(
            {
                "role": "assistant",
                "content": call.thought,
                "thought": call.thought,
                "action": call.action,
                "agent": "main",
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
                "message_type": "action",
            }
        )
        shown = observation if observation.strip() else "The command ran and printed nothing."
        tool = {"role": "tool", "content": f"OBSERVATION:\n{shown}", "agent": "main", "message_type": "observation"}
        self.history.append(tool | {"tool_call_ids": [call_id]})
        self.trajectory.append(
            {
                "action": call.action,
                "observation": observation,
                "response": call.thought,
                "thought": call.thought,
                "execution_time": round(seconds, 4),
                "state": {"working_dir": "/repo"},
                "query": query,
                "extra_info": {},
            }
        )

    def run(self, call: Call) -> str:
        """What the call prints."""
        if call.tool == "submit":
            return self.patch()
        if call.tool == "edit":
            return self.edit(**call.arguments)
        argv = shlex.split(call.action)
        if argv[0] == "python":
            argv[0] = sys.executable
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
        done = subprocess.run(
            argv, cwd=self.repo, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
        )
        return done.stdout.decode("utf-8", "replace")

    def edit(self, path: str, old: str, new: str) -> str:
        file = self.repo / path
        text = file.read_text(encoding="utf-8")
        if text.count(old) != 1:
            return f"Error: the old text occurs {text.count(old)} times in {path}; it must occur exactly once. Nothing was changed.\n"
        file.write_text(text.replace(old, new), encoding="utf-8")
        first = text[: text.index(old)].count("\n") + 1
        shown = file.read_text(encoding="utf-8").splitlines()
        around = range(max(first - 3, 1), min(first + new.count("\n") + 2, len(shown)) + 1)
        return f"{path} was changed; lines {around[0]} to {around[-1]} are now:\n" + "\n".join(
            f"{n:4} {shown[n - 1]}" for n in around
        )

    def patch(self) -> str:
        """The changes as a unified diff."""
        out: list[str] = []
        for name, before in PROJECT.items():
            after = (self.repo / name).read_text(encoding="utf-8")
            lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
            out += difflib.unified_diff(*lines, f"a/{name}", f"b/{name}")
        return "".join(out)


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    with tempfile.TemporaryDirectory() as folder:
        repo = Path(folder).resolve() / "repo"
        for name, text in PROJECT.items():
            (repo / name).parent.mkdir(parents=True, exist_ok=True)
            (repo / name).write_text(text, encoding="utf-8")
        recorder = Recorder(repo)
        recorder.say("system", SYSTEM, "system_prompt")
        recorder.say("user", ISSUE, "observation")
        for number, call in enumerate(SCRIPT, 1):
            recorder.step(number, call)
        submission = recorder.patch()
    record = {
        "trajectory": recorder.trajectory,
        "history": recorder.history,
        "info": {"exit_status": "submitted", "submission": submission, "recorded_by": "examples/make_trajectory.py"},
        "replay_config": None,
        "environment": "fix_slugify",
    }
    out.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{out}: {len(recorder.trajectory)} steps")


if __name__ == "__main__":
    main()
