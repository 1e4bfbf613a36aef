# ruff: noqa: E501 - tables of words read best a line each
"""What an observer can tell of a command from its output: the difference between a fact and what a reader could know."""

from __future__ import annotations

from training.calls import Call


def tests_of(code: int, output: str) -> str:
    """A pipe hides the status of the tests before it, so their own words count as well."""
    bad = code != 0 or any(word in output for word in ("FAILED", "Traceback", " failed", " error"))
    return "failed" if bad else "passed"


def told(call: Call, code: int, output: str) -> bool | None:
    """Whether the command failed as its output alone can tell: None for a failing status with quiet or ordinary output, or noise despite success."""
    if call.shell is None:
        return code != 0
    low = output.lower()
    noise = any(word in low for word in ("no such file", "cannot access", "not found", "command not found", "syntax error"))
    if code == 0 and "|" in call.command and ("FAILED" in output or "Traceback" in output) and call.kind == "run":
        return None
    if code == 0:
        return None if noise and call.kind != "search" and "cat *.log" not in call.command else False
    loud = noise or any(
        word in low
        for word in (
            "error",
            "traceback",
            "fatal",
            "usage:",
            "failed",
            "timed out",
            "timeout",
            "invalid",
            "cannot",
            "no rule",
            "not a git command",
            "unmatched",
            "no such",
            "took too long",
            "unknown revision",
        )
    )
    return True if loud and output.strip() else None
