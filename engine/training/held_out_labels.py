# ruff: noqa: E501 - tables of words and patterns read best a line each
"""Labels of recorded runs: return codes and error marks where a file has them, else rules on the text, else nothing.

A rule that is not sure says None, and what depends on it is not asked. Nothing here knows any model's answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flide_agent.replay.records import Run, Step
from training.facts import EXCEPTION, TRACEBACK

_FAILED = re.compile(
    r"^(/bin/)?(ba)?sh: .*(not found|No such|syntax error|cannot|denied)|^Traceback \(most recent call last\)|command not found|^File .* not found|"
    r"introduced new syntax error|^No replacement was performed|^ERROR\b|^Error: |^\w*Error: |^usage: |: No such file or directory$|^E +\w+Error|^FAILED|"
    r"EXECUTION TIMED OUT|^\s+SyntaxError: |^Ran into \[Errno \d+\]|^Invalid `\w+` parameter|^\[No exact match found in |^Cannot execute multiple commands at once|^Error\b", re.MULTILINE
)  # fmt: skip
_DOUBT = re.compile(
    r"error|fail|invalid|cannot|denied|exception|not found|no such|timed out|warning|did not appear|must (be|not)",
    re.IGNORECASE,
)
_CODE = re.compile(r"\A\s*(?:<returncode>|\{\s*\"returncode\": )(-?\d+)|\[Command finished with exit code (-?\d+)\]\s*\Z")
_SHOWN = re.compile(r"\A(\[File: |Here's the result of running `cat|Found \d+ matches|No matches found|Text replaced|The file \S+ has been edited|File created successfully)")  # fmt: skip
"""Heads that a tool writes only when it has done its work; what follows is a file's or a search's text."""
_FOOTER = re.compile(r"\n?\(Open file: [^\n]*\)\s*\n\(Current directory: [^\n]*\)\s*\n(bash-\$)?\s*$")
_WRAPPING = re.compile(
    r"^OBSERVATION:\s*|</?output>|<returncode>-?\d+</returncode>|^Observation:\s*|bash-\$\s*$|\r?\n?root@\w+:\S+ # $"
)
_SILENT = re.compile(r"did not produce any output|ran without output|no output", re.IGNORECASE)
_OLD = re.compile(r"^(Old environment output|Old output omitted)")
_HANDED_OVER = "Here are the answers the other agent provided"
_KINDS = {
    "look": "ls cat head tail nl open goto scroll_down scroll_up view tree read_file less wc Read open_file",
    "search": "grep find rg search_dir search_file find_file Grep Glob",
    "edit": "edit create rm mv touch insert str_replace undo_edit write_file cp Edit Write edit_file_by_replace",
    "run": "python python3 pytest pip tox make node npm bash sh",
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words.split()}
_EDITORS = ("create", "edit", "str_replace", "insert", "Edit", "Write", "edit_file_by_replace")
_FILTERS = {"head", "tail", "sort", "wc", "uniq", "cut", "sed"}
_CHANGED = re.compile(r"\A\[File: .*\((\d+ lines total after edit|1 lines total)\)|File updated|Text replaced|^The file .* has been edited|^File created successfully|\A--- /", re.MULTILINE)  # fmt: skip
_TESTS = re.compile(r"\b(pytest|unittest|tox|nosetests|runtests|(npm|make|yarn) (run )?test)\b")
_PASSED, _RED = (
    re.compile(r"^OK\s*$|=+ \d+ passed", re.MULTILINE),
    re.compile(r"^FAILED|\b\d+ failed|\b\d+ errors?\b", re.MULTILINE),
)


@dataclass(frozen=True)
class Done:
    """One action of a recorded run and what came of it. text: the command; program: its first word; kind: look, search, edit, run or "".

    output: the observation as the history shows it. What the rules are not sure of is None or ""."""

    program: str
    text: str
    kind: str
    output: str
    failed: bool | None
    edited: bool | None
    file: str
    tested: bool | None
    passed: bool | None


@dataclass(frozen=True)
class Fact:
    """What the rules say of a history: truth by yes/no question, only where they are sure; "" where they are not."""

    yes_no: dict[str, bool]
    kind: str
    program: str
    exception: str
    file: str
    steps: int


def command_of(step: Step) -> tuple[str, str]:
    """(program, text) of what the agent did: the first word that acts. An editor tool's program is its command."""
    text = step.action.strip()
    fences = re.findall(r"```\w*\n(.*?)\n?```", text, re.DOTALL)
    if fences:
        return _first(fences[-1]), fences[-1].strip()
    inner = re.match(r"run(?:_ipython)?\s+(.*)", text, re.DOTALL)
    if inner:
        call = re.match(r"(open_file|edit_file_by_replace)\(", inner[1])
        return (call[1], inner[1]) if call else (_first(inner[1]) if text.startswith("run ") else "", inner[1])
    call = re.match(r"(\w+)[ (]*(\{.*\})\)?\s*$", text, re.DOTALL)
    if call:
        try:
            arguments = json.loads(call[2])
        except ValueError:
            return call[1], text
        command = arguments.get("command", arguments.get("keystrokes"))
        if isinstance(command, str) and " " not in command.strip() and "path" in arguments:
            return command.strip(), text
        if isinstance(command, str):
            return _first(command), command.strip()
        return call[1], text
    program = _first(text)
    if program == "str_replace_editor" and len(text.split()) > 1:
        program = text.split()[1]
    return program, text


