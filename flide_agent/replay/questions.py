"""The questions that replay asks at every step unless it is given others."""

from __future__ import annotations

from typing import Any

Questions = dict[str, dict[str, Any]]

DEFAULT: Questions = {
    "last_command_failed": {
        "type": "noul",
        "instructions": "Did the last command that the agent ran fail?",
        "criteria": {
            "true": "its output shows an error, a failing test, a refusal or a timeout",
            "false": "it did what it was meant to do, or no command has been run yet",
        },
    },
    "last_tool_kind": {
        "type": "choice",
        "instructions": "Which kind of tool was used last?",
        "criteria": {
            "look": "list a folder, open, read or scroll a file",
            "search": "search in files or for files",
            "edit": "create, change, move or delete a file",
            "run": "run a program, a test or an installation",
        },
    },
    "step_count": {
        "type": "score",
        "instructions": "How many commands has the agent run so far?",
        "criteria": ["1 to 3", "4 to 8", "9 to 15", "16 or more"],
    },
    "traceback": {
        "type": "noul",
        "instructions": "Does the last observation contain a Python traceback?",
        "criteria": {"true": "a traceback is printed", "false": "there is none"},
    },
    "empty_output": {
        "type": "noul",
        "instructions": "Was the output of the last command empty?",
        "criteria": {"true": "nothing was printed", "false": "something was printed"},
    },
}
"""Five questions about the history before a decision, as the model in the package was trained to be asked; what the agent then did is
not in it. All of them passed on held-out runs."""

TITLES = {
    "last_command_failed": "failed",
    "last_tool_kind": "last tool",
    "step_count": "steps",
    "traceback": "trace",
    "empty_output": "empty",
}
"""Short column titles; other questions are headed by their id."""


class QuestionsError(ValueError):
    """A questions file that cannot be used. The message names the file and the place."""
