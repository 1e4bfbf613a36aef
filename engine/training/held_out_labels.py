# ruff: noqa: E501 - tables of words and patterns read best a line each
"""Labels of recorded runs: return codes and error marks where a file has them, else rules on the text, else nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flide_agent.replay.records import Run, Step
from training.facts import TRACEBACK

_FAILED = re.compile(
    r"^(/bin/)?(ba)?sh: .*(not found|No such|syntax error|cannot|denied)|^Traceback \(most recent call last\)|command not found|^File .* not found|"
    r"introduced new syntax error|^No replacement was performed|^ERROR\b|^Error: |^\w*Error: |^usage: |: No such file or directory$|^E +\w+Error|^FAILED|"
    r"EXECUTION TIMED OUT|Syntax error|^Error\b", re.MULTILINE
)  # fmt: skip
_DOUBT = re.compile(
    r"error|fail|invalid|cannot|denied|exception|not found|no such|timed out|warning|did not appear|must (be|not)",
    re.IGNORECASE,
)
_FOOTER = re.compile(r"\n?\(Open file: [^\n]*\)\s*\n\(Current directory: [^\n]*\)\s*\n(bash-\$)?\s*$")
_WRAPPING = re.compile(r"^OBSERVATION:\s*|</?output>|<returncode>-?\d+</returncode>|^Observation:\s*|bash-\$\s*$")
_SILENT = re.compile(r"did not produce any output|ran without output|no output", re.IGNORECASE)
_KINDS = {
    "look": "ls cat head tail nl open goto scroll_down scroll_up view tree read_file less wc",
    "search": "grep find rg search_dir search_file find_file",
    "edit": "edit create rm mv mkdir touch insert str_replace undo_edit write_file cp",
    "run": "python python3 pytest pip tox make node npm",
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words.split()}


@dataclass(frozen=True)
class Fact:
    """What the rules say of a step's history: truth by question, only where they are sure."""

    yes_no: dict[str, bool]
    kind: str
    program: str


def command_of(step: Step) -> tuple[str, str]:
    """(program, text) of what the agent did: the first word that acts. An editor tool's program is its command."""
    text = step.action.strip()
    fences = re.findall(r"```\w*\n(.*?)\n?```", text, re.DOTALL)
    if fences:
        return _first(fences[-1]), fences[-1].strip()
    call = re.match(r"(\w+)[ (]*(\{.*\})\)?\s*$", text, re.DOTALL)
    if call:
        try:
            arguments = json.loads(call[2])
        except ValueError:
            return call[1], text
        command = arguments.get("command")
        if isinstance(command, str) and " " not in command.strip() and "path" in arguments:
            return command.strip(), text
        if isinstance(command, str):
            return _first(command), text
        return call[1], text
    return _first(text), text


def _first(command: str) -> str:
    """The first word after `cd somewhere &&` and variables."""
    command = re.sub(r"^\s*(cd\s+\S+\s*(&&|;)\s*|\w+=\S+\s+)*", "", command)
    return command.split()[0].rstrip(".;,") if command.split() else ""


def failed_of(source: str, label: Any, last: str, role: str) -> bool | None:
    """Whether the last command failed: the file's own mark, else the rules, else None."""
    if isinstance(label, bool):
        return label
    text = _WRAPPING.sub("", _FOOTER.sub("", last)).strip()
    if source == "chat-tool":
        if role != "tool":
            return None
        return True if text.startswith("Error") else None if _DOUBT.search(text[:60]) else False
    if (re.match(r"\[File: ", text) and "syntax error" not in text) or text.startswith("Here's the result of running `cat"):
        return False
    if _FAILED.search(text):
        return True
    return None if _DOUBT.search(text) else False


def facts(run: Run, upto: int) -> Fact | None:
    """Of the history before decision `upto` (index in run.steps, at least 1)."""
    step, before = run.steps[upto], run.steps[upto - 1]
    last = step.messages[-1]
    if last["role"] == "assistant":
        return None
    source = "chat-tool" if source_of(run) == "tau-bench" else run.format
    program, text = command_of(before)
    if not program or (source == "chat-tool" and last["role"] != "tool"):
        return None
    out: dict[str, bool] = {}
    failed = failed_of(source, step.labels.get("last_failed"), last["content"], last["role"])
    if failed is not None:
        out["last_command_failed"] = failed
    bare = _WRAPPING.sub("", _FOOTER.sub("", last["content"])).strip()
    out["traceback"] = TRACEBACK in last["content"]
    out["empty_output"] = (
        not bare
        or (bool(_SILENT.search(bare[:120])) and len(bare) < 200)
        or bool(re.fullmatch(r"\{\s*\"returncode\": -?\d+,\s*\"output\": \"\"\s*\}", bare))
    )
    texts = [command_of(s)[1] for s in run.steps[:upto]]
    if source != "chat-tool":
        out["repeated"] = len(texts) > 1 and texts[-1] == texts[-2]
        out["looping"] = len(texts) > 2 and len(set(texts[-3:])) == 1
        kinds = [_KIND_OF.get(command_of(s)[0], "") for s in run.steps[:upto]]
        if all(k and k != "edit" and ">" not in t for k, t in zip(kinds, texts, strict=True)) and "run" not in kinds:
            out["any_file_edited"] = False
        elif any(command_of(s)[0] in ("create", "str_replace", "edit") for s in run.steps[: upto - 1]) and not all(
            _FAILED.search(s.messages[-1]["content"]) for s in run.steps[1 : upto + 1]
        ):
            out["any_file_edited"] = True
    kind = _KIND_OF.get(program, "") if "|" not in text and "&&" not in text.partition("&&")[2] and ">" not in text else ""
    if program == "sed":
        kind = "edit" if " -i" in text else "look" if " -n" in text else ""
    return Fact(out, kind, program if re.fullmatch(r"\w{2,24}", program) else "")


def source_of(run: Run) -> str:
    name = Path(run.file).name
    if "tau" in name:
        return "tau-bench"
    if name.startswith("mini"):
        return "mini-swe-agent"
    return run.format if run.format == "nebius" else "swe-agent" if run.format.startswith("swe") else "others"