def _first(command: str) -> str:
    """The first word after `cd somewhere &&` and variables."""
    command = re.sub(r"^\s*(cd\s+\S+\s*(&&|;)\s*|\w+=\S+\s+)*", "", command)
    return command.split()[0].rstrip(".;,") if command.split() else ""


def kind_of(program: str, text: str) -> str:
    """The kind of tool, "" where a line does several things or nothing that is known."""
    line = text.split("\n")[0] if "<<" in text else text
    line = re.sub(r"\d?>\s*(/dev/null|&1)", "", line)
    if "<<" in text:
        return "edit" if re.match(r"(cat|tee)\b.*(>|tee )", line) and "&&" not in text.rpartition("\n")[2] else ""
    if program in _EDITORS:
        return "edit"  # their text holds a file's
    if program == "view":
        return "look"
    line = re.sub(r"^\s*cd\s+\S+\s*&&\s*", "", line)
    kinds = set()
    for part in re.split(r"&&|;", line):
        stages = [s.strip() for s in part.split("|")]
        if re.search(r"(^|\s)>>?\s*\S", stages[-1]):
            kinds.add("edit" if re.match(r"(echo|printf|cat)\b", stages[0]) else "")
            continue
        word = re.match(r"[\w-]*", stages[0])[0]  # type: ignore[index]  # it always matches
        kind = _KIND_OF.get(word, "")
        if word == "sed":
            kind = "edit" if " -i" in stages[0] else "look" if " -n" in stages[0] else ""
        filters = _FILTERS | ({"grep"} if kind == "search" else set())
        kinds.add(kind if all(s.split() and s.split()[0] in filters for s in stages[1:]) else "")
    return kinds.pop() if len(kinds) == 1 else ""


def failed_of(source: str, label: Any, last: str, role: str) -> bool | None:
    """Whether the last command failed: the file's own mark, else the rules, else None."""
    if isinstance(label, bool):
        return label
    code = _CODE.search(last)
    if code:
        return (code[1] or code[2]) != "0"
    text = bare(last)
    if source == "chat-tool":
        if role != "tool":
            return None
        return True if text.startswith("Error") else None if _DOUBT.search(text[:60]) else False
    if _SHOWN.match(text) and "introduced new syntax error" not in text:
        return False
    if _FAILED.search(text):
        return True
    return None if _DOUBT.search(text) else False


def bare(observation: str) -> str:
    """The output inside an observation: without lead, code, footer and prompt, and out of its JSON."""
    if observation.startswith("{"):
        try:
            inner = json.loads(observation)
        except ValueError:
            inner = None
        if isinstance(inner, dict) and isinstance(inner.get("output"), str):
            observation = inner["output"]
    return _WRAPPING.sub("", _FOOTER.sub("", observation)).strip()


def _empty(observation: str) -> bool:
    text = bare(observation)
    return not text or (bool(_SILENT.search(text[:120])) and len(text) < 200)


def done(run: Run, i: int, observed: dict[str, Any], shown: str) -> Done | None:
    """Action i of a run. observed: the message that followed it; shown: that message's text as the history at hand has it.

    None where the step is talk, or no command was given."""
    source = "chat-tool" if source_of(run) == "tau-bench" else run.format
    program, text = command_of(run.steps[i])
    calls = any(m["role"] == "tool" for s in run.steps[-1:] for m in s.messages)
    fenced = run.format.startswith("mini") or "mini" in Path(run.file).name
    told = observed["role"] == "tool" or (not calls and source != "chat-tool" and observed["role"] == "user")
    if not text or not told or program == "mark_task_complete":
        return None
    if (fenced and not calls and "```" not in run.steps[i].action) or _HANDED_OVER in observed["content"]:
        return None
    mark = run.steps[i + 1].labels.get("last_failed") if i + 1 < len(run.steps) else None
    failed = failed_of(source, mark, observed["content"], observed["role"])
    if source == "chat-tool":
        return Done(program, text, "", shown, failed, None, "", None, None)
    kind = kind_of(program, text)
    output = bare(observed["content"])
    if program.startswith("python") and failed != (TRACEBACK in output):
        # What a program prints of errors is its own, and a pipe hides the status of failing tests.
        certain = isinstance(mark, bool) and not _RED.search(output)
        failed = failed if certain or (not failed and not _DOUBT.search(output)) else None
    edited: bool | None = None
    if kind in ("look", "search"):
        edited = False
    elif kind == "edit" and failed is not None:
        sure = bool(_CHANGED.search(output)) if program in _EDITORS else not re.search(r"^rm .*-\w*f", text)
        edited = False if failed else True if sure else None
    path = (
        re.match(r"create\s+(\S+)$", text)
        or re.match(r"(?:cat|tee)\s+>?\s*(\S+)\s*<<", text)
        or re.search(r'"(?:file_)?path": "([^"]+)"', text)
    )
    file = path[1].strip("\"'") if path and edited and kind == "edit" else ""
    tested = (
        True
        if _TESTS.search(text) and kind != "search"
        else False
        if kind in ("look", "search", "edit")
        else None
        if "test" in text or "<<" in text
        else False
    )
    passed = None
    if tested:
        passed = False if _RED.search(output) else True if _PASSED.search(output) else None
    return Done(program, text, kind, shown, failed, edited, file, tested, passed)


def _any(some: Sequence[bool | None]) -> bool | None:
    return True if True in some else None if None in some else False


def facts(actions: Sequence[Done], chat: bool) -> Fact:
    """What can be asked after the last of `actions`, which are all that the history shows. chat: tools of a desk, not of files."""
    last = actions[-1]
    texts = [a.text for a in actions]
    ran = [a for a in actions if a.tested]
    terminal = last.program and last.output.startswith("New Terminal Output")
    told: dict[str, bool | None] = {
        "last_command_failed": last.failed,
        "traceback": TRACEBACK in last.output,
        "empty_output": None if terminal else _empty(last.output),
        "repeated": len(texts) > 1 and texts[-1] == texts[-2],
        "looping": len(texts) > 2 and len(set(texts[-3:])) == 1,
        "ever_failed": _any([a.failed for a in actions]) if not any(_OLD.search(bare(a.output)) for a in actions) else None,
        "two_failures": None
        if len(actions) < 2 or last.failed is None or actions[-2].failed is None
        else last.failed and actions[-2].failed,
    }
    if not chat:
        told["any_file_edited"] = _any([a.edited for a in actions])
        told["last_changed_file"] = last.edited
        told["tests_run"] = _any([a.tested for a in actions])
        told["tests_passed"] = ran[-1].passed if ran and None not in [a.tested for a in actions] else None
    plain = re.fullmatch(r"\w{2,24}", last.program) and not re.search(r"[|;\n]|&&|\{", last.text)
    shown = bare(last.output)
    found = EXCEPTION.findall(shown.rpartition(TRACEBACK)[2]) if TRACEBACK in shown else []
    edits = [a for a in actions if a.edited is not False]
    file = edits[-1].file if edits and all(a.edited for a in edits) else ""
    yes_no = {name: value for name, value in told.items() if value is not None}
    return Fact(yes_no, last.kind, last.program if plain else "", found[0] if len(set(found)) == 1 else "", file, len(actions))


def source_of(run: Run) -> str:
    name = Path(run.file).name
    if "tau" in name:
        return "tau-bench"
    if name.startswith("mini"):
        return "mini-swe-agent"
    return run.format if run.format == "nebius" else "swe-agent" if run.format.startswith("swe") else "others"
